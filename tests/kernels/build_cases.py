"""Kernels built for an H200 by Triton's compiler, which needs no GPU: the interpreter takes what it does not.

``test_kernels.py`` runs this file in a process of its own, where Triton is installed.
"""

from itertools import product
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tokengt.kernels import neighbours, neighbours_op, packed_parts, sums
from tokengt.kernels import rows as kernels
from tokengt.kernels.packed_launch import LAUNCHES

H200 = GPUTarget("cuda", 90, 32)
NUMBERS = dict.fromkeys(("rows", "edges", "width", "threshold", "entry", "entries", "tokens"), "i32")
FACTORS = dict.fromkeys(("eps", "rescale", "scale"), "fp32")
TABLES = {"ids": "*i64", "seed": "*i64", "items": "*i32", "marks": "*i32", "log_sums": "*fp32"}
EDGES = dict.fromkeys(("offsets", "places"), "*i64") | dict.fromkeys(("sources", "targets"), "*i32")
OF_EDGES = dict.fromkeys(("alphas", "grad_scores", "parts", "att"), "*fp32")
KINDS = NUMBERS | FACTORS | TABLES | EDGES | OF_EDGES


def build(kernel: Any, pointer: str, absent: tuple[str, ...], warps: int = 4, **constants: Any) -> None:
    fixed = constants | dict.fromkeys(absent)
    signature = {name: "constexpr" if name in fixed else KINDS.get(name, pointer) for name in kernel.arg_names}
    values = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
    built = triton.compile(ASTSource(kernel, signature, values), target=H200, options={"num_warps": warps})
    assert built.asm["cubin"]


@pytest.mark.parametrize("pointer", ["*bf16", "*fp32"])
@pytest.mark.parametrize("absent", [(), ("seed",), ("factor", "ids"), ("factor", "ids", "seed")], ids=str)
def test_add_norm(pointer: str, absent: tuple[str, ...]) -> None:
    for width, pad, tile in ((768, 1024, 1), (33, 64, 16), (2048, 2048, 1)):
        build(kernels.add_norm_forward, pointer, absent, WIDTH=width, PAD=pad, TILE=2 * tile)
        build(kernels.add_norm_backward, pointer, absent, WIDTH=width, PAD=pad, TILE=tile, PROGRAMS=6)


@pytest.mark.parametrize("pointer", ["*bf16", "*fp32"])
@pytest.mark.parametrize("absent", [(), ("seed",)], ids=str)
def test_activate(pointer: str, absent: tuple[str, ...]) -> None:
    for width, gelu in product((768, 33), (True, False)):
        build(kernels.activate_forward, pointer, absent, WIDTH=width, COLUMNS=128, TILE=8, GELU=gelu)
        build(kernels.activate_backward, pointer, absent, WIDTH=width, COLUMNS=128, TILE=4, PROGRAMS=6, GELU=gelu)


def test_sum_rows() -> None:
    build(kernels.sum_rows, "*bf16", (), WIDTH=2304, COLUMNS=128, TILE=16, PROGRAMS=6)


@pytest.mark.parametrize("pointer", ["*bf16", "*fp16"])
@pytest.mark.parametrize("absent", [(), ("seed",), ("marks",), ("marks", "seed")], ids=str)
def test_attention_in_tiles_of_two_parts(pointer: str, absent: tuple[str, ...]) -> None:
    sizes = {"HEADS": 32, "KEY": 24, "VALUE": 24, "KEY_PAD": 32, "VALUE_PAD": 32, "FIRST": 64, "SECOND": 32}
    options = {"DROPOUT": "seed" not in absent, "MASKED": "marks" not in absent, "PRECISION": "tf32x3"}
    for kernel, backward in ((packed_parts.forward_parts, False), (packed_parts.backward_parts, True)):
        launch = LAUNCHES[backward, False, 96]
        build(kernel, pointer, absent, launch.warps, QUERIES=launch.queries, **sizes, **options)


@pytest.mark.parametrize("pointer", ["*bf16", "*fp32"])
@pytest.mark.parametrize("gathered", [True, False])
def test_sparse_sums(pointer: str, gathered: bool) -> None:
    for pad, entries in ((16, 16), (256, 2)):
        build(sums.sum_runs, pointer, (), 1, GATHERED=gathered, PAD=pad, ENTRIES=entries)


@pytest.mark.parametrize("pointer", ["*bf16", "*fp32"])
@pytest.mark.parametrize(("heads", "channels"), [(4, 256), (1, 1024), (2, 33), (16, 1)])
def test_attention_to_neighbours(heads: int, channels: int, pointer: str) -> None:
    for kernel, setting in (
        (neighbours.neighbours_forward, neighbours_op.FORWARD),
        (neighbours.neighbours_backward_targets, neighbours_op.BY_TARGET),
        (neighbours.neighbours_backward_sources, neighbours_op.BY_SOURCE),
    ):
        sizes = neighbours_op.tile(setting, channels)
        warps = sizes.pop("num_warps")
        build(kernel, pointer, (), warps, HEADS=heads, WIDTH=channels, SLOPE=neighbours_op.SLOPE, **sizes)
