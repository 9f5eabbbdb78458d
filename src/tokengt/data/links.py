"""A store of links: pairs of nodes with a label that says whether they are joined.

*Positives* are pairs that are joined, or will be; *negatives* are pairs that are not. A source that lists positives
alone, such as a graph whose own edges are the links, gets one negative beside each of them (:func:`with_negatives`).
Which edges a model may read is decided here as well, once, before anything is trained (:func:`read_without`): no edge
between the nodes of a pair that validates, tests or is of no part is left in the graphs.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.manifest import NO_PART, TargetColumn
from tokengt.data.splits import Split
from tokengt.data.store import Store
from tokengt.links import edges_as_links, is_directed, non_links, without_edges_of
from tokengt.ragged import interleave

# The name of the label of pairs that have none of their own.
LINK = "link"
# The columns that name the two nodes of a pair, where the source has no names of its own for them.
LINK_ENDS = ("source", "target")
# What tells the negatives that are drawn once from those of an epoch, whose number is never negative.
_ONCE = -1


def linked_by_edges(graphs: GraphBatch) -> tuple[GraphBatch, Float64[Tensor, "links 1"]]:
    """The same graphs, asked about their own edges, all of which are positives.

    Raises:
        ValueError: there is no edge, or an edge joins more than two nodes.
    """
    if graphs.order != 2 or graphs.hyperedges.total:
        raise ValueError("links join two nodes, and these graphs have larger edges; expected edges of two nodes")
    linked = edges_as_links(graphs, is_directed(graphs))
    if not linked.links.total:
        raise ValueError("the graphs have no edge between two nodes; expected some to learn links from")
    return linked, torch.ones(linked.links.total, 1, dtype=torch.float64)


def as_links(store: Store) -> Store:
    """A store of anything, asked about the edges of its graphs; its labels and its split are not looked at."""
    if store.manifest.level == LINK:
        return store
    graphs, targets = linked_by_edges(store.graphs)
    manifest = replace(
        store.manifest,
        level="link",
        task=None,
        targets=(TargetColumn(LINK),),
        columns={**store.manifest.columns, "targets": [LINK], "split": None},
        counts={**store.manifest.counts, "rows": len(targets)},
    )
    return replace(store, manifest=manifest, graphs=graphs, targets=targets, split=None)


def refuse_target(targets: Sequence[str], what: str) -> None:
    """Refuse a target where the links of ``what`` are its edges."""
    if tuple(targets) not in ((), (LINK,)):
        raise ValueError(
            f"the links of {what} are its edges, which have no label {', '.join(targets)}: leave the target out"
        )


def check_labels(graphs: GraphBatch, targets: Float64[Tensor, "links 1"], told: str = "") -> None:
    """Refuse labels that are neither 0 nor 1, and a pair that has both of them.

    Of an undirected graph (u, v) and (v, u) are the same pair. ``told`` comes before the sentence, such as a file.
    """
    labels = targets[:, 0]
    wrong = ~labels.isnan() & (labels != 0) & (labels != 1)
    if bool(wrong.any()):
        place = int(torch.nonzero(wrong)[0])
        raise ValueError(
            f"{told}the label of {_pair(graphs, place)} is {labels[place]:g}; expected 1 or 0: link or not"
        )
    keys = _keys(graphs)
    both = torch.isin(keys[labels == 1], keys[labels == 0])
    if bool(both.any()):
        place = int(torch.nonzero(labels == 1).flatten()[both][0])
        raise ValueError(f"{told}{_pair(graphs, place)} has the label 1 and the label 0; expected one of them")


def _pair(graphs: GraphBatch, place: int) -> str:
    assert graphs.link_numbers is not None
    u, v = graphs.link_numbers.local[:, place].tolist()
    graph, _ = graphs.graph_of_row(graphs.links, place)
    return f"the pair of nodes {u} and {v}" + ("" if len(graphs) == 1 else f" of graph {graph}")


def _keys(graphs: GraphBatch) -> Int[Tensor, " links"]:
    """One number per pair; of undirected graphs the same for both of its orders."""
    pairs = graphs.link_index
    if not is_directed(graphs):
        pairs = torch.stack([pairs.amin(0), pairs.amax(0)])
    return pairs[0] * graphs.num_nodes + pairs[1]


def with_negatives(store: Store, seed: int) -> Store:
    """The store with one drawn negative beside each positive, where the source lists no negatives; else as it is.

    They are drawn once, by ``seed``, from the pairs that are neither edges nor links, and follow the links of their
    graph; a graph of which all nodes are joined has none. ``drawn`` says which row each was drawn for. They validate
    and test; training draws its own in every epoch.
    """
    labels = store.targets[:, 0]
    if store.drawn is not None or bool((labels == 0).any()):
        return store
    graphs, positive = store.graphs, labels == 1
    if not bool(positive.any()):
        return store
    links, index = graphs.links, graphs.link_index
    per_graph = torch.bincount(links.ids[positive], minlength=len(graphs)).cpu()
    others = non_links(graphs, index)
    drawn = others.drawn(torch.arange(len(graphs)), per_graph, seed, _ONCE)
    together, (old, new) = interleave([links, drawn.segments])
    full = torch.repeat_interleave(others.room > 0, per_graph)
    asked_for = old[positive][full]
    whole = index.new_empty(2, together.total)
    whole[:, old], whole[:, new] = index, drawn.index
    targets = store.targets.new_zeros(together.total, 1)
    targets[old] = store.targets
    partner = torch.full((together.total,), -1)
    partner[new] = asked_for
    split = None
    if store.split is not None:
        split = store.split.new_full((together.total, *store.split.shape[1:]), NO_PART)
        split[old] = store.split
        split[new] = split[asked_for]
    return replace(store, graphs=graphs.with_links(together, whole), targets=targets, split=split, drawn=partner)


def asked_alone(store: Store) -> Store:
    """The store as it is; refused where every edge is asked about, so that a model would read none.

    Raises:
        ValueError: one sentence: there is no edge beside the pairs.
    """
    graphs = store.graphs
    if graphs.num_edges and not without_edges_of(graphs).num_edges:
        raise ValueError(
            f"every edge of {store.manifest.source.name} is asked about, so that none is left to read; expected pairs "
            "to ask about (PyG's edge_label_index, or a table of pairs), and edges that are not among them"
        )
    return store


def read_without(store: Store, split: Split) -> Store:
    """The store without the edges between nodes of a pair that is not of the training part: nothing reads them.

    Raises:
        ValueError: one sentence: a pair is of two parts, or no edge or no positive is left to learn from.
    """
    graphs, codes = store.graphs, split.codes(len(store.targets))
    train = codes == 0
    _check_parts(store, split)
    if not bool((store.targets[train, 0] == 1).any()):
        raise ValueError("no pair of the training part has the label 1; expected some links to learn from")
    left = without_edges_of(graphs, graphs.link_index[:, ~train])
    if not left.num_edges:
        raise ValueError(
            f"all {graphs.num_edges:,} edges are asked about by the validation and the test part, so that none is left "
            "to read; expected edges that are not asked about, or pairs of another split"
            if graphs.num_edges
            else "the graphs have no edges; expected some to read, beside the pairs that are asked about"
        )
    return replace(store, graphs=left)


def _check_parts(store: Store, split: Split) -> None:
    """Refuse a pair that stands in two parts: training would be told what the other part asks."""
    keys, asked = _keys(store.graphs), store.targets[:, 0] == 1
    for name, rows in (("valid", split.valid), ("test", split.test)):
        twice = torch.isin(keys[rows], keys[split.train]) & asked[rows]
        if bool(twice.any()):
            place = int(rows[twice][0])
            raise ValueError(f"{_pair(store.graphs, place)} stands in the train and the {name} part; expected one part")
