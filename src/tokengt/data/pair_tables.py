"""A table of pairs of nodes that are asked about: one row per pair, with a label that is 1, 0 or blank.

Two columns name nodes by their ids. Without a column of labels every pair is a link. A pair that is listed again must
say the same; of an undirected graph its reverse is the same pair. A row that cannot be read, such as one that names an
unknown node, costs the others nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float64, Int8, Int64
from torch import Tensor

from tokengt.data import cells
from tokengt.data.manifest import GraphColumns
from tokengt.data.table_rows import TableRows, end_columns, part_code
from tokengt.data.tables import listed


@dataclass(frozen=True, eq=False)
class Pairs:
    """The rows of a table of pairs, all of them, and those that can be asked about.

    ``problems`` are the reasons of the others, by their places. Of the pairs that can be asked about: the numbers of
    their nodes, NaN for a blank label, the code of each one's part.
    """

    rows: TableRows
    problems: dict[int, str]
    index: Int64[Tensor, "2 links"]
    labels: Float64[Tensor, "links 1"]
    split: Int8[Tensor, " links"] | None
    sentences: tuple[str, ...]


def read_pairs(
    path: Path, roles: GraphColumns, numbers: Mapping[str, int], nodes: Path, target: str | None, split: str | None
) -> Pairs:
    """The pairs of a table, whose nodes have ``numbers`` by the ids of the table ``nodes``.

    Their columns have the names that those of the edges have, or usual ones, or are the first two.

    Raises:
        ValueError: one sentence: the file and what was expected of it as a whole.
    """
    rows = TableRows.read_all(path)
    same = roles.source in rows.columns and roles.target in rows.columns
    ends = (roles.source, roles.target) if same else end_columns(rows.table, "pair")
    for name, what in ((target, "the target option"), (split, "the split")):
        if name in ends:
            raise ValueError(f"{path}: {what} names column {name!r}, which holds ids of nodes")
        if name is not None:
            rows.table.place(name, what)
    if target is not None and target == split:
        raise ValueError(f"{path}: the target option names column {target!r}, which holds the split")
    problems = _problems(rows, ends, numbers, nodes, target, split)
    good = rows.without(problems)
    index, labels = good.numbers_of(ends, numbers, nodes), _labels(good, target)
    _check_again(good, index, labels, len(numbers), roles.directed)
    told = [f"{path}: pairs are {ends[0]!r} and {ends[1]!r}"]
    others = [name for name in rows.columns if name not in (*ends, target, split)]
    if target is None:
        told.append(f"{path}: no target is named, so that every pair is a link")
    if others:
        told.append(f"{path}: {listed(others)} not read: a pair is known by its nodes alone")
    return Pairs(rows, problems, index, labels, good.split(split), tuple(told))


def _problems(
    rows: TableRows,
    ends: tuple[str, str],
    numbers: Mapping[str, int],
    nodes: Path,
    target: str | None,
    split: str | None,
) -> dict[int, str]:
    """Why rows cannot be read, by their places in order; of a row with several problems, what it asks comes first."""
    found: dict[int, str] = {}
    for name, read in ((split, part_code), (target, _label)):
        if name is not None:
            found |= rows.unreadable(name, read)
    found |= rows.unknown_ids(ends, numbers, nodes) | rows.problems
    return dict(sorted(found.items()))


def _label(text: str) -> float:
    """1 or 0, NaN for a blank."""
    try:
        return cells.binary(text)
    except cells.BadCell:
        raise cells.BadCell(f"is {cells.shown(text)}; expected 1 or 0: link or not") from None


def _labels(rows: TableRows, target: str | None) -> Float64[Tensor, "links 1"]:
    if target is None:
        return torch.ones(len(rows.lines), 1, dtype=torch.float64)
    labels = torch.tensor(rows.values(target, _label), dtype=torch.float64)[:, None]
    if len(labels) and bool(labels.isnan().all()):
        raise ValueError(f"{rows.table.path}: target {target!r} has no label; expected one in some rows")
    return labels


def _check_again(
    rows: TableRows, index: Int64[Tensor, "2 links"], labels: Float64[Tensor, "links 1"], nodes: int, directed: bool
) -> None:
    """Refuse a pair that is listed with the label 1 and with the label 0."""
    ends = index if directed else torch.stack([index.amin(0), index.amax(0)])
    keys = ends[0] * nodes + ends[1]
    yes, no = (torch.nonzero(labels[:, 0] == value).flatten() for value in (1, 0))
    both = yes[torch.isin(keys[yes], keys[no])]
    if len(both):
        place = int(both[0])
        other = int(no[keys[no] == keys[place]][0])
        raise ValueError(
            f"{rows.where(max(place, other))}: the pair has another label on {rows.table.unit} "
            f"{rows.lines[min(place, other)]}; expected one of them"
        )
