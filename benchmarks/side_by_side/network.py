"""Hosts with links of a given bandwidth on one machine: network namespaces, joined by switches of their own.

Every host is a namespace with one cable to a switch; both ends of the cable let through what the link carries, each way
by itself. The switches are bridges in a namespace more, so that nothing of the machine's own network is touched, and
all is gone once the namespaces are.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .cases import Links

_BURST_BYTES = 128 * 1024
"""Twice the largest packet that Linux hands to a cable at once."""
_QUEUE_MS = 50
_CONGESTION_CONTROL = "reno"
"""Every namespace may have it. The machine may have another, such as BBR, which measures its way and takes its time."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where a worker runs: commands with the `prefix` before them run there."""

    address: str
    interface: str
    prefix: tuple[str, ...]


def check_possible() -> None:
    """Refuse in a sentence where there is no way."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise ValueError(f"there is no `{tool}` here, which makes the links: install iproute2")
    if os.geteuid() != 0:
        raise ValueError("only root may make network namespaces: run this as root")


@contextmanager
def network(links: Links) -> Iterator[list[Host]]:
    """The hosts of the workers, by rank, until the context ends."""
    check_possible()
    mine = f"g{os.getpid()}"
    switch = f"{mine}switch"
    of_worker = {worker: links.host_of(worker) for members in links.switches for worker in members}
    switches = {host: links.switch_of(worker) for worker, host in of_worker.items()}
    names = {host: f"{mine}h{host}" for host in switches}
    made: list[str] = []
    try:
        for name in (switch, *names.values()):
            _run(f"ip netns add {name}")
            made.append(name)
            _run(f"ip -n {name} link set lo up")
            _run(f"ip netns exec {name} sysctl -q -w net.ipv4.tcp_congestion_control={_CONGESTION_CONTROL}")
        for number in range(len(links.switches)):
            _run(f"ip -n {switch} link add s{number} type bridge")
            _run(f"ip -n {switch} link set s{number} up")
        if links.trunk_mbit is not None:
            _cable(switch, "t0", switch, "t1", links.trunk_mbit)
            for end in range(2):
                _run(f"ip -n {switch} link set t{end} master s{end}")
        for host, name in sorted(names.items()):
            _cable(name, "eth0", switch, f"h{host}", links.host_mbit)
            _run(f"ip -n {switch} link set h{host} master s{switches[host]}")
            _run(f"ip -n {name} address add {_address(host)}/24 dev eth0")
        yield [
            Host(address=_address(host), interface="eth0", prefix=_prefix(names[host], _address(host)))
            for _, host in sorted(of_worker.items())
        ]
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def _address(host: int) -> str:
    return f"10.20.30.{host + 1}"


def _prefix(name: str, address: str) -> tuple[str, ...]:
    """A host is called by its address: some tell others what they are called, to be reached there."""
    return ("ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', address)


def _cable(here: str, end: str, there: str, other_end: str, mbit: float) -> None:
    _run(f"ip -n {here} link add {end} type veth peer name {other_end} netns {there}")
    bucket = f"tbf rate {mbit}mbit burst {_BURST_BYTES} latency {_QUEUE_MS}ms"
    for name, interface in ((here, end), (there, other_end)):
        _run(f"tc -n {name} qdisc add dev {interface} root {bucket}")
        _run(f"ip -n {name} link set {interface} up")


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"`{command}` failed: {done.stderr.strip()}")
