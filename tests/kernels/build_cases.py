"""The row kernels built for an H200 by Triton's compiler, which needs no GPU: the interpreter takes what it does not.

``test_kernels.py`` runs this file in a process of its own, where Triton is installed.
"""

from itertools import product
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tokengt.kernels import rows as kernels

H200 = GPUTarget("cuda", 90, 32)
KINDS = {"rows": "i32", "threshold": "i32", "eps": "fp32", "rescale": "fp32", "ids": "*i64", "seed": "*i64"}


def build(kernel: Any, pointer: str, absent: tuple[str, ...], **constants: Any) -> None:
    fixed = constants | dict.fromkeys(absent)
    signature = {name: "constexpr" if name in fixed else KINDS.get(name, pointer) for name in kernel.arg_names}
    values = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
    built = triton.compile(ASTSource(kernel, signature, values), target=H200, options={"num_warps": 4})
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
