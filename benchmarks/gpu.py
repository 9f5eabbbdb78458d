"""One GPU: are the GPU paths right, and how fast is the paper's 12 x 768 model as it stands?

    python benchmarks/gpu.py --data carry/pcqm.safetensors --out results.json

``--data`` holds packed molecules (written by ``--pack`` on a machine with RDKit). Checks compare with float64 on the
CPU. A training step is identifiers, tokens, forward, L1 loss, backward, clipping and fused AdamW, in bf16 autocast; the
padded reference is the same weights over a batch padded to its longest graph, timed in the same run.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from molecules import read_molecules
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tokengt import EncoderConfig, FavorConfig, Graph, GraphBatch, SoftmaxConfig, TokenGT, TokenGTConfig
from tokengt.attention import draw_projection, favor_attention, softmax_attention
from tokengt.bench.padded import PaddedTokenGT
from tokengt.models.tokengt.identifiers import identifiers_of_kind, identify
from tokengt.presets import molecule_tokens, regression
from tokengt.ragged import Segments

GRAPHS, STEPS, WARMUP = 1024, 12, 4
GPU = torch.device("cuda")


def pack(path: Path) -> None:
    batch = GraphBatch.collate(read_molecules()[1])
    assert batch.node_features is not None
    assert batch.edge_features is not None
    save_file(
        {
            "node_features": batch.node_features.to(torch.uint8),
            "edge_features": batch.edge_features.to(torch.uint8),
            "edge_index": batch.edge_index.int(),
            "node_counts": batch.nodes.host_lengths,
            "edge_counts": batch.edges.host_lengths,
        },
        path,
    )


def unpack(path: Path) -> GraphBatch:
    data = load_file(path)
    nodes, edges = (Segments.from_lengths(data[name]) for name in ("node_counts", "edge_counts"))
    index = data["edge_index"].long() - nodes.starts[edges.ids]
    features = zip(
        data["node_features"].long().split(data["node_counts"].tolist()),
        index.split(data["edge_counts"].tolist(), 1),
        data["edge_features"].long().split(data["edge_counts"].tolist()),
        strict=True,
    )
    return GraphBatch.collate([Graph(*parts) for parts in features])


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found.double().cpu() - exact).norm() / exact.norm())


def check_kernels() -> dict[str, float]:
    """Relative errors of outputs and gradients against float64 on the CPU, fresh inputs."""
    errors = {}
    segments = Segments.from_lengths(torch.randint(1, 90, (300,)))
    exact = [torch.randn(segments.total, 4, 24, dtype=torch.float64) for _ in range(3)]
    weights = torch.randn(segments.total, 4, 24, dtype=torch.float64)
    projection = draw_projection(76, 24)

    def softmax(*qkv: Tensor, segments: Segments) -> Tensor:
        return softmax_attention(*qkv, segments)

    def favor(*qkv: Tensor, segments: Segments) -> Tensor:
        return favor_attention(*qkv, segments, projection=projection.to(qkv[0].device))

    def run(call: Callable[..., Tensor], dtype: torch.dtype, device: torch.device, where: Segments) -> list[Tensor]:
        inputs = [x.to(device, dtype, copy=True).requires_grad_() for x in exact]
        out = call(*inputs, segments=where)
        (out * weights.to(device, dtype)).sum().backward()
        gradients = [x.grad for x in inputs if x.grad is not None]
        assert len(gradients) == 3
        return [out.detach(), *gradients]

    for name, call in {"softmax": softmax, "favor": favor}.items():
        reference = run(call, torch.float64, torch.device("cpu"), segments)
        for dtype in (torch.float32, torch.bfloat16):
            found = run(call, dtype, GPU, segments.to(GPU))
            errors[f"{name} {str(dtype)[6:]}"] = max(map(relative, found, reference))
    return errors


def check_model(batch: GraphBatch) -> dict[str, float]:
    """A small model: GPU against CPU predictions, identifiers included."""
    errors = {}
    few = batch.select(torch.arange(64))
    for kind in ("laplacian", "orf", "near_orthonormal"):
        for attention in (SoftmaxConfig(), FavorConfig()):
            torch.manual_seed(0)
            encoder = EncoderConfig(2, 4, attention=attention)
            ids = identifiers_of_kind(kind, 16)  # type: ignore[arg-type]
            model = TokenGT(TokenGTConfig(64, molecule_tokens(), ids, encoder)).eval()
            exact = model.double()(few).detach()
            found = model.float().to(GPU)(few.to(GPU)).detach()
            errors[f"model {kind} {attention}"] = relative(found, exact)
    for kind in ("laplacian", "orf"):
        cpu, gpu = (identify(where, identifiers_of_kind(kind, 16)) for where in (batch, batch.to(GPU)))  # type: ignore[arg-type]
        assert cpu is not None
        assert gpu is not None
        errors[f"ids {kind}, largest difference"] = float((cpu.nodes - gpu.nodes.cpu()).abs().max())
    return errors


def timed(call: Callable[[], None]) -> tuple[float, float]:
    """Median seconds of a call, and GiB at its peak."""
    torch.cuda.reset_peak_memory_stats()
    taken = []
    for _ in range(WARMUP + STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[WARMUP:]), torch.cuda.max_memory_allocated() / 2**30


def training_step(system: nn.Module, batch: GraphBatch) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(system.parameters(), lr=1e-5, fused=True)
    target = torch.randn(batch.num_graphs, 1, device=GPU)
    system.train()

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.l1_loss(system(batch).float(), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(system.parameters(), 5.0)
        optimizer.step()

    return step


def inference(system: nn.Module, batch: GraphBatch) -> Callable[[], None]:
    system.eval()

    @torch.no_grad()
    def infer() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            system(batch)

    return infer


def measure(batch: GraphBatch) -> list[dict[str, Any]]:
    chosen = torch.randint(0, batch.num_graphs, (GRAPHS,), generator=torch.Generator().manual_seed(0))
    rows = []
    for dropout in (0.0, 0.1):
        for ids in ("laplacian", "orf") if dropout == 0 else ("laplacian",):
            config = regression(ids)  # type: ignore[arg-type]
            encoder = replace(config.encoder, attention=SoftmaxConfig(dropout=dropout), drop_path=0.0)
            model = TokenGT(replace(config, encoder=encoder)).to(GPU)
            data = batch.select(chosen).to(GPU)
            systems: dict[str, nn.Module] = {"padded": PaddedTokenGT(model), "packed": model}
            if ids == "laplacian":
                systems["packed compiled"] = torch.compile(model)  # type: ignore[assignment]
            for phase, make in (("train", training_step), ("infer", inference)):
                if phase == "infer" and dropout:
                    continue
                seconds = {}
                for name, system in systems.items():
                    seconds[name], memory = timed(make(system, data))
                    rows.append(
                        {
                            "benchmark": "gpu_step",
                            "shape": f"regression preset, {GRAPHS} PCQM4Mv2 molecules",
                            "device": torch.cuda.get_device_name(),
                            "system": f"{name}, {ids}",
                            "phase": phase,
                            "layout": "directed",
                            "dtype": "bf16 autocast",
                            "dropout": dropout,
                            "graphs_per_s": GRAPHS / seconds[name],
                            "memory_gib": memory,
                            "ratio_to_padded": seconds["padded"] / seconds[name],
                        }
                    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, help="write the packed molecules here and stop")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.pack:
        options.pack.parent.mkdir(parents=True, exist_ok=True)
        pack(options.pack)
        return
    batch = unpack(options.data)
    errors = check_kernels() | check_model(batch)
    for name, error in errors.items():
        print(f"{name:40s} {error:.2e}")
    rows = measure(batch)
    for row in rows:
        print(
            f"{row['phase']:6s} {row['system']:28s} dropout {row['dropout']:.1f} {row['graphs_per_s']:9.0f} graphs/s "
            f"{row['memory_gib']:5.1f} GiB {row['ratio_to_padded']:5.2f}x padded"
        )
    options.out.write_text(json.dumps({"torch": torch.__version__, "errors": errors, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
