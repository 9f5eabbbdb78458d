"""Kinds of operators and kernels, and a breakdown that adds up."""

import time

import pytest
import torch
from torch import nn

from tokengt.bench.profiling import KINDS, REST, allocated_at_most, breakdown, kind_of, synchronisations

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "matrix products"),
        ("aten::bmm", "attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("aten::native_layer_norm_backward", "elementwise and norms"),
        ("aten::index_select", "feed and copies"),
        ("aten::copy_", "feed and copies"),
        ("aten::linalg_qr", "identifiers"),
        ("aten::_foreach_addcdiv_", "optimizer"),
        ("autograd::engine::evaluate_function: AddmmBackward0", None),
    ],
)
def test_operators(name: str, kind: str | None) -> None:
    assert kind_of(name, "cpu") == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopA_bias_TNT", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matrix products"),
        ("void flash_fwd_kernel<cutlass::bfloat16_t>", "attention"),
        ("fmha_cutlassB_bf16_aligned_64x64_k32_dropout_sm80", "attention"),
        ("backward_whole", "attention"),
        *(
            (name, "attention")
            for name in ("sum_tables", "over_pieces", "answer_queries", "queries_backward", "keys_backward")
        ),
        ("triton_per_fused_index_select_native_layer_norm_3", "elementwise and norms"),
        ("void at::native::vectorized_elementwise_kernel<8, GeluCUDAKernelImpl>", "elementwise and norms"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", "elementwise and norms"),
        ("Memcpy HtoD (Pageable -> Device)", "feed and copies"),
        ("void at::native::indexSelectLargeIndex<float, long>", "feed and copies"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("void syevj_parallel_order_set_kernel", "identifiers"),
    ],
)
def test_kernels(name: str, kind: str) -> None:
    assert kind_of(name, "cuda") == kind


def test_a_breakdown_adds_up_to_the_step() -> None:
    """A large product beside a small norm and a wait that no operator explains."""
    weight = nn.Parameter(torch.randn(300, 300))
    optimizer = torch.optim.AdamW([weight])

    def step() -> None:
        optimizer.zero_grad()
        out = torch.randn(300, 300) @ weight
        torch.nn.functional.layer_norm(out, [300]).sum().backward()
        optimizer.step()
        time.sleep(0.05)

    step()
    start = time.perf_counter()
    milliseconds = breakdown(step, CPU)
    most = (time.perf_counter() - start) / 3 * 1e3  # Three steps count; one more is not counted.
    assert list(milliseconds) == [*KINDS, REST["cpu"]]
    assert all(took >= 0 for took in milliseconds.values())
    assert 50 < sum(milliseconds.values()) <= most
    assert milliseconds[REST["cpu"]] >= 45
    assert min(milliseconds["matrix products"], milliseconds["optimizer"], milliseconds["elementwise and norms"]) > 0
    assert milliseconds["attention"] == milliseconds["identifiers"] == 0


def test_a_cpu_has_nothing_to_wait_for() -> None:
    assert synchronisations(lambda: None, CPU) is None


def test_memory_of_a_cpu_is_counted_at_its_fullest() -> None:
    """Three tensors of four million bytes at most, the first of four being freed before the last is made."""

    def work() -> None:
        first = torch.zeros(1000, 1000)
        second = first + 1
        del first
        third = second * 2
        assert float((third @ second).sum()) > 0

    assert 12_000_000 <= allocated_at_most(work) < 12_100_000
    assert allocated_at_most(lambda: None) == 0
