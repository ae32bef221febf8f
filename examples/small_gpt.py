"""A small GPT that learns to write Python, letter by letter, on one worker or many: nothing to download.

The text is that of Python's own standard library. The optimizer is AccumAdamW: a worker that averages with few others
has only its own noisy gradients, and this feeds Adam's moments with means of several.
"""

import argparse
import os
from math import cos, pi
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

import gossamer
from gossamer.optim import AccumAdamW, betas_for, window_for
from gossamer.tasks import TASKS

EXAMPLES = """examples:
  python examples/small_gpt.py                                            # one worker, by itself
  torchrun --nproc-per-node 4 examples/small_gpt.py                       # four on this machine
  torchrun --nproc-per-node 4 examples/small_gpt.py --accumulate 4 --out gpt.pt
  srun --nodes 2 --ntasks-per-node 8 python examples/small_gpt.py --width 512 --layers 8 --steps 5000 --bf16
"""
VOCABULARY, WINDOW = 128, 64  # ASCII, as the task cuts it


class Block(nn.Module):
    """Attention to what came before, then a small network, each added to what it was given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:  # [B, T, width]
        parts = self.query_key_value(self.norm(x)).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, heads, width/heads]
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # [B, heads, T, width/heads]
        x = x + self.joined(seen.transpose(1, 2).flatten(2))
        return x + self.network(x)


class GPT(nn.Module):
    """Letters `[B, T]` to what comes next `[B, T, 128]`."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(WINDOW, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def forward(self, letters: Tensor) -> Tensor:
        places = torch.arange(letters.shape[1], device=letters.device)
        return self.out(self.blocks(self.letters(letters) + self.places(places)))


def main() -> None:
    args = parse()
    data = TASKS["chargpt"].load(None)  # windows of 64 letters, and the same one letter further on
    device = pick_device()
    torch.manual_seed(args.seed)
    model = GPT(args.width, args.heads, args.layers).to(device)
    window = window_for(gossamer.join_world().size)  # by the number of workers, before there is a handle to ask
    betas = betas_for(window, (0.9, 0.98))  # they act once a window: rescaled, moments look as far back as Adam's
    optimizer = AccumAdamW(model.parameters(), lr=args.lr, betas=betas, window=window)
    wire_dtype = torch.bfloat16 if args.bf16_wire else None

    with gossamer.decentralize(model, optimizer, topology=args.topology, wire_dtype=wire_dtype) as handle:
        scheduler = LambdaLR(optimizer, lambda step: warm_up_then_cosine(step, args.steps))
        mine = torch.arange(data.num_train)[handle.rank :: handle.size]  # every worker reads windows of its own
        torch.manual_seed(args.seed + handle.rank)
        for step in range(args.steps):
            optimizer.zero_grad()
            for _ in range(args.accumulate):  # gradients add up; the worker steps, and mixes, once
                batch = mine[torch.randint(len(mine), (args.batch_size,))]
                letters, following = data.train_inputs[batch].to(device), data.train_targets[batch].to(device)
                with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                    loss = loss_of(model(letters), following)
                (loss / args.accumulate).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if handle.rank == 0 and (step + 1) % 50 == 0:
                print(f"step {step + 1}: loss {loss:.3f}", flush=True)

        with handle.averaged(), torch.no_grad():
            letters, following = (samples[:500].to(device) for samples in (data.test_inputs, data.test_targets))
            test_loss = loss_of(model(letters), following).item()
            if handle.rank == 0 and args.out:
                torch.save(model.state_dict(), args.out)
        apart, figures = handle.consensus_distance(), handle.metrics()
        if handle.rank == 0:
            print(
                f"averaged model of {handle.size}: test loss {test_loss:.9g} a letter; replicas {apart:.1e} apart; "
                f"waited {figures['waited_s']:.1f} s for neighbours; sent {figures['bytes_sent'] / 1e6:.1f} MB"
            )


def loss_of(outputs: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), following.flatten())


def warm_up_then_cosine(step: int, num_steps: int, warm_up: float = 0.1) -> float:
    return min((step + 1) / (warm_up * num_steps), 1.0) * (1 + cos(pi * min(step / num_steps, 1.0))) / 2


def pick_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def parse() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=formatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=16, help="windows of 64 letters, of one worker (16)")
    parser.add_argument("--accumulate", type=int, default=1, help="batches to a step (1)")
    parser.add_argument("--lr", type=float, default=3e-3, help="the peak, reached after a tenth of the steps (0.003)")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--topology", default="alternating-exponential-ring", help="see `gossamer graphs`")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 where that is safe (autocast)")
    parser.add_argument("--bf16-wire", action="store_true", help="send in bfloat16: half the bytes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="save the averaged model here")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
