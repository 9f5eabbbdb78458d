"""One GPU: up to which length of sequences our softmax kernels beat PyTorch's, by the width of heads.

    python benchmarks/crossing.py --out benchmarks/results/crossing-h200.json

Attention of one layer, from the rows that one linear layer writes (bf16, 768 numbers each for queries, keys and
values) to the output, or on to the gradient of those rows. The number of tokens is the same at every length. Without
dropout the rival is flash attention over packed rows (``varlen_attn``) where it takes heads of that width, and SDPA
over padded buckets elsewhere; with dropout it is the buckets, for ``varlen_attn`` has none. Sequences of one length
flatter the buckets, which then have no padding; so the same is timed with lengths between half and three halves of the
mean, as molecules have them, and the constants are taken from these.

Widths that were measured before stay in the file, so that they can be measured in several calls.

A crossing is the *usual length* (the mean over tokens, by which ``tokengt.attention.plan`` decides) where ours stop
being faster. The script ends with the two lines that ``attention/plan.py`` should have.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from gpu_clock import milliseconds, replayed
from torch import Tensor

from tokengt.attention import softmax_attention
from tokengt.attention.plan import LONGEST_TILED, SoftmaxBackend, takes_varlen
from tokengt.experiments.tables import source_commit
from tokengt.kernels.attend import tiled_attention
from tokengt.kernels.heads import Heads
from tokengt.kernels.tiles import choose_tiling, make_tiles, padded_width
from tokengt.ragged import Segments

LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
WIDTHS = (12, 24, 32, 64)
TOKENS, ROW, DROPOUT, REPEATS = 48_000, 768, 0.1, 30
SPREADS = (0.0, 0.5)
PASSES = ("forward", "forward and backward")
STEP = 32  # The constants are multiples of this: a finer number would say more than was measured.


def lengths_of(mean: int, tokens: int, spread: float) -> list[int]:
    """As many lengths about a mean as make so many tokens, evenly between (1 - spread) and (1 + spread) times it."""
    count = max(1, round(tokens / mean))
    shares = torch.linspace(1 - spread, 1 + spread, count) if count > 1 else torch.ones(1)
    # In an order that puts no long one beside another, as a shuffled batch has them.
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return [max(1, round(mean * share)) for share in shares[order].tolist()]


def usual_length(segments: Segments) -> float:
    lengths = segments.host_lengths.double()
    return float(lengths.square().sum() / lengths.sum())


def rivals(heads: Heads, dropout: float, device: torch.device) -> list[SoftmaxBackend]:
    """Ours, and those that would attend in their place; the buckets always, to see what they are worth."""
    varlen = device.type == "cuda" and takes_varlen("auto", heads, torch.bfloat16, device, dropout)
    return ["triton", *(["varlen"] if varlen else []), "bucketed"]


def layer(
    segments: Segments, heads: Heads, backend: SoftmaxBackend, dropout: float, backward: bool
) -> Callable[[], object]:
    """One layer's attention as a call; what is made once per batch, as in a model, is made before."""
    device = segments.offsets.device
    qkv = torch.randn(segments.total, heads.width, device=device).bfloat16().requires_grad_(backward)
    grad = torch.randn(segments.total, heads.count, heads.value, device=device).bfloat16()
    tiles = make_tiles(segments, choose_tiling(heads.key, heads.value, 2))

    def attend() -> Tensor:
        if backend == "triton":
            return tiled_attention(qkv, tiles, heads, dropout=dropout)
        return softmax_attention(*heads.split(qkv), segments, dropout=dropout, backend=backend)

    def call() -> object:
        if backward:
            return torch.autograd.grad(attend(), qkv, grad)
        with torch.no_grad():
            return attend()

    return call


def timed(call: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, bool]:
    """The median in milliseconds, and whether the launches were recorded: then the host is not in the way.

    On a CPU, where the way through is tried in tests, one call is timed, and its time means nothing.
    """
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start), False
    call()
    try:
        recorded = replayed(call)
    except RuntimeError as error:
        print(f"  not recorded: {str(error).splitlines()[0]}", flush=True)
        torch.cuda.synchronize()
        return milliseconds(call, repeats)[0], False
    return milliseconds(recorded, repeats)[0], True


def measure(
    lengths: Sequence[int], widths: Sequence[int], tokens: int, repeats: int, device: torch.device, row: int = ROW
) -> list[dict[str, Any]]:
    """Every length, width, dropout, spread and pass; as many heads as fit into rows of so many numbers."""
    rows = []
    for width, dropout, spread in product(widths, (0.0, DROPOUT), SPREADS):
        heads = Heads(row // width, width, width)
        for mean in lengths:
            segments = Segments.from_lengths(torch.tensor(lengths_of(mean, tokens, spread)), device)
            for backward in (False, True):
                found: dict[str, Any] = {
                    "width": width,
                    "heads": heads.count,
                    "dropout": dropout,
                    "spread": spread,
                    "length": mean,
                    "usual_length": usual_length(segments),
                    "tokens": segments.total,
                    "pass": PASSES[backward],
                    "milliseconds": {},
                    "recorded": {},
                }
                for backend in rivals(heads, dropout, device):
                    took, recorded = timed(layer(segments, heads, backend, dropout, backward), device, repeats)
                    found["milliseconds"][backend], found["recorded"][backend] = took, recorded
                rows.append(found)
                shown = ", ".join(f"{name} {took:.3f}" for name, took in found["milliseconds"].items())
                print(
                    f"width {width}, dropout {dropout}, spread {spread}, length {mean}, {PASSES[backward]}: {shown} ms",
                    flush=True,
                )
    return rows


def in_their_place(times: dict[str, float]) -> float:
    """What PyTorch takes where our kernels do not apply: packed rows where it can have them, else buckets."""
    return times.get("varlen", times["bucketed"])


def crossing(rows: Sequence[dict[str, Any]]) -> float:
    """The usual length where ours stop being faster, between two lengths by the logarithms of length and ratio.

    0 where they never are; infinity where they are at the greatest length. A rival that is faster in between, and not
    beyond, is taken for noise.
    """
    points = sorted(
        (row["usual_length"], math.log(row["milliseconds"]["triton"] / in_their_place(row["milliseconds"])))
        for row in rows
    )
    faster = [place for place, (_, ratio) in enumerate(points) if ratio <= 0]
    if not faster:
        return 0.0
    last = faster[-1]
    if last == len(points) - 1:
        return math.inf
    (low, below), (high, above) = points[last], points[last + 1]
    share = -below / (above - below)
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))


def crossings(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each width, dropout, spread and pass, in that order; None where ours are faster throughout."""
    keys = ("width", "dropout", "spread", "pass")
    found = []
    for values in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        where = crossing([row for row in rows if tuple(row[key] for key in keys) == values])
        found.append(dict(zip(keys, values, strict=True)) | {"crossing": None if math.isinf(where) else where})
    return found


def constants(found: Sequence[dict[str, Any]], longest: float) -> dict[str, dict[int, int]]:
    """The two tables of ``attention/plan.py``: training decides, and of two widths with one rounded width the lesser.

    Where ours are faster throughout it is ``longest``, the greatest usual length that was timed. A width that was not
    timed keeps its number.
    """
    tables = {}
    for name, dropout in (("LONGEST_TILED", 0.0), ("LONGEST_TILED_DROPPING", DROPOUT)):
        table = dict(LONGEST_TILED)
        chosen: dict[int, float] = {}
        for row in found:
            if (row["dropout"], row["spread"], row["pass"]) == (dropout, SPREADS[-1], PASSES[1]):
                width = padded_width(row["width"])
                where = longest if row["crossing"] is None else row["crossing"]
                chosen[width] = min(chosen.get(width, math.inf), where)
        tables[name] = table | {width: int(where // STEP) * STEP for width, where in chosen.items()}
    return tables


def table(found: Sequence[dict[str, Any]]) -> str:
    """The crossings in Markdown: one line per width, one column per dropout, spread and pass."""
    columns = list(dict.fromkeys((row["dropout"], row["spread"], row["pass"]) for row in found))
    heads = [f"dropout {d}, lengths +-{s:.0%}, {p}" for d, s, p in columns]
    lines = ["| Width of heads | " + " | ".join(heads) + " |", "|---" * (1 + len(columns)) + "|"]
    for width in dict.fromkeys(row["width"] for row in found):
        cells = {
            (row["dropout"], row["spread"], row["pass"]): row["crossing"] for row in found if row["width"] == width
        }
        lines.append(f"| {width} | " + " | ".join(_cell(cells[column]) for column in columns) + " |")
    return "\n".join(lines)


def _cell(where: float | None) -> str:
    return "ours throughout" if where is None else "never ours" if where == 0 else f"{where:.0f}"


def kept_rows(file: Path, measured: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of an earlier call, but for the widths that are measured now."""
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    return [row for row in rows if row["width"] not in measured]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    device = torch.device("cuda")
    rows = kept_rows(options.out, options.widths)
    for width in options.widths:
        rows += measure(options.lengths, [width], options.tokens, options.repeats, device)
        found = crossings(rows)
        chosen = constants(found, max(row["usual_length"] for row in rows))
        content = {
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "commit": source_commit(),
            "crossings": found,
            "constants": chosen,
            "rows": rows,
        }
        # Written after every width: a call that runs out of time has something to show.
        options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"\n{table(found)}\n")
    for name, numbers in chosen.items():
        print(f"{name} = {numbers}")


if __name__ == "__main__":
    main()
