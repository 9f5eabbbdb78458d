"""Graphs with their labels, whatever kind of file they came from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float64, Int8, Int64
from torch import Tensor

from tokengt.batch import GraphBatch, Level
from tokengt.data.manifest import NO_PART
from tokengt.graph import Graph
from tokengt.validation import describe_features


@dataclass(frozen=True, eq=False)
class LabelledGraphs:
    """``targets``: one row per graph, node or listed edge as ``level`` says, NaN where a label is missing.

    ``split``: the code of each row's part (train, valid, test), where the source has one. ``lines``: each graph's
    number in the source, counted from 1; ``rejected``: (number, reason) of the graphs that are left out.
    """

    graphs: GraphBatch
    targets: Float64[Tensor, "rows targets"]
    level: Level
    target_names: tuple[str, ...]
    split: Int8[Tensor, " rows"] | None
    lines: Int64[Tensor, " graphs"]
    rejected: tuple[tuple[int, str], ...]


@dataclass(frozen=True, eq=False)
class Record:
    """One graph of a source and its labels."""

    number: int
    graph: Graph
    targets: Float64[Tensor, "rows targets"]
    split: Int8[Tensor, " rows"] | None = None


def level_rows(graph: Graph, level: Level) -> int:
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
            left_out.append((record.number, f"{odd} is {mine}; expected {kinds[odd]} as in most graphs"))
    left_out.sort()
    if not usable:
        why = f": {left_out[0][1]}" if left_out else ""
        raise ValueError(f"{source} holds no graph that can be used{why}")
    has_split = any(record.split is not None for record in usable)
    return LabelledGraphs(
        graphs=replace(GraphBatch.collate([record.graph for record in usable]), extras=()),
        targets=torch.cat([record.targets for record in usable]),
        level=level,
        target_names=tuple(target_names),
        split=torch.cat([_codes(record) for record in usable]) if has_split else None,
        lines=torch.tensor([record.number for record in usable]),
        rejected=tuple(left_out),
    )


def _codes(record: Record) -> Int8[Tensor, " rows"]:
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
