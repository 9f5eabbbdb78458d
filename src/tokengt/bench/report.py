"""Rows of a benchmark: what a measurement is, how it is kept, how a person reads it."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokengt.bench.real_report import RealRow
from tokengt.files import write_whole

# Rows that agree in these fields are the same measurement: a new row replaces an old one.
_IDENTITY = (
    *("shape", "device", "system", "phase", "layout", "dtype", "dropout"),
    *("ids", "attention", "model", "batch", "compiled", "cuda_graphs", "threads", "scale", "epochs", "options"),
)


@dataclass(frozen=True)
class BenchRow:
    """One system in one phase.

    Args:
        shape: the data set whose sizes the graphs had.
        device: the GPU's name, or "cpu".
        system: "tokengt" or "padded".
        phase: "train" or "infer"; those of real commands are :class:`tokengt.bench.RealRow`.
        layout: "directed" or "undirected".
        dtype: of matrix products.
        dropout: of attention weights, in training.
        graphs_per_s: median over the rounds; None, as all that is measured, where the system ``failed``.
        tokens_per_s: real tokens, padding not counted.
        peak_share: matrix products that the model needs, per second, as a share of ``peak_tflops``.
        memory_gib: the GPU's memory at its fullest, the other system's weights not counted, for replayed steps that of
            the warm-up as well; None on a CPU.
        ratio_to_padded: speed as a multiple of the padded reference's, median over the rounds; None where that failed.
        commit: of the source.
        ids: node identifiers.
        attention: kind and backend.
        model: layers x width, heads.
        batch: graphs per step.
        scale: of the graph's size ("physics").
        compiled: through ``torch.compile``.
        cuda_graphs: recorded and replayed.
        compile_seconds: what the first call took longer than later ones; None when nothing is compiled.
        recompilations: graphs compiled while the clock ran; None when nothing is compiled.
        synchronisations: how often a step makes the host wait for the GPU; None on a CPU.
        seconds: of one batch.
        peak_tflops: measured in the same run.
        threads: of torch on the CPU.
        torch: its version.
        breakdown: milliseconds of one batch by kind; None for the reference.
        failed: why the reference could not be timed: its memory did not suffice; None where it could.
    """

    shape: str
    device: str
    system: str
    phase: str
    layout: str
    dtype: str
    dropout: float
    graphs_per_s: float | None
    tokens_per_s: float | None
    peak_share: float | None
    memory_gib: float | None
    ratio_to_padded: float | None
    commit: str | None
    ids: str
    attention: str
    model: str
    batch: int
    scale: float
    compiled: bool
    cuda_graphs: bool
    compile_seconds: float | None
    recompilations: int | None
    synchronisations: int | None
    seconds: float | None
    peak_tflops: float
    threads: int
    torch: str
    breakdown: dict[str, float] | None
    failed: str | None = None


def to_json(rows: Sequence[BenchRow | RealRow]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def results_file(folder: Path, shape: str, device: str) -> Path:
    return folder / f"bench-{shape}-{device}.json"


def kept_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, none if there is none.

    Raises:
        ValueError: the file holds something else, or there can be none.
    """
    home = next(folder for folder in path.absolute().parents if folder.exists())
    if not home.is_dir() or not os.access(home, os.W_OK):
        raise ValueError(f"{home} cannot be written to; give another --out")
    if not path.exists():
        return []
    try:
        rows = json.loads(path.read_bytes())
    except ValueError:
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} holds no list of benchmark rows; move it away or give another --out")
    return rows


def keep_rows(path: Path, rows: Sequence[BenchRow | RealRow]) -> None:
    """Add rows to a file of rows, in place of those of the same measurement; the file is written whole."""
    old, new = kept_rows(path), to_json(rows)
    fresh = {_identity(row) for row in new}
    kept = [row for row in old if _identity(row) not in fresh]
    write_whole(path, (json.dumps(kept + new, indent=1) + "\n").encode())


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in _IDENTITY)


def lines(rows: Sequence[BenchRow]) -> list[str]:
    """What a person reads: the setting, one line per row, then where the time goes."""
    first = rows[0]
    scale = "" if first.scale == 1 else f" x {first.scale:g}"
    compiled = ", compiled" if first.compiled else ""
    compiled += ", training replayed" if any(row.cuda_graphs for row in rows) else ""
    text = [
        f"{first.shape}{scale}, {first.layout}, {first.ids} identifiers, batch {first.batch:,}, {first.model}, "
        f"{first.attention} attention, {first.dtype}{compiled}",
        f"{first.device}, torch {first.torch}, {first.threads} threads; a large matrix product does "
        f"{first.peak_tflops:.3g} TFLOP/s here",
        "",
        f"{'phase':6} {'system':8} {'graphs/s':>10} {'tokens/s':>12} {'of peak':>8} {'memory':>10} {'to padded':>10}",
    ]
    text += [_row_line(row) for row in rows]
    for row in rows:
        if row.breakdown is not None:
            text += ["", *_breakdown_lines(row, row.breakdown)]
    return text


def _row_line(row: BenchRow) -> str:
    if row.graphs_per_s is None or row.tokens_per_s is None or row.peak_share is None:
        return f"{row.phase:6} {row.system:8} {row.failed}"
    memory = "" if row.memory_gib is None else f"{row.memory_gib:.2f} GiB"
    graphs = f"{row.graphs_per_s:,.0f}" if row.graphs_per_s >= 100 else f"{row.graphs_per_s:.3g}"
    ratio = "" if row.ratio_to_padded is None else f"{row.ratio_to_padded:.2f}x"
    return (
        f"{row.phase:6} {row.system:8} {graphs:>10} {row.tokens_per_s:12,.0f} {row.peak_share:8.1%} "
        f"{memory:>10} {ratio:>10}"
    )


def _breakdown_lines(row: BenchRow, parts: dict[str, float]) -> list[str]:
    assert row.seconds is not None, "what was looked into was timed"
    whole = sum(parts.values())
    took = 1e3 * row.seconds
    shown = f"{took:,.0f}" if took >= 1000 else f"{took:.3g}"
    text = [f"{row.system}, {row.phase}: a batch takes {shown} ms; where it goes (profiled):"]
    text += [f"  {name:22} {took:9.2f} ms {took / whole:6.1%}" for name, took in parts.items() if took]
    if row.synchronisations is not None:
        text.append(f"  the host waits for the GPU {row.synchronisations} times a batch")
    if row.compile_seconds is not None:
        text.append(f"  compiled in {row.compile_seconds:.1f} s; {row.recompilations} recompilations while timed")
    return text
