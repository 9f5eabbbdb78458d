"""The whole experiment, restartable cell by cell."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from tokengt.experiments.basis.cells import cell_file, read_cell, run_cell, write_cell
from tokengt.experiments.basis.errors import EAGER, Kernels, compiled_kernels, matmul_precision
from tokengt.experiments.basis.graphs import basis_graphs
from tokengt.experiments.basis.report import write_report
from tokengt.experiments.basis.settings import (
    INPUTS,
    NUM_HEADS,
    SETTINGS,
    BasisConfig,
    Input,
    Setting,
)
from tokengt.experiments.tables import TableRow, source_commit

Progress = Callable[[str], None]

# Seconds between two lines about one cell.
_SPEAK_EVERY = 20.0


def run_basis(
    settings: Sequence[Setting] = SETTINGS,
    inputs: Sequence[Input] = INPUTS,
    seeds: Sequence[int] = (0, 1, 2),
    *,
    out: Path,
    device: torch.device | str = "cpu",
    config: BasisConfig | None = None,
    compiled: bool | None = None,
    max_seconds: float | None = None,
    progress: Progress | None = None,
) -> list[TableRow]:
    """Run the cells that are not finished, then write the report of all that are.

    Args:
        settings: rows of the table.
        inputs: "dense", "sparse".
        seeds: one run each, of weights, draws and graphs.
        out: holds cells/, statistics.json, table.json, table.md, maps-dense.png and maps-sparse.png.
        device: where to train.
        config: what all cells share; None for the paper's.
        compiled: compile the memory-bound kernels; None does so on a GPU where that works.
        max_seconds: start no further cell after this time; run again to go on.
        progress: is told a line now and then.

    Raises:
        ValueError: a cell in ``out`` was made with another configuration.
    """
    config, place, say = config or BasisConfig(), torch.device(device), progress or _silent
    started, commit = time.perf_counter(), source_commit()
    kernels: Kernels | None = None
    _refuse_other_cells(out, config)
    missing = list(_missing(settings, inputs, seeds, out))
    total, prepared, graphs = len(settings) * len(inputs) * len(seeds), None, None
    for done, (setting, kind, seed) in enumerate(missing, total - len(missing) + 1):
        if max_seconds is not None and time.perf_counter() - started > max_seconds:
            say(f"stopped after {max_seconds:g} s with {total - done + 1} of {total} cells to do")
            break
        # Kernels are compiled only once there is a cell to run, because compiling takes a while.
        kernels = kernels or choose_kernels(place, config, compiled, say)
        # Cells with the same graphs follow each other, so the last graphs are kept and no others.
        if graphs is None or prepared != (kind, seed):
            prepared, graphs = (kind, seed), basis_graphs(config, kind, seed, place)
        name = f"[{done}/{total}] {kind} {setting.name} seed {seed}"
        cell, maps, _ = run_cell(
            setting,
            kind,
            seed,
            graphs,
            config,
            place,
            kernels=kernels,
            commit=commit,
            progress=_Steps(name, config.steps, say),
        )
        write_cell(out, cell, maps if seed == seeds[0] else None)
        paper = setting.paper(kind, "test").mean
        left = (time.perf_counter() - started) / (done + len(missing) - total) * (total - done)
        numbers = f"train {cell.train:.4g}, test {cell.test:.4g} (paper {paper:g}), {cell.seconds:.1f} s"
        say(f"{name}: {numbers}; about {left / 60:.0f} min left" if total > done else f"{name}: {numbers}")
    return write_report(out)


def choose_kernels(device: torch.device, config: BasisConfig, compiled: bool | None, say: Progress) -> Kernels:
    """Compiled kernels when asked for, or on a GPU; where they are not asked for and do not work, the eager ones."""
    if compiled is False or (compiled is None and device.type != "cuda"):
        return EAGER
    kernels = compiled_kernels()
    try:
        _try_out(kernels, device, config)
    except Exception as error:  # A missing or broken compiler raises errors of many kinds.
        if compiled:
            raise
        say(f"kernels are not compiled on this machine ({type(error).__name__}: {error}); this is slower")
        return EAGER
    return kernels


def _try_out(kernels: Kernels, device: torch.device, config: BasisConfig) -> None:
    """Small forward and backward passes of each kernel, with what training calls them with."""
    weight, bias = (nn.Parameter(torch.ones(config.width, device=device)) for _ in range(2))
    rate = torch.full((), config.input_dropout, device=device)
    real, rows = (torch.ones(3, 24, dtype=torch.bool, device=device) for _ in range(2))
    with matmul_precision(config.precision) as dtype:
        for count in (40, 72):
            tokens = torch.randn(count, config.width, device=device, requires_grad=True)
            torch.autograd.backward([kernels.norm(tokens, weight, bias, rate, dtype).float().sum()])
        scores = torch.randn(3, NUM_HEADS, 24, 24, device=device, dtype=dtype, requires_grad=True)
        targets = torch.zeros(scores.shape, device=device)
        torch.autograd.backward([kernels.errors(scores, targets, real, rows).sum()])


def _refuse_other_cells(out: Path, config: BasisConfig) -> None:
    """One table has one configuration, whichever cells are asked for now."""
    for file in sorted((out / "cells").glob("*.json")):
        if read_cell(file).config != config:
            raise ValueError(f"{file} was made with another configuration; choose another folder or remove it")


def _missing(
    settings: Sequence[Setting], inputs: Sequence[Input], seeds: Sequence[int], out: Path
) -> Iterator[tuple[Setting, Input, int]]:
    """Cells to run, those with the same graphs one after another."""
    for kind in inputs:
        for seed in seeds:
            for setting in settings:
                if not cell_file(out, setting.name, kind, seed).exists():
                    yield setting, kind, seed


class _Steps:
    """Says from time to time how far a cell is."""

    def __init__(self, name: str, steps: int, say: Progress) -> None:
        self.name, self.steps, self.say = name, steps, say
        self.spoken = time.perf_counter()

    def __call__(self, step: int) -> None:
        if time.perf_counter() - self.spoken > _SPEAK_EVERY:
            self.spoken = time.perf_counter()
            self.say(f"{self.name}: step {step} of {self.steps}")


def _silent(line: str) -> None:
    """Nobody listens."""
