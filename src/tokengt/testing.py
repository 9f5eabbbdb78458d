"""Symmetry assertions to run on any model: does renumbering nodes and edges change what it must not?"""

import inspect
from collections.abc import Callable
from copy import copy
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.graph import Graph
from tokengt.interop.pyg import as_batch, counted_by
from tokengt.models.contract import Model as OurModel
from tokengt.models.tokengt.identifiers import identify
from tokengt.models.tokengt.model import TokenGT

Model = Callable[..., Tensor]


def permute_graph(
    graph: Graph,
    nodes: Int[Tensor, " nodes"],
    edges: Int[Tensor, " edges"] | None = None,
    hyperedges: Int[Tensor, " hyperedges"] | None = None,
) -> Graph:
    """The same graph with node ``nodes[i]`` now called i and its edges and hyperedges listed in another order."""
    if not torch.equal(nodes.sort().values, torch.arange(graph.num_nodes, device=nodes.device)):
        raise ValueError(f"nodes must be a permutation of 0 to {graph.num_nodes - 1}")
    # The inverse permutation: the new number of every old node.
    renamed = torch.empty_like(nodes)
    renamed[nodes] = torch.arange(graph.num_nodes, device=nodes.device)
    order = torch.arange(graph.num_edges, device=nodes.device) if edges is None else edges
    hyper = torch.arange(graph.num_hyperedges, device=nodes.device) if hyperedges is None else hyperedges
    batch = GraphBatch.collate([graph])
    rows, members = batch.members.take(hyper.cpu())
    return Graph(
        None if graph.node_features is None else graph.node_features[nodes],
        renamed[graph.edge_index[:, order]],
        None if graph.edge_features is None else graph.edge_features[order],
        num_nodes=graph.num_nodes,
        hyperedge_nodes=renamed[graph.hyperedge_nodes[rows]],
        hyperedge_offsets=members.offsets,
        hyperedge_features=None if graph.hyperedge_features is None else graph.hyperedge_features[hyper],
        graph_features=graph.graph_features,
        extras=graph.extras,
    )


def assert_permutation_invariant(
    model: Model,
    graph: Any,
    *,
    node_ids: Float[Tensor, "nodes id_dim"] | None = None,
    trials: int = 3,
    seed: int = 0,
    atol: float | None = None,
) -> None:
    """Assert that graph-level outputs do not change when nodes and edges are renumbered.

    Args:
        model: a model of ours or any callable, in evaluation mode. One whose parameters include ``edge_index`` is
            called as PyG's modules are, with each of ``x``, ``edge_index``, ``edge_attr``, ``batch`` and the other
            attributes of the data that it has a parameter for. Any other gets one argument: PyG data as it is, with a
            ``batch`` of zeros, or else a :class:`GraphBatch`, as models of ours always do.
        graph: the graph to renumber, a :class:`Graph` or a PyG ``Data``, whose attributes of nodes and edges (``pos``,
            ``edge_weight``) are renumbered with it.
        node_ids: identifiers that travel with their nodes, passed as ``model(batch, node_ids=...)``. A TokenGT without
            them draws its own once and carries them along: the model is invariant given its identifiers.
        trials: how many random renumberings.
        atol: largest difference allowed; None for 1e-5 (float32) or 1e-10 (float64) times max(1, |y|).
    """
    _check(model, graph, "graph", node_ids, trials, seed, atol)


def assert_permutation_equivariant(
    model: Model,
    graph: Any,
    *,
    level: Literal["node", "edge"] = "node",
    node_ids: Float[Tensor, "nodes id_dim"] | None = None,
    trials: int = 3,
    seed: int = 0,
    atol: float | None = None,
) -> None:
    """Assert that node or edge outputs permute along with the nodes or the listed edges. Arguments as above."""
    _check(model, graph, level, node_ids, trials, seed, atol)


def _check(
    model: Model,
    graph: Any,
    level: str,
    node_ids: Tensor | None,
    trials: int,
    seed: int,
    atol: float | None,
) -> None:
    if isinstance(model, TokenGT) and model.config.identifiers.first_order:
        raise ValueError("first-order identifiers are drawn anew for every token: no model with them is symmetric")
    if isinstance(model, nn.Module) and model.training:
        raise ValueError("the model is in training mode, where dropout and draws change every call; call model.eval()")
    if level not in ("graph", "node", "edge"):
        raise ValueError(f"level is {level!r}; expected 'node' or 'edge'")
    generator = torch.Generator().manual_seed(seed)
    batch = as_batch(graph)
    if len(batch) != 1:
        raise ValueError(f"graph is a batch of {len(batch)} graphs; expected one graph")
    if batch.num_hyperedges and not isinstance(graph, Graph):
        raise ValueError("hyperedges of PyG data cannot be renumbered here; convert the graph with tokengt.from_pyg")
    if node_ids is None and isinstance(model, TokenGT):
        drawn = identify(batch, model.config.identifiers)
        node_ids = None if drawn is None else drawn.nodes
    expected = _call(model, graph, node_ids)
    rows = {"graph": 1, "node": batch.num_nodes, "edge": batch.num_edges}[level]
    if len(expected) != rows:
        raise AssertionError(f"the model returned {len(expected)} rows for {rows} {level}s")
    for trial in range(trials):
        nodes, edges, hyperedges = (
            torch.randperm(count, generator=generator).to(batch.device)
            for count in (batch.num_nodes, batch.num_edges, batch.num_hyperedges)
        )
        moved = (
            permute_graph(graph, nodes, edges, hyperedges)
            if isinstance(graph, Graph)
            else _permuted_data(graph, nodes, edges)
        )
        outputs = _call(model, moved, None if node_ids is None else node_ids[nodes])
        wanted = expected if level == "graph" else expected[nodes if level == "node" else edges]
        _compare(outputs, wanted, f"{level} outputs changed under renumbering {trial}", atol)


def _permuted_data(data: Any, nodes: Int[Tensor, " nodes"], edges: Int[Tensor, " edges"]) -> Any:
    """A PyG ``Data`` renumbered: every attribute that it counts by nodes or by edges goes along."""
    renamed = torch.argsort(nodes)
    moved = copy(data)
    for key, value in data.to_dict().items():
        if key == "edge_index":
            moved[key] = renamed[value[:, edges]]
        elif isinstance(value, Tensor):
            order = {"node": nodes, "edge": edges, "graph": None}[counted_by(data, key)]
            moved[key] = value if order is None else value[order]
    return moved


def _call(model: Model, graph: Any, node_ids: Tensor | None) -> Tensor:
    options: dict[str, Any] = {} if node_ids is None else {"node_ids": node_ids}
    parameters = inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters
    with torch.no_grad():
        if "edge_index" in parameters:
            attributes = _attributes(graph)
            return model(**{name: attributes[name] for name in parameters if name in attributes}, **options)
        if isinstance(graph, Graph) or isinstance(model, OurModel):
            return model(as_batch(graph), **options)
        alone = copy(graph)
        alone.batch = _attributes(graph)["batch"]
        return model(alone, **options)


def _attributes(graph: Any) -> dict[str, Any]:
    """What a PyG-style module may ask for by name."""
    if not isinstance(graph, Graph):
        return {"edge_attr": None, **graph.to_dict(), "batch": as_batch(graph).nodes.ids}
    return {
        "x": graph.node_features,
        "edge_index": graph.edge_index,
        "edge_attr": graph.edge_features,
        "batch": as_batch(graph).nodes.ids,
    }


def _compare(found: Tensor, wanted: Tensor, what: str, atol: float | None) -> None:
    if found.shape != wanted.shape:
        raise AssertionError(f"{what}: shape {list(found.shape)} instead of {list(wanted.shape)}")
    if found.numel() == 0:
        return
    allowed = atol
    if allowed is None:
        allowed = (1e-10 if found.dtype == torch.float64 else 1e-5) * max(1.0, float(wanted.abs().max()))
    worst = float((found - wanted).abs().max())
    if not worst <= allowed:
        raise AssertionError(f"{what}: largest difference {worst:.3g}, allowed {allowed:.3g}")
