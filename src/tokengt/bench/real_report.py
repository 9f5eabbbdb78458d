"""Rows of real runs: what a command took on a person's own data, kept like all other rows, and read by that person."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RealRow:
    """One command on one data set. The first thirteen names are those of every row (:class:`tokengt.bench.BenchRow`).

    Args:
        shape: the name of the data.
        device: the GPU's name, or "cpu".
        system: the kind of model, such as "tokengt".
        phase: "real-train" or "real-predict".
        layout: "directed" or "undirected"; None for a model without tokens.
        dtype: of matrix products.
        dropout: of attention weights, in training; None for a model without attention.
        graphs_per_s: of training: training graphs per second after the first epoch, feed, validation and checkpoints
            included. Of prediction: all graphs over all seconds of the command.
        tokens_per_s: the same in tokens; for a model without tokens, in whatever its graphs cost it.
        peak_share: matrix products that the model needs for these graphs, per second, as a share of ``peak_tflops``;
            None where they cannot be counted.
        memory_gib: what the command took of the GPU at its fullest, torch's reserve and CUDA's own included; None on a
            CPU.
        ratio_to_padded: None; the padded way has no command.
        commit: of the source.
        bench_graphs_per_s: the same model's step (or inference) on the same graphs in the same batches, by the clock of
            the bench: no start, no validation, no checkpoints, no reading and writing of files.
        share_of_bench: ``graphs_per_s`` as a share of it.
        seconds: of the whole command.
        start_seconds: until training began; None of prediction, as the next three.
        first_epoch_seconds: from the start of the command to the end of the first epoch.
        epoch_seconds: of one epoch after the first.
        end_seconds: from the last epoch's end to the end of the command: test part, pictures, model card.
        epochs: how many there were; 0 of prediction.
        graphs: training graphs, or graphs predicted.
        batch: graphs per step.
        model: in words.
        options: what the command was given besides data and device.
        host_gib: memory of the command's largest process at its fullest.
        peak_tflops: measured in the same call.
        threads: of torch on the CPU.
        torch: its version.
    """

    shape: str
    device: str
    system: str
    phase: str
    layout: str | None
    dtype: str
    dropout: float | None
    graphs_per_s: float
    tokens_per_s: float
    peak_share: float | None
    memory_gib: float | None
    ratio_to_padded: float | None
    commit: str | None
    bench_graphs_per_s: float
    share_of_bench: float
    seconds: float
    start_seconds: float | None
    first_epoch_seconds: float | None
    epoch_seconds: float | None
    end_seconds: float | None
    epochs: int
    graphs: int
    batch: int
    model: str
    options: str
    host_gib: float
    peak_tflops: float
    threads: int
    torch: str


def real_lines(rows: Sequence[RealRow]) -> list[str]:
    """What a person reads: the setting, one line per row beside the bench's own rate, and where the seconds went."""
    first = rows[0]
    text = [
        f"{first.shape}, {first.model}, batch {first.batch:,}, {first.dtype}"
        + (f"; options: {first.options}" if first.options else ""),
        f"{first.device}, torch {first.torch}, {first.threads} threads; a large matrix product does "
        f"{first.peak_tflops:.3g} TFLOP/s here",
        "",
        f"{'phase':12} {'graphs/s':>10} {'bench':>10} {'of bench':>9} {'tokens/s':>12} {'of peak':>8} {'GPU':>10} "
        f"{'host':>10}",
    ]
    text += [_line(row) for row in rows]
    return [*text, "", *(_story(row) for row in rows)]


def _line(row: RealRow) -> str:
    peak = "" if row.peak_share is None else f"{row.peak_share:.1%}"
    gpu = "" if row.memory_gib is None else f"{row.memory_gib:.2f} GiB"
    return (
        f"{row.phase:12} {_rate(row.graphs_per_s):>10} {_rate(row.bench_graphs_per_s):>10} {row.share_of_bench:9.1%} "
        f"{row.tokens_per_s:12,.0f} {peak:>8} {gpu:>10} {f'{row.host_gib:.2f} GiB':>10}"
    )


def _rate(graphs_per_s: float) -> str:
    return f"{graphs_per_s:,.0f}" if graphs_per_s >= 100 else f"{graphs_per_s:.3g}"


def _story(row: RealRow) -> str:
    """The seconds of a command, from its start to its end."""
    if row.start_seconds is None or row.first_epoch_seconds is None or row.epoch_seconds is None:
        return f"tokengt predict: {row.seconds:.1f} s from start to end for {row.graphs:,} graphs"
    first, more = row.first_epoch_seconds - row.start_seconds, ""
    if row.epochs > 1:
        more = f", {row.epochs - 1} more of {row.epoch_seconds:.3g} s each"
    return (
        f"tokengt train: {row.seconds:.1f} s from start to end for {row.graphs:,} training graphs: "
        f"{row.start_seconds:.1f} s until training began, {first:.3g} s the first epoch (done after "
        f"{row.first_epoch_seconds:.1f} s){more}, "
        f"{row.end_seconds:.1f} s for results"
    )
