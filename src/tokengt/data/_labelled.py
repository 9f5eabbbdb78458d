"""Graphs with their labels, whatever kind of file they came from, and what labels that are integers mean."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Float64, Int8, Int64
from torch import Tensor

from tokengt.batch import GraphBatch, Level
from tokengt.data.cells import number_label
from tokengt.data.manifest import NO_PART, Attributes, TaskKind
from tokengt.facts import Per
from tokengt.graph import Graph
from tokengt.validation import describe_features

# Integers of so few different values are classes, however few labels there are of each; of more values, if there are
# this many labels of each on average. So 70 subjects of 20,000 papers are classes, and 300 counts of 1,000 graphs not.
_SURELY_CLASSES, _LABELS_EACH, _MOST_CLASSES = 50, 10, 10_000
_SHOWN_CLASSES = 5
_REGRESSION = 'choose the task regression (task="regression" in Python, --task regression in the command)'
_MULTICLASS = 'choose the task multiclass (task="multiclass" in Python, --task multiclass in the command)'


@dataclass(frozen=True, eq=False)
class LabelledGraphs:
    """``targets``: one row per graph, node, listed edge or link as ``level`` says, NaN where a label is missing.

    ``split``: the code of each row's part (train, valid, test), where the source has one; one column for each, where it
    has several. ``lines``: each graph's
    number in the source, counted from 1; ``rejected``: (number, reason) of the graphs that are left out.
    ``integers``: whether the source keeps all its labels as integers or booleans. ``classes``: with them a target is
    the place of its class in this tuple. ``unread``: attributes of numbers that no model will read, with their level.
    ``attributes``: which attributes became features, where they have names. ``files``: the name of each graph's file,
    in the order of their numbers, where each has its own.
    """

    graphs: GraphBatch
    targets: Float64[Tensor, "rows targets"]
    level: Level
    target_names: tuple[str, ...]
    split: Int8[Tensor, "rows *splits"] | None
    lines: Int64[Tensor, " graphs"]
    rejected: tuple[tuple[int, str], ...]
    integers: bool = False
    classes: tuple[str, ...] | None = None
    unread: Mapping[str, Level] = field(default_factory=dict)
    attributes: Attributes | None = None
    files: tuple[str, ...] = ()

    def for_task(self, task: TaskKind | None) -> "tuple[LabelledGraphs, str | None]":
        """The labels as the task reads them, and the sentence that a person should read about it, if there is one.

        Without a task, integers are classes and other numbers are numbers: 0 and 1 alone are left as they are (a
        binary task), other integers become the places of their classes, unless there are too many different ones for
        classes or several columns of them, which are numbers.

        Raises:
            ValueError: several columns are to be classes, or may hold -1 for a missing label.
        """
        if task == "multiclass":
            if len(self.target_names) != 1:
                raise ValueError(f"the task multiclass takes one target, found {len(self.target_names)}")
            return self._with_classes(), None
        labels = self.targets[~self.targets.isnan()]
        if task is not None or not self.integers or not len(labels):
            return self, None
        values = torch.unique(labels)
        name = self.target_names[0] if len(self.target_names) == 1 else f"{', '.join(self.target_names[:3])}, ..."
        if bool(((values == 0) | (values == 1)).all()):
            return self, f"{name}: the integers 0 and 1 are learned as a binary task; to learn numbers, {_REGRESSION}"
        if len(self.target_names) > 1:
            return self, self._several(name, values)
        if len(values) > min(max(_SURELY_CLASSES, len(labels) // _LABELS_EACH), _MOST_CLASSES):
            many = f"{name}: {len(values):,} different integers among {len(labels):,} labels are learned as numbers"
            return self, f"{many}; if they name classes, {_MULTICLASS}"
        classes = self._with_classes()
        assert classes.classes is not None
        return classes, _classes_sentence(name, classes.classes)

    def _with_classes(self) -> "LabelledGraphs":
        targets, classes = as_classes(self.targets)
        return replace(self, targets=targets, classes=classes)

    def _several(self, name: str, values: Float64[Tensor, " values"]) -> str:
        if bool(((values >= -1) & (values <= 1)).all()):
            raise ValueError(
                f"{name} hold -1 beside 0 and 1: if it stands for a missing label, make them floats with NaN there; if "
                f"it is a number, {_REGRESSION}"
            )
        return f"{name}: several columns of integers are learned as numbers; for classes choose one of them"


def _classes_sentence(name: str, classes: tuple[str, ...]) -> str:
    more = len(classes) - _SHOWN_CLASSES
    shown = ", ".join(classes[:_SHOWN_CLASSES]) + (f" and {more} more" if more > 0 else "")
    missing = "; if -1 stands for a missing label, make them floats with NaN there" if "-1" in classes else ""
    return (
        f"{name}: integers are learned as {len(classes):,} classes ({shown}); to learn numbers, {_REGRESSION}{missing}"
    )


def as_classes(targets: Float64[Tensor, "rows 1"]) -> tuple[Float64[Tensor, "rows 1"], tuple[str, ...]]:
    """Each label as its place among the sorted distinct labels, which are the classes; a missing one stays missing."""
    labelled = ~targets.isnan()
    values, places = torch.unique(targets[labelled], return_inverse=True)
    coded = torch.full_like(targets, torch.nan)
    coded[labelled] = places.double()
    return coded, tuple(number_label(value) for value in values.tolist())


def as_numbers(targets: Float64[Tensor, "rows 1"], classes: Sequence[str]) -> Float64[Tensor, "rows 1"] | None:
    """What :func:`as_classes` was given; None where a class is no number."""
    try:
        values = torch.tensor([float(name) for name in classes], dtype=torch.float64)
    except ValueError:
        return None
    return torch.where(targets.isnan(), torch.nan, values[targets.nan_to_num(0.0).long()])


@dataclass(frozen=True, eq=False)
class Record:
    """One graph of a source and its labels; ``integers``: whether the source keeps them as integers or booleans.

    ``name`` is that of the file that holds this graph alone; ``facts`` are those that came with it; ``links`` are the
    pairs of its nodes that are asked about.
    """

    number: int
    graph: Graph
    targets: Float64[Tensor, "rows targets"]
    split: Int8[Tensor, "rows *splits"] | None = None
    integers: bool = False
    name: str = ""
    facts: Mapping[tuple[str, Per], Tensor] = field(default_factory=dict)
    links: Int64[Tensor, "2 links"] | None = None


def level_rows(graph: Graph, level: Level) -> int:
    """How many rows of labels a graph has; how many links there are is not for the graph to say."""
    return {"graph": 1, "node": graph.num_nodes, "edge": graph.num_edges}[level]


def assembled(
    source: Path,
    records: Sequence[Record],
    rejected: Sequence[tuple[int, str]],
    level: Level,
    target_names: Sequence[str],
) -> LabelledGraphs:
    """All records as one batch; graphs whose features are of another kind than those of most graphs are rejected.

    Raises:
        ValueError: nothing is left.
    """
    kinds = _usual_kinds(records)
    usable, left_out = [], list(rejected)
    for record in records:
        odd = next((name for name, kind in _kinds(record.graph).items() if kind != kinds[name]), None)
        if odd is None:
            usable.append(record)
        else:
            mine = _kinds(record.graph)[odd]
            whose = f"{record.name}: " if record.name else ""
            left_out.append((record.number, f"{whose}{odd} is {mine}; expected {kinds[odd]} as in most graphs"))
    left_out.sort()
    if not usable:
        why = f": {left_out[0][1]}" if left_out else ""
        raise ValueError(f"{source} holds no graph that can be used{why}")
    labelled = [record for record in usable if not bool(record.targets.isnan().all())]
    has_split = any(record.split is not None for record in usable)
    return LabelledGraphs(
        graphs=_collated(usable),
        targets=torch.cat([record.targets for record in usable]),
        level=level,
        target_names=tuple(target_names),
        split=_joined_codes(usable) if has_split else None,
        lines=torch.tensor([record.number for record in usable]),
        rejected=tuple(left_out),
        integers=bool(labelled) and all(record.integers for record in labelled),
    )


def _collated(records: Sequence[Record]) -> GraphBatch:
    """The graphs of all records as one batch, with the facts that all of them came with."""
    batch = replace(GraphBatch.collate([record.graph for record in records]), extras=())
    for name, per in records[0].facts:
        rows = [record.facts.get((name, per)) for record in records]
        present = [each for each in rows if each is not None]
        if len(present) == len(rows) and len({each.shape[1:] for each in present}) == 1:
            batch = batch.with_fact(name, torch.cat(present), per)
    links = [record.links for record in records if record.links is not None]
    return batch if len(links) < len(records) else batch.with_own_links(links)


def _joined_codes(records: Sequence[Record]) -> Int8[Tensor, "rows *splits"]:
    """The parts of all graphs' rows; of several splits the first, unless all graphs have as many of them."""
    widths = {1 if record.split is None else record.split.reshape(len(record.split), -1).shape[1] for record in records}
    codes = [_codes(record) for record in records]
    return torch.cat(codes if len(widths) == 1 else [each.reshape(len(each), -1)[:, 0] for each in codes])


def _codes(record: Record) -> Int8[Tensor, "rows *splits"]:
    if record.split is not None:
        return record.split
    return torch.full((len(record.targets),), NO_PART, dtype=torch.int8)


def _kinds(graph: Graph) -> dict[str, str]:
    """The kind of each field's features in words; a field without rows is left out, since it fits any kind."""
    fields = {
        "node_features": (graph.node_features, graph.num_nodes),
        "edge_features": (graph.edge_features, graph.num_edges),
        "hyperedge_features": (graph.hyperedge_features, graph.num_hyperedges),
        "graph_features": (graph.graph_features, 1),
    }
    kinds = {name: describe_features(features) for name, (features, rows) in fields.items() if rows}
    return {**kinds, "edge_index": f"{graph.order} rows"}


def _usual_kinds(records: Sequence[Record]) -> dict[str, str]:
    counts: dict[str, Counter[str]] = {}
    for record in records:
        for name, kind in _kinds(record.graph).items():
            counts.setdefault(name, Counter())[kind] += 1
    return {name: counter.most_common(1)[0][0] for name, counter in counts.items()}
