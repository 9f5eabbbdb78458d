"""One measurement: set up, check, warm up, time in turns, look inside."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tokengt.attention import SoftmaxConfig
from tokengt.bench.config import BenchConfig, Phase
from tokengt.bench.counting import TRAIN_FACTOR, forward_flop, measured_peak, wait
from tokengt.bench.memory import is_full, let_go, sentence
from tokengt.bench.profiling import breakdown, compiled_graphs, synchronisations
from tokengt.bench.report import BenchRow
from tokengt.bench.systems import (
    Packed,
    Padded,
    Setup,
    System,
    batches,
    check_same,
    make_setup,
    make_systems,
    requests,
)
from tokengt.bench.timing import Round, Timing, allocated, interleaved, median_ratio, peak_bytes, reset_peak
from tokengt.training.processes import without_precision_advice
from tokengt.training.tables import device_name, source_commit

_INFER_WARMUP = 2
_LOOKED_INTO = 5


@dataclass(frozen=True, eq=False)
class _Measured:
    """One phase of both systems; of ours alone where the memory did not suffice for the padded one."""

    timings: Mapping[str, Timing]
    first_seconds: Mapping[str, float]
    recompilations: int | None
    synchronisations: int | None
    replayed: bool
    breakdown: dict[str, float]
    failed: str | None


class _PaddedIsFull(Exception):
    """The memory did not suffice for the padded reference. For ours, the error goes on to whoever asked."""


@without_precision_advice()
def bench(config: BenchConfig, say: Callable[[str], None] = lambda line: None) -> list[BenchRow]:
    """Time training, inference or both beside the padded reference; two rows per phase.

    A reference that memory does not suffice for has rows too, which say so; ours is then timed without it.

    Raises:
        ValueError: a wish that cannot be, or outputs of the two systems that differ.
    """
    say(f"making graphs of the shape of {config.shape}")
    with torch.random.fork_rng([0] if config.where.resolved == "cuda" else []):
        setup = make_setup(config)
        before = allocated(torch.device(config.where.resolved))
        systems = make_systems(setup)
        device = systems[0].device
        say("checking that packed and padded outputs agree")
        first, failed = _compared(setup, systems)
        peak = measured_peak(device)
        # Each system holds a copy of the weights, so each is charged half; the data they share is small beside them.
        held = dict.fromkeys((system.name for system in systems), (allocated(device) - before) // 2)
        rows = []
        # Inference comes first: training leaves gradients and moments behind, which would count as memory of inference.
        for phase in sorted(config.phases):
            measured = _measure(setup, systems, phase, held, say, failed)
            failed = measured.failed
            # Inference was compiled when the outputs were compared, so its first call was timed there.
            firsts = first if phase == "infer" else measured.first_seconds
            rows += [_row(setup, system, phase, measured, firsts.get(system.name), peak, device) for system in systems]
    return rows


def _compared(setup: Setup, systems: tuple[Packed, Padded]) -> tuple[dict[str, float], str | None]:
    """Seconds of each one's first inference, and why the padded one has none, if memory did not suffice for it."""
    own, padded = systems
    try:
        return check_same(setup, systems), None
    except (RuntimeError, MemoryError) as error:
        if not is_full(error):
            raise
    let_go(padded.model, own.device)
    failed = sentence(own.device)
    start = time.perf_counter()
    own.infer(next(requests(setup))[:1])  # Where memory does not suffice for ours either, this says so.
    return {own.name: time.perf_counter() - start}, failed


def _measure(
    setup: Setup,
    systems: tuple[Packed, Padded],
    phase: Phase,
    held: dict[str, int],
    say: Callable[[str], None],
    failed: str | None,
) -> _Measured:
    own, padded = systems
    if failed is None:
        try:
            return _timed(setup, systems, phase, held, say, None)
        except _PaddedIsFull:
            pass
        let_go(padded.model, own.device)
        failed = sentence(own.device)
    say(f"{phase}: the padded reference is left out: {failed}")
    return _timed(setup, (own,), phase, held, say, failed)


def _timed(
    setup: Setup,
    systems: Sequence[System],
    phase: Phase,
    held: dict[str, int],
    say: Callable[[str], None],
    failed: str | None,
) -> _Measured:
    config = setup.config
    own = systems[0]
    assert isinstance(own, Packed)
    device = own.device
    feeds = {system.name: (batches if phase == "train" else requests)(setup) for system in systems}
    first, warm = {}, {}
    for system in systems:
        say(f"{phase}: warming up {system.name}{' (compiling)' if config.compile else ''}")
        before, others = allocated(device), sum(held.values()) - held[system.name]
        with _charged(system):
            first[system.name], peak = warm_up(system, phase, feeds[system.name], config, device)
        held[system.name] += allocated(device) - before
        warm[system.name] = peak - others
    say(f"{phase}: timing {config.rounds} round{'s' if config.rounds > 1 else ''} of each")
    graphs = compiled_graphs() if config.compile else 0
    rounds = {system.name: one_round(setup, system, phase, feeds[system.name]) for system in systems}
    replays = own.replays
    timings = interleaved(rounds, config.rounds, device, held)
    replayed = own.replays > replays
    if replayed:
        # A replayed step works in memory that its recording reserved, which no longer counts as allocated. So the peak
        # of the warm-up, which made the recordings, is the least that the step needs.
        timings[own.name] = timings[own.name].at_least(warm[own.name])
    recompiled = compiled_graphs() - graphs if config.compile else None
    say(f"{phase}: looking where the time goes")
    once, calls = _one(setup, own, phase, feeds[own.name])
    parts = breakdown(once, device, calls * config.graphs_a_step / timings[own.name].graphs_per_s)
    waits = synchronisations(once, device)
    return _Measured(
        timings,
        first,
        recompiled,
        None if waits is None else math.ceil(waits / calls),
        replayed,
        {kind: took / calls for kind, took in parts.items()},
        failed,
    )


@contextmanager
def _charged(system: System) -> Iterator[None]:
    """A full memory is told from other errors while the padded reference runs."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(system, Packed) or not is_full(error):
            raise
        raise _PaddedIsFull from error


def warm_up(
    system: System, phase: Phase, feed: Iterator[Any], config: BenchConfig, device: torch.device
) -> tuple[float, int]:
    """Seconds of the first call, which compiles; the most bytes that were allocated."""
    call = (lambda places: system.take([places])) if phase == "train" else system.infer
    reset_peak(device)
    start = time.perf_counter()
    call(next(feed))
    wait(device)
    first = time.perf_counter() - start
    # Only ours has steps to record; thirty padded steps of long graphs would take longer than what is timed.
    train = config.warmup_steps if isinstance(system, Packed) else config.warmup
    for _ in range((train if phase == "train" else _INFER_WARMUP) - 1):
        call(next(feed))
    wait(device)
    return first, peak_bytes(device)


def one_round(setup: Setup, system: System, phase: Phase, feed: Iterator[Any]) -> Round:
    """The steps of a round, or as many batches of inference."""

    def call() -> tuple[int, int]:
        chosen = [next(feed) for _ in range(setup.config.steps_a_round if phase == "train" else 1)]
        with _charged(system):
            if phase == "train":
                system.take(chosen)
            else:
                system.infer(chosen[0])
        return sum(map(len, chosen)), sum(int(setup.tokens[places].sum()) for places in chosen)

    return call


def _one(setup: Setup, system: System, phase: Phase, feed: Iterator[Any]) -> tuple[Callable[[], object], int]:
    """A call to look into, and how many batches it holds."""
    if phase == "train":
        # What is worked out for many steps at once on a GPU would be charged to the one step that is looked into.
        steps = _LOOKED_INTO if setup.config.where.resolved == "cuda" else 1
        return lambda: system.take([next(feed) for _ in range(steps)]), steps
    count = len(next(feed))
    return lambda: system.infer(next(feed)), max(1, count // setup.config.graphs_a_step)


def _row(
    setup: Setup,
    system: System,
    phase: Phase,
    measured: _Measured,
    first_seconds: float | None,
    peak: float,
    device: torch.device,
) -> BenchRow:
    config, described = setup.config, setup.model.config
    timing, own = measured.timings.get(system.name), isinstance(system, Packed)
    padded = measured.timings.get("padded")
    encoder, attention = described.encoder, described.encoder.attention
    seconds = None if timing is None else config.graphs_a_step / timing.graphs_per_s
    flop = forward_flop(setup.model, setup.tokens, setup.parts.rows.total) / len(setup.parts.graphs)
    flop *= TRAIN_FACTOR if phase == "train" else 1
    return BenchRow(
        shape=config.shape,
        device=device_name(device),
        system=system.name,
        phase=phase,
        layout=config.layout,
        dtype=config.dtype,
        dropout=attention.dropout if phase == "train" and isinstance(attention, SoftmaxConfig) else 0.0,
        graphs_per_s=None if timing is None else timing.graphs_per_s,
        tokens_per_s=None if timing is None else timing.tokens_per_s,
        peak_share=None if timing is None else flop * timing.graphs_per_s / peak,
        memory_gib=None if timing is None else timing.memory_gib,
        ratio_to_padded=None if timing is None or padded is None else median_ratio(padded, timing),
        commit=source_commit(),
        ids=described.identifiers.kind,
        attention=attention.kind + (f" ({attention.backend})" if isinstance(attention, SoftmaxConfig) else ""),
        model=f"{encoder.num_layers} x {described.dim}, {encoder.num_heads} heads",
        batch=config.graphs_a_step,
        scale=config.scale,
        compiled=config.compile,
        cuda_graphs=own and measured.replayed,
        compile_seconds=_compiling(first_seconds, seconds) if config.compile else None,
        recompilations=measured.recompilations if timing is not None else None,
        synchronisations=measured.synchronisations if own else None,
        seconds=seconds,
        peak_tflops=peak / 1e12,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        breakdown=measured.breakdown if own else None,
        failed=None if timing is not None else measured.failed,
    )


def _compiling(first: float | None, seconds: float | None) -> float | None:
    """What a first call took longer than later ones."""
    return None if first is None or seconds is None else max(0.0, first - seconds)
