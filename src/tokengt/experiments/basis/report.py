"""Finished cells as the paper's Table 1 and its figure of attention maps."""

from collections.abc import Sequence
from pathlib import Path

from tokengt.experiments.basis.cells import Cell, CellMaps, cell_file, read_cell, read_maps
from tokengt.experiments.basis.map_grid import draw_map_grid
from tokengt.experiments.basis.settings import INPUTS, PAPER_STATISTICS, SETTINGS, SPLITS, Input, Score, Setting, Split
from tokengt.experiments.tables import TableRow, distinct, markdown, mean_and_std, write_json, write_rows
from tokengt.files import write_whole
from tokengt.structure.patterns import growth_strings

# The basis tensors that the figures show: pairs of tokens that share a node in different ways, or none.
SHOWN_PATTERNS = ((0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 0, 0), (0, 1, 0, 2), (0, 1, 1, 0), (0, 1, 2, 3))
_LABELS = {
    "none": "none",
    "random_first_order": "Random (first-order)",
    "orf_first_order": "ORF (first-order)",
    "random": "Random",
    "orf": "ORF",
    "laplacian": "Laplacian",
}


def read_cells(out: Path) -> list[Cell]:
    """All finished cells of a folder, in the order of the table."""
    order = {setting.name: place for place, setting in enumerate(SETTINGS)}
    cells = [read_cell(file) for file in (out / "cells").glob("*.json")]
    return sorted(cells, key=lambda cell: (order[cell.setting], INPUTS.index(cell.input), cell.seed))


def write_report(out: Path) -> list[TableRow]:
    """table.json, table.md, statistics.json and one figure per input kind, from the cells that are finished."""
    cells = read_cells(out)
    rows = table_rows(cells)
    write_rows(out / "table.json", rows)
    write_json(out / "statistics.json", statistics_of(cells))
    write_whole(out / "table.md", table_markdown(cells).encode())
    for kind in INPUTS:
        plot_maps(out, cells, kind)
    return rows


def statistics_of(cells: Sequence[Cell]) -> dict[str, object]:
    """Of the graphs of every input kind and seed, and what the paper says of its own."""
    graphs = {(cell.input, cell.seed): cell.graphs for cell in cells}
    mine = [{"input": kind, "seed": seed, **graphs[kind, seed]} for kind, seed in sorted(graphs)]
    return {"paper": PAPER_STATISTICS, "runs": mine}


def table_rows(cells: Sequence[Cell]) -> list[TableRow]:
    """One row per setting, input kind and split, averaged over seeds."""
    rows = []
    for setting in SETTINGS:
        for kind in INPUTS:
            mine = [cell for cell in cells if (cell.setting, cell.input) == (setting.name, kind)]
            rows += [_row(setting, kind, split, mine) for split in SPLITS if mine]
    return rows


def _row(setting: Setting, kind: Input, split: Split, cells: Sequence[Cell]) -> TableRow:
    mean, std = mean_and_std([_error(cell, split) for cell in cells])
    return TableRow(
        experiment="basis",
        system=setting.name,
        dataset=f"barabasi-albert-{kind}",
        split=split,
        metric="l2",
        mean=mean,
        std=std,
        runs=len(cells),
        parameters=cells[0].parameters,
        graphs_per_s=mean_and_std([cell.graphs_per_s for cell in cells])[0],
        device=distinct([cell.device for cell in cells]) or "",
        commit=distinct([cell.commit for cell in cells]),
        paper=setting.paper(kind, split).mean,
    )


def table_markdown(cells: Sequence[Cell]) -> str:
    """Table 1, each cell ours above the paper's; bold where ours is not above the paper's mean and deviation."""
    header = ["node id.", "type id.", *(f"{kind} {split}" for kind in INPUTS for split in SPLITS)]
    lines = []
    for setting in SETTINGS:
        cells_by_input = [[c for c in cells if (c.setting, c.input) == (setting.name, kind)] for kind in INPUTS]
        entries = [
            _entry([_error(cell, split) for cell in mine], setting.paper(kind, split))
            for kind, mine in zip(INPUTS, cells_by_input, strict=True)
            for split in SPLITS
        ]
        lines.append([_LABELS[setting.ids], "yes" if setting.types else "no", *entries])
    return (
        "Squared error per head (sum over a graph's attention map, mean over graphs and 15 heads), mean ± deviation "
        "over runs; below it the paper's.\nBold: at or below the paper's mean plus its deviation. 'train' is the loss "
        "of the last epoch with dropout on.\n\n" + markdown(header, lines)
    )


def _entry(errors: Sequence[float], paper: Score) -> str:
    theirs = f"paper {paper.mean:.4g} ± {paper.std:.2g}"
    if not errors:
        return f"not run<br>{theirs}"
    mean, std = mean_and_std(errors)
    ours = f"{mean:.4g}" + ("" if std is None else f" ± {std:.2g}")
    return (f"**{ours}**" if mean <= paper.mean + paper.std else ours) + f"<br>{theirs}"


def _error(cell: Cell, split: Split) -> float:
    return cell.train if split == "train" else cell.test


def plot_maps(out: Path, cells: Sequence[Cell], kind: Input) -> Path | None:
    """Maps of one test graph under every setting beside the target; None when no finished cell has kept any."""
    maps_by_setting = {setting.name: _maps_of(out, cells, setting, kind) for setting in SETTINGS}
    finished = [maps for maps in maps_by_setting.values() if maps is not None]
    if not finished:
        return None
    heads = [growth_strings(4).index(pattern) for pattern in SHOWN_PATTERNS]
    grid = [
        [
            finished[0].targets[head].numpy(),
            *(None if m is None else m.maps[head].numpy() for m in maps_by_setting.values()),
        ]
        for head in heads
    ]
    names = [f"{_LABELS[s.ids].replace(' (', chr(10) + '(')}\n{'with' if s.types else 'no'} types" for s in SETTINGS]
    file = out / f"maps-{kind}.png"
    title = f"Attention maps of one test graph, {kind} input, entries clamped at 0.01; the first column is [null]"
    draw_map_grid(grid, [_letters(pattern) for pattern in SHOWN_PATTERNS], ["target", *names], file, title=title)
    return file


def _maps_of(out: Path, cells: Sequence[Cell], setting: Setting, kind: Input) -> CellMaps | None:
    """Of the first seed that has them: the same graph for every setting."""
    for cell in cells:
        file = cell_file(out, setting.name, kind, cell.seed).with_suffix(".npz")
        if (cell.setting, cell.input) == (setting.name, kind) and file.exists():
            return read_maps(file)
    return None


def _letters(pattern: Sequence[int]) -> str:
    """(0, 0, 0, 1) as (i,i) (i,j): the query's nodes, then the key's."""
    i, j, k, m = ("ijkl"[label] for label in pattern)
    return f"({i},{j}) ({k},{m})"
