"""The page on scaling says what was measured, and computes from it what it says that it computes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

from tests.bench.scripts import script
from tokengt.bench import BenchConfig
from tokengt.bench.profiling import count_launches

page, scaling = script("scaling_page"), script("scaling")

RESULTS: dict[str, Any] = {
    "device": "H",
    "torch": "2",
    "commit": "abc",
    "batch": 1024,
    "model": "12 x 768, 32 heads",
    "parameters": 30_000_000,
    "gradient_bytes": 120_000_000,
    "dtype": "bfloat16",
    "all_reduce_alone_ms": 0.02,
    "copy_ms": 0.06,
    "steps": [
        {
            "layout": "directed",
            "graphs": graphs,
            "tokens": 44.0 * graphs,
            "milliseconds": milliseconds,
            "host_milliseconds": 0.5,
            "kernels": 700.0,
            "copies": 3.0,
            "launches": 4.0,
            "replays": 2.0,
            "breakdown": {"matrix products": 16.0, "identifiers": 0.0, "idle": 1.0},
        }
        for graphs, milliseconds in ((1024, 36.0), (512, 19.0), (256, 11.0), (128, 7.0))
    ],
}


def test_the_page_has_the_numbers_of_the_last_measurement() -> None:
    """A reader would be told numbers of another day."""
    text = page.PAGE.read_text()
    assert page.page_with(text, page.read(page.RESULTS)) == text


def test_a_ring_moves_twice_what_each_gpu_does_not_hold() -> None:
    assert page.exchange_ms(1, 120_000_000, 300) == 0.0
    # 2 x 7/8 of 120 MB at 300 GB/s are 0.7 ms.
    assert page.exchange_ms(8, 120_000_000, 300) == pytest.approx(0.7 + 0.03)
    assert page.exchange_ms(2, 120_000_000, 150) == pytest.approx(0.8 + 0.03)


def test_the_tables_of_a_measurement() -> None:
    text = page.page_with(page.PAGE.read_text(), RESULTS)
    assert page.NOT_MEASURED not in text
    lines = text.splitlines()
    assert "| directed | 128 | 5,632 | 7.00 ms | 0.50 ms | 700 | 4 | 2 |" in lines
    assert "| **the step** | **36.00 ms** |" in lines
    assert not any(line.startswith("| identifiers ") for line in lines)
    assert "| directed | 1 | 1,024 | 36.00 ms |  | 36.00 ms | 28,444 | 1.0 | 10.0 h |" in lines
    # 7 ms and 0.73 or 1.43 ms of exchange: 1,024 graphs in 7.73 to 8.43 ms.
    eight = "| directed | 8 | 128 | 7.00 ms | 0.73 to 1.43 ms | 7.73 to 8.43 ms | 121,471 to 132,471 | 4.3 to 4.7 |"
    assert f"{eight} 2.1 to 2.3 h |" in lines
    assert any(line.startswith("| directed | 8 | 1,024 | 36.00 ms |") and "another schedule" in line for line in lines)
    # Writing the same once more changes nothing, and without a measurement the page says so.
    assert page.page_with(text, RESULTS) == text
    assert page.page_with(text, None).count(page.NOT_MEASURED) == 3


def test_the_page_states_what_is_assumed() -> None:
    better, worse = page.GB_PER_SECOND
    prose = " ".join(page.PAGE.read_text().split())
    assert f"we assume that a collective gets {better} of them, and in the worse case {worse}." in prose
    assert f"The latency of the collective is assumed to be {page.LATENCY_MS} ms." in prose


def test_a_page_without_a_place_for_the_numbers_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no place for steps"):
        page.page_with("# Scaling\n", RESULTS)


def test_launches_are_counted_by_who_asks_and_what_runs() -> None:
    def event(name: str, device: DeviceType, *, annotation: bool = False) -> SimpleNamespace:
        return SimpleNamespace(name=name, device_type=device, is_user_annotation=annotation)

    host = ("cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaGraphLaunch", "cudaStreamSynchronize")
    there = ("void gemm", "Memcpy HtoD", "Memset (Device)", "triton_red", "flash_fwd")
    events = [event(name, DeviceType.CPU) for name in (*host, "aten::mm")]
    events += [event(name, DeviceType.CUDA) for name in there]
    events.append(event("Optimizer.step", DeviceType.CUDA, annotation=True))
    counted = count_launches(events * 2, steps=2)
    assert counted == {"kernels": 3.0, "copies": 2.0, "launches": 3.0, "replays": 1.0}


@pytest.mark.slow
def test_the_way_through_without_a_gpu() -> None:
    """Both shares of a tiny batch are timed, and the gradients of the model are summed in a group of one."""
    base = BenchConfig(device="cpu", batch=8, steps=1, rounds=1, warmup=1, layers=1, dim=16, heads=2)
    found = scaling.measure(base, (1, 2), ("directed",))
    assert [(row["layout"], row["graphs"]) for row in found["steps"]] == [("directed", 8), ("directed", 4)]
    assert found["gradient_bytes"] == 4 * found["parameters"] > 0
    assert found["model"] == "1 x 16, 2 heads"
    for row in found["steps"]:
        assert row["milliseconds"] > 0
        assert row["host_milliseconds"] > 0
        assert row["kernels"] == row["launches"] == row["replays"] == 0
        assert 10 < row["tokens"] / row["graphs"] < 100
    assert found["all_reduce_alone_ms"] > 0
    assert not torch.distributed.is_initialized()
