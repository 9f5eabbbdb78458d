"""Links of PyG objects: ``edge_label_index`` and ``edge_label``, as PyG's ``RandomLinkSplit`` makes them.

A graph without them is asked about its own edges. Labels are 1 for a link and 0 for none; without labels all are 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data._labelled import LabelledGraphs, Record, assembled
from tokengt.data._pyg_labels import label_of
from tokengt.data.links import LINK, check_labels, linked_by_edges
from tokengt.graph import Graph
from tokengt.interop._pyg_packed import LINKS
from tokengt.validation import check_indices

PAIRS, LABELS = LINKS, "edge_label"
# Where labels are told by the name of the list: RandomLinkSplit(split_labels=True).
_POSITIVE, _NEGATIVE = f"pos_{PAIRS}", f"neg_{PAIRS}"


@dataclass(frozen=True, eq=False)
class _Links:
    """Pairs of one graph and their labels, NaN where one is missing."""

    pairs: Int64[Tensor, "2 links"]
    labels: Float64[Tensor, "links 1"]


def link_graphs(
    path: Path,
    graphs: Sequence[tuple[int, Any, int | None, Graph]],
    rejected: Sequence[tuple[int, str]],
    target: str | None,
    *,
    labelled: bool = True,
) -> LabelledGraphs:
    """Graphs (number, PyG data, part of its file, graph) with their pairs; all of them edges, where none has pairs.

    With ``labelled`` false, labels are not looked at, and every graph needs pairs.

    Raises:
        ValueError: one sentence: no graph can be used, or none has the attribute ``target``.
    """
    named = target or LABELS
    with_pairs = [data for _, data, *_ in graphs if PAIRS in data or _POSITIVE in data]
    if target is not None and not any(target in data for _, data, *_ in graphs):
        raise ValueError(f"{path}: no graph has an attribute {target!r}, the labels of its {PAIRS}")
    if not with_pairs and labelled:
        return _by_edges(path, graphs, rejected)
    records, left_out = [], list(rejected)
    for number, data, code, graph in graphs:
        try:
            found = _links_of(data, named if labelled else None, graph.num_nodes)
            if labelled:
                check_labels(GraphBatch.collate([graph]).with_own_links([found.pairs]), found.labels)
            split = None if code is None else torch.full((len(found.labels),), code, dtype=torch.int8)
            targets = found.labels if labelled else found.labels[:, :0]
            records.append(Record(number, graph, targets, split, links=found.pairs))
        except ValueError as error:
            left_out.append((number, str(error)))
    name = named if any(named in data for data in with_pairs) else LINK
    return assembled(path, records, left_out, "link", (name,) if labelled else ())


def _links_of(data: Any, labels: str | None, nodes: int) -> _Links:
    """The pairs that one graph is asked about.

    Raises:
        ValueError: there are none, or they are no pairs of nodes of this graph.
    """
    if PAIRS in data:
        pairs = _checked(data[PAIRS], PAIRS, nodes)
        given = None if labels is None else label_of(data, labels)
        if given is not None and given.numel() != pairs.shape[1]:
            raise ValueError(f"{labels} has shape {list(given.shape)}; expected {pairs.shape[1]} labels, one per pair")
        return _Links(pairs, _ones(pairs) if given is None else given.reshape(-1, 1))
    if _POSITIVE in data:
        positive = _checked(data[_POSITIVE], _POSITIVE, nodes)
        negative = _checked(data[_NEGATIVE], _NEGATIVE, nodes) if _NEGATIVE in data else positive[:, :0]
        return _Links(torch.cat([positive, negative], 1), torch.cat([_ones(positive), 0 * _ones(negative)]))
    raise ValueError(f"it has no {PAIRS}; expected the pairs of nodes to ask about")


def _checked(pairs: Any, name: str, nodes: int) -> Int64[Tensor, "2 links"]:
    if not isinstance(pairs, Tensor) or pairs.ndim != 2 or len(pairs) != 2:
        shape = list(pairs.shape) if isinstance(pairs, Tensor) else type(pairs).__name__
        raise ValueError(f"{name} is {shape}; expected integers of shape [2, pairs]")
    check_indices(name, pairs, nodes, dims=2)
    return pairs.long()


def _ones(pairs: Tensor) -> Float64[Tensor, "links 1"]:
    return torch.ones(pairs.shape[1], 1, dtype=torch.float64)


def _by_edges(
    path: Path, graphs: Sequence[tuple[int, Any, int | None, Graph]], rejected: Sequence[tuple[int, str]]
) -> LabelledGraphs:
    """Graphs that are asked about their own edges."""
    blank = [Record(number, graph, torch.zeros(1, 0, dtype=torch.float64)) for number, _, _, graph in graphs]
    found = assembled(path, blank, rejected, "graph", ())
    linked, targets = linked_by_edges(found.graphs)
    return replace(found, graphs=linked, targets=targets, level="link", target_names=(LINK,))


def are_link_parts(datas: Sequence[Any]) -> bool:
    """Whether three graphs are what ``RandomLinkSplit`` makes of one: the same nodes, asked about other pairs."""
    named = len(datas) == 3 and all(hasattr(data, "keys") and (PAIRS in data or _POSITIVE in data) for data in datas)
    return named and len({data.num_nodes for data in datas}) == 1 and _same(*(getattr(d, "x", None) for d in datas))


def _same(*features: Any) -> bool:
    if any(each is None or each.layout != torch.strided for each in features):
        # A sparse matrix is kept by all three, or is none that RandomLinkSplit has made of one graph.
        return len({id(each) for each in features}) == 1
    return all(torch.equal(each, features[0]) for each in features)


def check_parts(path: Path, graphs: Sequence[tuple[int, Any, int | None, Graph]]) -> None:
    """Refuse parts of one graph of which training would read what another part asks about.

    ``RandomLinkSplit`` gives three graphs of the same nodes; a pair that validates or tests must be no edge of the
    training graph.
    """
    train = [graph for *_, code, graph in graphs if code == 0]
    for _, data, code, graph in graphs:
        if not code or PAIRS not in data or len(train) != 1 or not _same_nodes(train[0], graph):
            continue
        links = _links_of(data, LABELS, graph.num_nodes)
        asked = links.pairs[:, links.labels[:, 0] == 1]
        read, size = train[0].edge_index, graph.num_nodes
        hidden = torch.isin(asked.amin(0) * size + asked.amax(0), read.amin(0) * size + read.amax(0))
        if bool(hidden.any()):
            u, v = asked[:, hidden][:, 0].tolist()
            part = "validation" if code == 1 else "test"
            raise ValueError(
                f"{path}: the pair of nodes {u} and {v} of the {part} part is an edge of the training graph; expected "
                "parts that share no link, as RandomLinkSplit gives them"
            )


def _same_nodes(one: Graph, other: Graph) -> bool:
    first, second = one.node_features, other.node_features
    if one.num_nodes != other.num_nodes or type(first) is not type(second):
        return False
    return not isinstance(first, Tensor) or not isinstance(second, Tensor) or torch.equal(first, second)
