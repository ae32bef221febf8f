"""The GPU kernels, compiled for a GPU that need not be there: how much they load at once, and what waits for what."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is for Linux")

RING = ((0, -1), (0, 0), (0, 1))
TORUS = ((-1, 0), (0, -1), (0, 0), (0, 1), (1, 0))
TILE = {"EVEN": 2, "COLUMNS": 256}
KERNELS: dict[str, tuple[str, str, dict[str, str], dict[str, Any]]] = {
    # module, kernel, types of the pointers, constants
    "ring": (
        "mix_tiles",
        "_mean_of_places",
        {"x": "*fp32", "out": "*fp32"},
        {"OFFSETS": RING, "A": 1, "TILE_A": 1, "TILE_B": 32, **TILE},
    ),
    "torus": (
        "mix_tiles",
        "_mean_of_places",
        {"x": "*fp32", "out": "*fp32"},
        {"OFFSETS": TORUS, "TILE_A": 4, "TILE_B": 4, **TILE},
    ),
    "window": (
        "mix",
        "_window",
        {"x": "*fp32", "out": "*fp32", "sums": "*fp32"},
        {"SIGN": 1, "EVEN": 4, "ROWS": 32, "COLUMNS": 512, "UNROLLED": 8},
    ),
    "product": (
        "pointwise",
        "_product",
        {"x": "*bf16", "w": "*bf16", "y": "*bf16"},
        {"EVEN_C": 4, "EVEN_Q": 8, "BY_Q": True, "PIXELS": 128, "PARTS": 32, "BLOCK_Q": 64},
    ),
    "product_dw": (
        "pointwise",
        "_product_dw",
        {"x": "*bf16", "dy": "*bf16", "dw": "*fp32"},
        {"EVEN_ROW": 2, "EVEN_C": 8, "EVEN_Q": 8, "PIXELS": 64, "PARTS": 128, "BLOCK_Q": 64},
    ),
}
IMAGES = {"N": 96, "C": 64, "Q": 64, "H": 8, "W": 8, "H_OUT": 8, "W_OUT": 8, "K": 3, "STRIDE": 1, "PADDING": 1}
IMAGES |= {"NUM_PIXELS": 2048, "PIXELS": 128, "PARTS": 64, "BLOCK_Q": 64}
for turned in (0, 1):
    constants = {**IMAGES, "SPREAD": 1, "TURNED": turned}
    KERNELS[f"conv-{turned}"] = ("conv", "_correlate", {"x": "*bf16", "w": "*bf16", "y": "*bf16"}, constants)
for name, dtype, row in (("conv_dw", "*bf16", 9 * 64 * 64), ("conv_dw_into", "*fp32", 14_728_266)):
    constants = {**IMAGES, "SHARE": 2048, "SPLITS": 1, "ROW": row}
    KERNELS[name] = ("conv", "_weight_gradient", {"x": "*bf16", "dy": "*bf16", "dw": dtype}, constants)
BOX = {name: IMAGES[name] for name in ("N", "C", "Q", "H", "W", "K", "PADDING", "BLOCK_Q")}
BOX |= {"PIXELS": 128, "CHANNELS": 64}
BOXES = {"x": "tensordesc<bf16[2, 8, 8, 64]>"}
for turned in (0, 1):
    types = {**BOXES, "w": "tensordesc<bf16[64, 64]>", "y": "*bf16"}
    KERNELS[f"boxes-{turned}"] = (
        "conv_boxes",
        "_correlate_boxes",
        types,
        {**BOX, "NUM_PIXELS": 2048, "TURNED": turned},
    )
types = {**BOXES, "dy": "tensordesc<bf16[128, 64]>", "dw": "*fp32"}
constants = {**BOX, "SHARE": 2048, "SPLITS": 1, "ROW": 14_728_266, "PLACES": 3}
KERNELS["boxes_dw"] = ("conv_boxes", "_weight_gradient_boxes", types, constants)
COMPILE = r"""
import importlib, json, re, sys
import triton
from triton.backends.compiler import GPUTarget

def tuples(value):
    return tuple(map(tuples, value)) if isinstance(value, list) else value

def instructions(module, name, types, constants):
    kernel = getattr(importlib.import_module("gossamer.engines.kernels." + module), name)
    names = [parameter.name for parameter in kernel.params]
    source = triton.compiler.ASTSource(
        fn=kernel,
        signature={n: "constexpr" if n in constants else types.get(n, "i32") for n in names},
        constexprs={(names.index(n),): tuples(value) for n, value in constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in types if types[n].startswith("*")},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    ptx = compiled.asm["ptx"]
    return re.findall(r"(?:ld|st)\.(?:global|local)[.:\w]*|cp\.async\.(?:c[ag]|bulk)\S*|ldmatrix|wgmma\.mma_async", ptx)

print(json.dumps({name: instructions(*kernel) for name, kernel in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture(scope="module")
def instructions() -> dict[str, list[str]]:
    """Of every kernel those for memory and products, in their order. By a process of its own: this may interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, json.dumps(KERNELS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_a_tile_is_read_before_it_is_written(instructions: dict[str, list[str]]) -> None:
    assert instructions["ring"] == ["ld.global.v2.b32"] * 34 + ["st.global.cs.v2.b32"] * 32
    assert instructions["torus"] == ["ld.global.v2.b32"] * 32 + ["st.global.cs.v2.b32"] * 16


def test_a_window_slides_by_eight_rows_at_a_time(instructions: dict[str, list[str]]) -> None:
    found = instructions["window"]
    assert [name.split(".")[0] for name in found] == ["ld"] * (8 + 16) + ["st"] * 8
    assert all("v4" in name for name in found)


@pytest.mark.parametrize("kernel", ["product", "product_dw", "conv-0", "conv-1", "conv_dw", "conv_dw_into"])
def test_a_product_multiplies_on_tensor_cores_what_is_copied_meanwhile(
    kernel: str, instructions: dict[str, list[str]]
) -> None:
    found = instructions[kernel]
    assert "wgmma.mma_async" in found
    assert any(name.startswith("cp.async") for name in found)
    assert not any("local" in name or name.startswith("ld.global") for name in found)


@pytest.mark.parametrize("kernel", ["boxes-0", "boxes-1", "boxes_dw"])
def test_boxes_are_copied_by_the_copy_engine_and_multiplied_where_they_lie(
    kernel: str, instructions: dict[str, list[str]]
) -> None:
    found = instructions[kernel]
    last = len(found) - found[::-1].index("wgmma.mma_async")
    assert {name.split(".")[0] for name in found[:last]} == {"cp", "wgmma"}
    assert all("bulk.tensor" in name for name in found[:last] if name.startswith("cp"))
    assert not any("local" in name or name.startswith("ld.global") for name in found)


@pytest.mark.parametrize("kernel", ["conv_dw_into", "boxes_dw"])
def test_gradients_are_written_two_at_a_time_into_rows_of_even_length(
    kernel: str, instructions: dict[str, list[str]]
) -> None:
    stores = {name for name in instructions[kernel] if name.startswith("st.global")}
    assert all("v2" in name or "v4" in name for name in stores)
