"""A saved InMemoryDataset read at once, without a loop over its graphs.

This is a fast path: anything unusual makes it give up, and the graphs are then looked at one by one.
"""

import torch
from jaxtyping import Int64
from torch import Tensor

from tokengt.batch import GraphBatch, Level
from tokengt.data._labelled import LabelledGraphs
from tokengt.data._pyg_files import Collated
from tokengt.data._pyg_labels import MASKS, codes_of, is_integer, label_of, mask_of, target_names
from tokengt.interop.pyg import as_batch, unread_attributes

_GRAPH_KEYS = ("x", "edge_index", "edge_attr", "graph_features")
_OTHER_KEYS = ("num_nodes", "hyperedge_index", "hyperedge_attr", "adj", "adj_t", "batch", "ptr")


def read_collated(collated: Collated, target: str | None, level: Level | None) -> LabelledGraphs | None:
    """The data set, if all of it is plain and without fault; None if its graphs must be looked at one by one."""
    try:
        return _labelled(collated, _batch(collated), target or "y", level)
    except ValueError:
        return None


def _batch(collated: Collated) -> GraphBatch:
    from torch_geometric.data import Data

    data = collated.data
    keys = [key for key in _GRAPH_KEYS if key in data]
    if type(data) is not Data or any(key in data for key in _OTHER_KEYS) or not {"x", "edge_index"} <= set(keys):
        raise ValueError("not the plain data set")
    counts = {key: _counts(collated, key) for key in keys}
    nodes, edges = counts["x"], counts["edge_index"]
    graph = torch.arange(len(nodes))
    of_edge = graph.repeat_interleave(edges)
    # After packing nobody could tell: a node's number beyond its own graph would name a node of the next graph, and
    # slices of other lengths would shift features from one graph to another.
    if bool(((data.edge_index < 0) | (data.edge_index >= nodes[of_edge])).any()):
        raise ValueError("an edge leaves its graph")
    for key, expected in (("edge_attr", edges), ("graph_features", torch.ones_like(nodes))):
        if key in counts and not torch.equal(counts[key], expected):
            raise ValueError("features of another number of rows")
    values = {key: data[key] for key in keys}
    values["edge_index"] = data.edge_index + (nodes.cumsum(0) - nodes)[of_edge]
    return as_batch(Data(**values, batch=graph.repeat_interleave(nodes)))


def _labelled(collated: Collated, graphs: GraphBatch, target: str, level: Level | None) -> LabelledGraphs:
    rows: dict[Level, Tensor] = {
        "graph": torch.ones(len(graphs), dtype=torch.int64),
        "node": graphs.nodes.host_lengths,
        "edge": graphs.edges.host_lengths,
    }
    label = label_of(collated.data, target)
    if label is None or label.ndim == 0:
        raise ValueError("no labels")
    counts = _counts(collated, target)
    fits = [each for each in rows if level in (None, each) and torch.equal(counts, rows[each])]
    if len(fits) != 1:
        raise ValueError("labels of no level, or of several")
    masks = {}
    for name in MASKS:
        mask = mask_of(collated.data, name)
        if mask is not None and torch.equal(_counts(collated, name), rows[fits[0]]):
            masks[name] = mask
    targets = label.reshape(len(label), -1)
    return LabelledGraphs(
        graphs=graphs,
        targets=targets,
        level=fits[0],
        target_names=target_names(target, targets.shape[1]),
        split=codes_of(masks),
        lines=torch.arange(1, len(graphs) + 1),
        rejected=(),
        integers=is_integer(collated.data, target),
        unread=unread_attributes(collated.data, (target,)),
    )


def _counts(collated: Collated, key: str) -> Int64[Tensor, " graphs"]:
    """How many rows of this attribute every graph has."""
    bounds, value = collated.slices.get(key), collated.data[key]
    if bounds is None or not isinstance(value, Tensor) or value.ndim == 0 or bounds.is_floating_point():
        raise ValueError("slices that are not those of a tensor")
    if key == "edge_index" and value.ndim != 2:
        raise ValueError("edges of another shape")
    size = value.shape[-1] if key == "edge_index" else value.shape[0]
    counts: Tensor = bounds.long().diff()
    if len(counts) == 0 or int(bounds[0]) != 0 or int(bounds[-1]) != size or int(counts.min()) < 0:
        raise ValueError("slices that do not cut the whole tensor")
    return counts
