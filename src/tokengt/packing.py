"""How graphs are packed, from graphs, other batches or the arrays of a store; cut out, moved to a device, narrowed.

Every function here gives fields of a :class:`~tokengt.batch.GraphBatch` by name, for its own method of this kind. What
the fields mean is said there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tokengt.facts import STRUCTURE, Cut, Fields
from tokengt.graph import Graph, check_alike
from tokengt.numbering import LocalIndex, narrowed
from tokengt.ragged import Segments
from tokengt.sparse import Features, SparseRows, chosen_rows, joined_features

FEATURE_FIELDS = ("node_features", "edge_features", "hyperedge_features", "graph_features")


def from_graphs(graphs: Sequence[Graph]) -> dict[str, Any]:
    """Graphs of the same feature kinds, order and device."""
    if isinstance(graphs, Graph) or not all(isinstance(graph, Graph) for graph in graphs):
        raise ValueError("collate needs a list of Graphs; a model takes other kinds as they are")
    if not graphs:
        raise ValueError("a batch needs at least one graph, got an empty sequence")
    device = graphs[0].device
    check_alike(graphs)
    counts = torch.tensor([(g.num_nodes, g.num_edges, g.num_hyperedges) for g in graphs])
    nodes, edges, hyperedges = (Segments.from_lengths(column, device) for column in counts.unbind(1))
    members = Segments.from_lengths(torch.cat([g.hyperedge_offsets.diff() for g in graphs]).cpu(), device)
    edge_numbers = torch.cat([g.edge_index for g in graphs], 1)
    member_numbers = torch.cat([g.hyperedge_nodes for g in graphs])
    return {
        "nodes": nodes,
        "node_features": joined_features([g.node_features for g in graphs]),
        "edges": edges,
        "edge_numbers": LocalIndex(edges, nodes, local=edge_numbers),
        "edge_features": joined_features([g.edge_features for g in graphs]),
        "hyperedges": hyperedges,
        "members": members,
        "member_numbers": LocalIndex(members.grouped(hyperedges), nodes, local=member_numbers),
        "hyperedge_features": joined_features([g.hyperedge_features for g in graphs]),
        "graph_features": joined_features([g.graph_features for g in graphs]),
        "extras": tuple(g.extras for g in graphs) if any(g.extras for g in graphs) else (),
    }


def joined(batches: Sequence[Fields]) -> dict[str, Any]:
    """The graphs of several batches on a CPU, one batch after another; facts, links and extras are left."""
    nodes, edges, hyperedges, members = (
        Segments.from_lengths(torch.cat([batch[name].host_lengths for batch in batches]))
        for name in ("nodes", "edges", "hyperedges", "members")
    )
    edge_numbers = torch.cat([batch["edge_numbers"].local for batch in batches], 1)
    member_numbers = torch.cat([batch["member_numbers"].local for batch in batches])
    return {
        **{name: joined_features([batch[name] for batch in batches]) for name in FEATURE_FIELDS},
        "nodes": nodes,
        "edges": edges,
        "edge_numbers": LocalIndex(edges, nodes, local=edge_numbers),
        "hyperedges": hyperedges,
        "members": members,
        "member_numbers": LocalIndex(members.grouped(hyperedges), nodes, local=member_numbers),
    }


def from_arrays(arrays: Mapping[str, Tensor]) -> dict[str, Any]:
    """From the tensors of a store, by name; what a graph can do without may be absent."""
    none = torch.zeros(len(arrays["node_offsets"]), dtype=torch.int64)
    nodes, edges = Segments.from_offsets(arrays["node_offsets"]), Segments.from_offsets(arrays["edge_offsets"])
    hyperedges = Segments.from_offsets(arrays.get("hyperedge_offsets", none))
    members = Segments.from_offsets(arrays.get("member_offsets", none[:1]))
    incidences = members.grouped(hyperedges)
    links = Segments.from_offsets(arrays["link_offsets"]) if "link_offsets" in arrays else None
    return {
        **{name: arrays.get(name, SparseRows.from_arrays(name, arrays)) for name in FEATURE_FIELDS},
        "nodes": nodes,
        "edges": edges,
        "edge_numbers": LocalIndex(edges, nodes, local=arrays["edge_index"]),
        "hyperedges": hyperedges,
        "members": members,
        "member_numbers": LocalIndex(incidences, nodes, local=arrays.get("hyperedge_nodes", none[:0])),
        "link_numbers": None if links is None else LocalIndex(links, nodes, local=arrays["link_index"]),
    }


def to_arrays(fields: Fields) -> dict[str, Tensor]:
    """The inverse of :func:`from_arrays`, node numbers local; hyperedges are left out when there are none."""
    tensors: dict[str, Tensor | None] = {
        "node_offsets": fields["nodes"].host,
        "edge_offsets": fields["edges"].host,
        "edge_index": fields["edge_numbers"].local,
        **{name: fields[name] for name in FEATURE_FIELDS},
    }
    if isinstance(fields["node_features"], SparseRows):
        tensors |= {"node_features": None, **fields["node_features"].arrays("node_features")}
    if fields["hyperedges"].total:
        tensors |= {
            "hyperedge_offsets": fields["hyperedges"].host,
            "member_offsets": fields["members"].host,
            "hyperedge_nodes": fields["member_numbers"].local,
        }
    if fields["link_numbers"] is not None:
        tensors |= {"link_offsets": fields["link_numbers"].entries.host, "link_index": fields["link_numbers"].local}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def cut_out(fields: Fields, cut: Cut) -> dict[str, Any]:
    """The graphs of a cut; facts are left."""
    nodes, edges, hyperedges = fields["nodes"], fields["edges"], fields["hyperedges"]
    if hyperedges.total:
        hyper = {
            "hyperedges": cut.packed(hyperedges),
            "members": fields["members"].chosen(hyperedges.host_rows(cut.chosen)),
            "member_numbers": cut.numbers(fields["member_numbers"]),
            "hyperedge_features": chosen_rows(fields["hyperedge_features"], cut.rows(hyperedges)),
        }
    else:
        # Most data has no hyperedges, and then nothing needs to be looked up.
        features, numbers = fields["hyperedge_features"], fields["member_numbers"]
        none = Segments.uniform(len(cut.there), 0, numbers.device)
        hyper = {
            "hyperedges": none,
            "members": Segments.uniform(0, 0, numbers.device),
            "member_numbers": numbers.take(cut.there[:0], none, cut.packed(nodes)),
            "hyperedge_features": None if features is None else features[:0],
        }
    return {
        "nodes": cut.packed(nodes),
        "node_features": chosen_rows(fields["node_features"], cut.rows(nodes)),
        "edges": cut.packed(edges),
        "edge_numbers": cut.numbers(fields["edge_numbers"]),
        "edge_features": chosen_rows(fields["edge_features"], cut.rows(edges)),
        **hyper,
        "graph_features": chosen_rows(fields["graph_features"], cut.there),
        "link_numbers": None if fields["link_numbers"] is None else cut.numbers(fields["link_numbers"]),
        "extras": tuple(fields["extras"][place] for place in cut.chosen.tolist()) if fields["extras"] else (),
    }


def moved(fields: Fields, device: torch.device | str) -> dict[str, Any]:
    """The fields that are tensors, on this device."""
    segments = {name: fields[name].to(device) for name in ("nodes", "edges", "hyperedges", "members")}
    incidences = segments["members"].grouped(segments["hyperedges"])
    changed = {
        **segments,
        **{name: None if fields[name] is None else fields[name].to(device) for name in FEATURE_FIELDS},
        "edge_numbers": fields["edge_numbers"].moved(segments["edges"], segments["nodes"]),
        "member_numbers": fields["member_numbers"].moved(incidences, segments["nodes"]),
    }
    if fields["link_numbers"] is not None:
        links = fields["link_numbers"].entries.to(device)
        changed["link_numbers"] = fields["link_numbers"].moved(links, segments["nodes"])
    return changed


def as_stored(fields: Fields) -> dict[str, Any]:
    """The fields that a store keeps otherwise: integers in the narrowest type, floats in float32, no extras."""
    changed: dict[str, Any] = {
        name: None if fields[name] is None else _narrowed(fields[name]) for name in FEATURE_FIELDS
    }
    if fields["graph_features"] is not None:
        changed["graph_features"] = fields["graph_features"].float()
    numbers = (*STRUCTURE, *(() if fields["link_numbers"] is None else ("link_numbers",)))
    changed |= {name: fields[name].narrowed() for name in numbers}
    return {**changed, "extras": ()}


def _narrowed(features: Features) -> Features:
    return features.narrowed() if isinstance(features, SparseRows) else narrowed(features)
