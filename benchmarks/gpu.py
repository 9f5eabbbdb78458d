"""One GPU: are its paths right? Errors against float64 on the CPU; ``tokengt bench --device cuda`` has the speed.

    python benchmarks/gpu.py --out errors.json

The molecules are drawn with the sizes of PCQM4Mv2, so that the machine needs no RDKit and no data.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tokengt import EncoderConfig, FavorConfig, GraphBatch, SoftmaxConfig, TokenGT, TokenGTConfig
from tokengt.attention import draw_projection, favor_attention, softmax_attention
from tokengt.bench.shapes import make_sample
from tokengt.models.tokengt.identifiers import identifiers_of_kind, identify
from tokengt.presets import molecule_tokens
from tokengt.ragged import Segments

MOLECULES, FEW = 2000, 64
GPU = torch.device("cuda")


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
        return [out.detach(), *torch.autograd.grad(out, inputs, weights.to(device, dtype))]

    for name, call in {"softmax": softmax, "favor": favor}.items():
        reference = run(call, torch.float64, torch.device("cpu"), segments)
        for dtype in (torch.float32, torch.bfloat16):
            results = run(call, dtype, GPU, segments.to(GPU))
            errors[f"{name} {str(dtype)[6:]}"] = max(map(relative, results, reference))
    return errors


def check_model(batch: GraphBatch) -> dict[str, float]:
    """A small model: GPU against CPU predictions, identifiers included."""
    errors = {}
    few = batch.select(torch.arange(FEW))
    for kind in ("laplacian", "orf", "near_orthonormal"):
        for attention in (SoftmaxConfig(), FavorConfig()):
            torch.manual_seed(0)
            encoder = EncoderConfig(2, 4, attention=attention)
            config = TokenGTConfig(64, molecule_tokens(), identifiers_of_kind(kind, 16), encoder)  # type: ignore[arg-type]
            model = TokenGT(config).eval()
            exact = model.double()(few).detach()
            outputs = model.float().to(GPU)(few.to(GPU)).detach()
            errors[f"model {kind} {attention.kind}"] = relative(outputs, exact)
    for kind in ("laplacian", "orf"):
        cpu, gpu = (identify(where, identifiers_of_kind(kind, 16)) for where in (batch, batch.to(GPU)))  # type: ignore[arg-type]
        assert cpu is not None
        assert gpu is not None
        errors[f"ids {kind}, largest difference"] = float((cpu.nodes - gpu.nodes.cpu()).abs().max())
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    errors = check_kernels() | check_model(make_sample("pcqm4mv2", MOLECULES).graphs)
    for name, error in errors.items():
        print(f"{name:40s} {error:.2e}")
    if options.out:
        options.out.write_text(json.dumps({"torch": torch.__version__, "errors": errors}, indent=1) + "\n")


if __name__ == "__main__":
    main()
