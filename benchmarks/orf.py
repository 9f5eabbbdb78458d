"""Orthogonal random identifiers of a training batch: reflections, against batched QR and eigenvectors, on one device.

    python benchmarks/orf.py --out orf.json          # on a GPU; on a CPU it runs as well

1,024 graphs with the sizes of PCQM4Mv2's molecules (5 to 25 nodes, 14 on average), d_p 64, fresh normals in every draw.
First how far rows are from orthonormal; on a GPU also whether anything waits for the device. ``QR`` is one batched
factorisation per size, in float64. ``eigh`` is one of random symmetric (GOE) matrices, sizes padded to 16 or 32, with
random signs and one step Q + (I - Q Q^T) Q / 2, in float32. ``reflections`` is what training on a GPU uses, in float64.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokengt.draws import GeneratorDraws
from tokengt.models.tokengt.orthogonal import _by_length, _by_qr, _by_reflections
from tokengt.ragged import Segments

GRAPHS, DIM, ROUNDS = 1024, 64, 30


def sizes() -> Tensor:
    """A bell around 14 between 5 and 25, as PCQM4Mv2 has."""
    generator = torch.Generator().manual_seed(0)
    return (14.1 + 2.7 * torch.randn(GRAPHS, generator=generator)).round().clamp(5, 25).long()


def goe(rows: Segments, out: Tensor) -> None:
    for width, members in _by_length(torch.where(rows.host_lengths > 16, 32, 16)):
        index, chosen = rows.take(members)
        place = chosen.ids * width + chosen.positions
        draws = torch.randn(len(members), width, width + 1, device=out.device)
        inside = torch.arange(width, device=out.device) < chosen.lengths[:, None]
        both = inside[:, :, None] & inside[:, None, :]
        matrix = (draws[..., :width] + draws[..., :width].mT) * both
        # A matrix of norm 1 has eigenvalues below 2. Every padded row and column is given the eigenvalue 2, so that the
        # eigenvectors of the padding come last.
        matrix = matrix / matrix.norm(dim=(1, 2), keepdim=True) + torch.diag_embed(2.0 * ~inside)
        q = torch.linalg.eigh(matrix).eigenvectors * both * draws[:, None, :, width].sign()
        q = q + (q - q @ (q.mT @ q)) / 2
        out[:, :width].index_copy_(0, index, q.flatten(0, 1).index_select(0, place).to(out.dtype))


def systems(rows: Segments, device: torch.device) -> dict[str, Callable[[], Tensor]]:
    draws = GeneratorDraws(None, device)

    def drawn(way: Callable[[Tensor, Segments, Tensor], None]) -> Tensor:
        gaussian = draws.normal(rows, DIM, columns=min(DIM, rows.max_length))
        out = gaussian.new_zeros(rows.total, DIM)
        way(gaussian, rows, out)
        return out

    def by_goe() -> Tensor:
        out = torch.zeros(rows.total, DIM, device=device)
        goe(rows, out)
        return out

    return {"QR": lambda: drawn(_by_qr), "eigh": by_goe, "reflections": lambda: drawn(_by_reflections)}


def orthonormality(ids: Tensor, rows: Segments) -> float:
    parts = ids.cpu().split(rows.host_lengths.tolist())
    return max(float((part @ part.T - torch.eye(len(part), dtype=part.dtype)).abs().max()) for part in parts)


def moments(ids: Tensor, rows: Segments) -> str:
    """Of the first entry of all matrices, over their values for Haar matrices."""
    n = rows.host_lengths.double()
    first = ids.cpu().double()[rows.host[:-1], 0]
    second, fourth = (first.square() * n).mean(), (first**4 * n * (n + 2) / 3).mean()
    return (
        f"E q sqrt(n) {float((first * n.sqrt()).mean()):+.2f}, E q^2 n {float(second):.2f}, E q^4 {float(fourth):.2f}"
    )


def waits(call: Callable[[], object]) -> bool:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def measure(device: torch.device) -> list[dict[str, Any]]:
    rows = Segments.from_lengths(sizes(), device)
    calls = systems(rows, device)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    facts = {}
    for name, call in calls.items():
        ids = call()
        facts[name] = {
            "orthonormal_within": orthonormality(ids, rows),
            "moments": moments(ids, rows),
            "waits_for_device": waits(call) if device.type == "cuda" else None,
        }
    for _ in range(ROUNDS):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            call()
            wait()
            seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    return [
        {
            "benchmark": "orf",
            "shape": f"{GRAPHS} graphs of 5 to 25 nodes, {rows.total} in all, d_p {DIM}",
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "system": name,
            "phase": "train",
            "graphs_per_s": GRAPHS / median[name],
            "milliseconds": 1e3 * median[name],
            "ratio_to_qr": median["QR"] / median[name],
            **facts[name],
        }
        for name in calls
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="written into the rows")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [row | {"commit": options.commit} for row in measure(torch.device(options.device))]
    if options.out:
        options.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")
    print(rows[0]["shape"], "on", rows[0]["device"])
    for row in rows:
        print(
            f"{row['system']:12s} {row['milliseconds']:8.3f} ms, {row['ratio_to_qr']:6.2f}x QR's speed, orthonormal"
            f" within {row['orthonormal_within']:.0e}, waits {row['waits_for_device']}; {row['moments']}"
        )


if __name__ == "__main__":
    main()
