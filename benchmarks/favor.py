"""FAVOR+ forward and backward: our kernels and chunks, against the formula as plain PyTorch operations, on one device.

    python benchmarks/favor.py --out favor.json [--sweep]     # on a GPU
    python benchmarks/favor.py --tokens 20000                 # a try on a CPU

First errors against float64, then times and memory. ``physics`` is one sequence as long as the paper's largest
transductive graph; its appendix searches 1 to 4 heads and widths 128 to 1024, of which 4 heads of 64 are one choice.
``pcqm4mv2`` is a batch of 1,024 molecules, for which the kernels are not made. All begin with the rows that one linear
layer writes, and end with their gradient. Memory is the peak during a step, inputs and gradients included (GPU), and
what is kept between forward and backward. ``--sweep`` tries other sizes of chunks.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tokengt.attention import draw_projection, favor_attention, favor_chunks
from tokengt.attention.favor import default_num_features
from tokengt.kernels.attend import cut_favor
from tokengt.kernels.cuts import make_cuts
from tokengt.kernels.heads import Heads
from tokengt.ragged import Segments, into_buckets, out_of_buckets

EPS, ROUNDS, MOLECULES = 1e-4, 7, 1024
System = Callable[..., Tensor]


@dataclass(frozen=True)
class Shape:
    name: str
    lengths: list[int]
    heads: int
    head_dim: int


def attend(query: Tensor, key: Tensor, value: Tensor, projection: Tensor, mask: Tensor | None) -> Tensor:
    """The formula, one operation after another: [sequences, heads, width, dim]."""
    features = []
    for x, axes in ((query, (-1,)), (key, (-2, -1))):
        scaled = x * x.shape[-1] ** -0.25
        projected, half_norm = scaled @ projection.T, scaled.square().sum(-1, keepdim=True) / 2
        features.append(torch.exp(projected - (half_norm + projected.detach().amax(axes, keepdim=True))) + EPS)
    phi_q, phi_k = features
    if mask is not None:
        phi_k = phi_k * mask[:, None, :, None]
    return phi_q @ (phi_k.transpose(2, 3) @ value) / (phi_q @ phi_k.sum(2)[..., None])


def bucketed(call: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, segments: Segments, w: Tensor) -> Tensor:
    parts = zip(segments.buckets, *(into_buckets(x, segments) for x in (q, k, v)), strict=True)
    turned = ((bucket, [x.transpose(1, 2) for x in qkv]) for bucket, *qkv in parts)
    done = [call(*qkv, w.to(q.dtype), bucket.mask).transpose(1, 2) for bucket, qkv in turned]
    return out_of_buckets(done, segments)


def unfused(q: Tensor, k: Tensor, v: Tensor, segments: Segments, w: Tensor) -> Tensor:
    return bucketed(attend, q, k, v, segments, w)


def checkpointed(q: Tensor, k: Tensor, v: Tensor, segments: Segments, w: Tensor) -> Tensor:
    def call(*parts: Any) -> Tensor:
        out: Tensor = checkpoint(attend, *parts, use_reentrant=False, preserve_rng_state=False)
        return out

    return bucketed(call, q, k, v, segments, w)


def chunked(q: Tensor, k: Tensor, v: Tensor, segments: Segments, w: Tensor) -> Tensor:
    return favor_attention(q, k, v, segments, projection=w, eps=EPS)


def systems(device: torch.device, shape: Shape) -> dict[str, System]:
    plain = {"unfused": unfused, "checkpointed": checkpointed, "chunked": chunked}

    def split(call: Callable[..., Tensor]) -> System:
        return lambda rows, segments, w: call(*rows.unflatten(1, (3, shape.heads, -1)).unbind(1), segments, w)

    def kernels(rows: Tensor, segments: Segments, w: Tensor) -> Tensor:
        cuts = make_cuts(segments, shape.heads, len(w))
        return cut_favor(rows, w, cuts, Heads(shape.heads, shape.head_dim, shape.head_dim), EPS)

    calls = {name: split(call) for name, call in plain.items()}
    return calls | ({"kernels": kernels} if device.type == "cuda" and min(shape.lengths) >= 1024 else {})


def precision(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    return torch.autocast(device.type, dtype) if dtype == torch.bfloat16 else nullcontext()


def tensors(shape: Shape, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Segments, Tensor, Tensor]:
    """Rows of queries, keys and values; segments; the projection; the gradient of the output."""
    torch.manual_seed(0)
    segments = Segments.from_lengths(torch.tensor(shape.lengths), device)
    rows = torch.randn(segments.total, 3 * shape.heads * shape.head_dim, device=device).to(dtype)
    gradient = torch.randn(segments.total, shape.heads, shape.head_dim, device=device).to(dtype)
    projection = draw_projection(default_num_features(shape.head_dim), shape.head_dim, device=device)
    return rows.requires_grad_(), segments, projection, gradient


def errors(device: torch.device) -> dict[str, float]:
    """Of output and gradients, relative, against float64 on the CPU; one long sequence and a padded batch."""
    worst_errors = {}
    for shape in (Shape("one", [17_000], 4, 64), Shape("batch", torch.randint(10, 90, (400,)).tolist(), 32, 24)):
        for dtype in (torch.float32, torch.bfloat16):
            rows, segments, projection, gradient = tensors(shape, device, dtype)
            chosen, exact = systems(device, shape), rows.detach().cpu().double().requires_grad_()
            out = chosen["unfused"](exact, segments.to("cpu"), projection.cpu().double())
            wanted = [out.detach(), *_parts(torch.autograd.grad(out, exact, gradient.cpu().double()))]
            for name, system in chosen.items():
                with precision(device, dtype):
                    out = system(rows, segments, projection)
                got = [out.detach(), *_parts(torch.autograd.grad(out, rows, gradient.to(out.dtype)))]
                pairs = zip(got, wanted, strict=True)
                worst = max(float((x.cpu().double() - y).norm() / y.norm()) for x, y in pairs)
                worst_errors[f"{shape.name}, {str(dtype)[6:]}, {name}"] = worst
    return worst_errors


def _parts(gradient: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Of queries, keys and values."""
    return gradient[0].chunk(3, 1)


def kept_bytes(forward: Callable[[], Tensor]) -> int:
    """Storages that the backward holds on to, each once."""
    storages: dict[int, int] = {}

    def record(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x.detach()  # An output would hold its own autograd graph, and so would never be freed.

    with torch.autograd.graph.saved_tensors_hooks(record, lambda x: x):
        out = forward()
    del out
    return sum(storages.values())


def measure(shape: Shape, device: torch.device, dtype: torch.dtype, chosen: dict[str, System]) -> list[dict[str, Any]]:
    rows, segments, projection, gradient = tensors(shape, device, dtype)
    steps: dict[str, Callable[[], object]] = {}
    memory: dict[str, tuple[float | None, float]] = {}
    for name, system in chosen.items():

        def forward(system: System = system) -> Tensor:
            with precision(device, dtype):
                return system(rows, segments, projection)

        def step(forward: Callable[[], Tensor] = forward) -> object:
            out = forward()
            return torch.autograd.grad(out, rows, gradient.to(out.dtype))

        steps[name] = step
        step()
        peak = peak_gib(step, device)
        memory[name] = (peak, kept_bytes(forward) / 2**30)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, call in steps.items():
            seconds[name].append(timed(call, device))
    median = {name: statistics.median(times) for name, times in seconds.items()}
    base = "unfused" if "unfused" in median else next(iter(median))
    return [
        {
            "benchmark": "favor",
            "shape": f"{shape.name}, {segments.total} tokens in {segments.count}, {shape.heads} x {shape.head_dim}",
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "system": name,
            "phase": "train",
            "layout": "directed",
            "dtype": "bf16 autocast" if dtype == torch.bfloat16 else "float32",
            "dropout": 0.0,
            "tokens_per_s": segments.total / median[name],
            "milliseconds": 1e3 * median[name],
            "memory_gib": memory[name][0],
            "kept_gib": memory[name][1],
            "time_ratio_to_unfused": median[base] / median[name],
            "memory_ratio_to_unfused": None if memory[name][0] is None else memory[base][0] / memory[name][0],
            "kept_ratio_to_unfused": memory[base][1] / memory[name][1],
        }
        for name in steps
    ]


def timed(call: Callable[[], object], device: torch.device) -> float:
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - start


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_gib(call: Callable[[], object], device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() / 2**30


def sweep(shape: Shape, device: torch.device, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Our path with other numbers of entries per chunk; ratios are to the first."""

    def sized(system: System, entries: int) -> System:
        def call(*arguments: Any) -> Tensor:
            kept = favor_chunks._CPU_ENTRIES, favor_chunks._GPU_BYTES
            favor_chunks._CPU_ENTRIES, favor_chunks._GPU_BYTES = entries, entries * arguments[0].element_size()
            try:
                return system(*arguments)
            finally:
                favor_chunks._CPU_ENTRIES, favor_chunks._GPU_BYTES = kept

        return call

    ours = {"chunked": systems(device, shape)["chunked"]}
    powers = range(22, 29, 2) if device.type == "cuda" else range(16, 22)
    return measure(shape, device, dtype, {f"{n}, 2^{p}": sized(s, 2**p) for n, s in ours.items() for p in powers})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=530_000, help="in the one large graph")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--tf32", action="store_true", help="float32 products on TF32 cores, for all, when timed")
    parser.add_argument("--sweep", action="store_true", help="try other sizes of chunks as well, in bf16")
    parser.add_argument("--commit", help="written into the rows")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    wrong = errors(device)
    for name, error in wrong.items():
        print(f"{name:40s} {error:.1e}", flush=True)
    # Random features enlarge the errors of rounding, so errors are compared with those of the plain formula.
    for name, error in wrong.items():
        assert error <= 1.2 * wrong[", ".join([*name.split(", ")[:2], "unfused"])], name
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    generator = torch.Generator().manual_seed(0)
    share = min(1.0, options.tokens / 530_000)
    sizes = torch.randint(16, 76, (max(1, int(MOLECULES * share)),), generator=generator).tolist()
    shapes = (
        Shape("physics", [options.tokens], options.heads, options.head_dim),
        Shape("pcqm4mv2", sizes, 32, 24),
    )
    rows, swept = [], []
    for shape in shapes:
        for dtype in (torch.float32, torch.bfloat16):
            rows += measure(shape, device, dtype, systems(device, shape))
            swept += sweep(shape, device, dtype) if options.sweep and dtype == torch.bfloat16 else []
    rows = [row | {"tf32": options.tf32, "commit": options.commit} for row in rows]
    if options.out:
        result = {"torch": torch.__version__, "errors": wrong, "rows": rows, "sweep": swept}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    for row in swept + rows:
        peak = "      -" if row["memory_gib"] is None else f"{row['memory_gib']:7.2f}"
        by = [row[f"{name}_ratio_to_unfused"] for name in ("time", "memory", "kept")]
        ratios = " ".join("    -" if x is None else f"{x:5.2f}" for x in by)
        print(
            f"{row['shape'][:9]:9s} {row['dtype']:13s} {row['system']:22s} {row['milliseconds']:9.2f} ms"
            f" peak {peak} GiB, kept {row['kept_gib']:6.2f} GiB; unfused / this in time, peak, kept: {ratios}"
        )


if __name__ == "__main__":
    main()
