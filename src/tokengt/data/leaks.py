"""What makes a split look better or worse than it is: graphs that stand in two parts, elements never trained on."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.batching import evaluation_batches
from tokengt.data.splits import Split
from tokengt.draws import chain, mix
from tokengt.interop.molecules import ATOM_CATEGORIES, DEFAULT_POLICY, MoleculePolicy, TextKind, canonical_smiles
from tokengt.ragged import Segments
from tokengt.sparse import as_dense

PAIRS = (("train", "valid"), ("train", "test"), ("valid", "test"))
EXAMPLES = 3
# Salts that keep hashes of different uses apart: multiples of the step of splitmix64, as signed 64-bit integers. An
# edge of k nodes needs k + 3 of them.
_SALTS = [(salt * 0x9E3779B97F4A7C15 + 2**63) % 2**64 - 2**63 for salt in range(64)]
ELEMENTS = tuple(
    re.findall(
        "[A-Z][a-z]?",
        "HHeLiBeBCNOFNeNaMgAlSiPSClArKCaScTiVCrMnFeCoNiCuZnGaGeAsSeBrKrRbSrYZrNbMoTcRuRhPdAgCdInSnSbTeIXeCsBaLaCePrNd"
        "PmSmEuGdTbDyHoErTmYbLuHfTaWReOsIrPtAuHgTlPbBiPoAtRnFrRaAcThPaUNpPuAmCmBkCfEsFmMdNoLrRfDbSgBhHsMtDsRgCnNhFlMcLv"
        "TsOg",
    )
)
# How many nodes and edges are hashed at a time, which takes some tens of megabytes.
_CHUNK = 1 << 20
# Few rounds find candidates; where nothing else can confirm them, many rounds decide.
_ROUNDS, _MORE_ROUNDS = 3, 16
# Chirality and bond stereo depend on the order in which a SMILES spells the neighbours; all other columns do not.
_STEREO_COLUMN = 1


@dataclass(frozen=True)
class LeakReport:
    """Graphs that stand in two parts.

    ``counts[a, b]`` of part b's graphs also stand in part a; ``examples[a, b]`` are the first few of them, each the
    place in a and the place in b. ``train_repeats`` train graphs repeat an earlier train graph. ``sizes`` are the
    graphs in each part. Molecules are the same when their canonical SMILES are; ``molecules`` False means that
    colour refinement could not tell the graphs apart.
    """

    counts: Mapping[tuple[str, str], int]
    examples: Mapping[tuple[str, str], tuple[tuple[int, int], ...]]
    train_repeats: int
    sizes: Mapping[str, int]
    molecules: bool

    def __bool__(self) -> bool:
        """Whether any graph stands in two parts."""
        return any(self.counts.values())

    def sentences(self, lines: Sequence[int] | Tensor | None = None, unit: str = "line") -> list[str]:
        """What to print, nothing when there is nothing to say. ``lines[place]`` is where a graph stands in its file."""
        what, verb = ("molecules", "also stand in") if self.molecules else ("graphs", "look like graphs of")

        def name(place: int) -> str:
            return f"graph {place}" if lines is None else f"{unit} {int(lines[place])}"

        sentences = []
        for (first, second), count in self.counts.items():
            if count:
                shown = [f"{name(b)} = {name(a)}" for a, b in self.examples[first, second]]
                shown += ["..."] if count > len(shown) else []
                sentences.append(
                    f"{count:,} of {self.sizes[second]:,} {second} {what} {verb} {first} ({', '.join(shown)})"
                )
        if self.train_repeats:
            sentences.append(f"{self.train_repeats:,} of {self.sizes['train']:,} train {what} repeat an earlier one")
        return sentences


def leaks(
    graphs: GraphBatch,
    split: Split,
    texts: Sequence[str] | None = None,
    *,
    policy: MoleculePolicy = DEFAULT_POLICY,
    kind: TextKind = "smiles",
) -> LeakReport:
    """Find equal graphs in different parts. ``graphs`` lie on the CPU; ``split`` holds places of graphs.

    A colour-refinement hash finds candidates. With ``texts`` (one per graph) they are molecules, and their canonical
    SMILES under the ``policy`` decide. Without, a hash of more rounds and all features decides: equal graphs are
    always found, and different ones that colour refinement cannot tell apart count as equal.
    """
    parts = {name: places.numpy() for name, places in split.parts().items()}
    places = torch.cat(list(split.parts().values()))
    candidates = places[_repeated(_hashes(graphs, places, _ROUNDS, molecules=texts is not None))]
    # Graphs with equal numbers are the same; to begin with, all are different.
    same = np.arange(len(graphs))
    if texts is None:
        keys = _hashes(graphs, candidates, _MORE_ROUNDS, molecules=False)
    else:
        smiles = canonical_smiles([texts[place] for place in candidates.tolist()], policy, kind)
        names = [text if text is not None else f"? {place}" for place, text in enumerate(smiles)]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        keys = torch.tensor([numbers[name] for name in names], dtype=torch.int64)
    same[candidates.numpy()] = len(graphs) + torch.unique(keys, return_inverse=True)[1].numpy()
    shared = {pair: _shared(parts[pair[0]], parts[pair[1]], same) for pair in PAIRS}
    return LeakReport(
        counts={pair: len(hits) for pair, hits in shared.items()},
        examples={pair: tuple((int(a), int(b)) for a, b in hits[:EXAMPLES]) for pair, hits in shared.items()},
        train_repeats=len(parts["train"]) - len(np.unique(same[parts["train"]])),
        sizes={name: len(mine) for name, mine in parts.items()},
        molecules=texts is not None,
    )


def unseen_elements(graphs: GraphBatch, split: Split) -> dict[str, int]:
    """Symbols of elements that valid or test molecules hold but no train molecule, and how many molecules hold them.

    Column 0 of ``node_features`` is the row of the atomic number; atoms that are no element count as "*".
    """
    assert isinstance(graphs.node_features, Tensor)
    element = graphs.node_features[:, 0].numpy()
    # The part of every node's graph: 0 train, 1 valid, 2 test, -1 none.
    part = np.repeat(split.codes(len(graphs)).numpy(), graphs.nodes.host_lengths.numpy())
    trained = np.bincount(element[part == 0], minlength=ATOM_CATEGORIES[0]) > 0
    rows = np.flatnonzero((part > 0) & ~trained[element])
    molecule = np.searchsorted(graphs.nodes.host.numpy(), rows, side="right")
    holds = np.unique(np.stack([molecule, element[rows]]), axis=1)
    counts = np.bincount(holds[1], minlength=ATOM_CATEGORIES[0])
    return {_symbol(row): int(counts[row]) for row in np.flatnonzero(counts).tolist()}


def graph_hashes(batch: GraphBatch, rounds: int) -> Int[Tensor, " graphs"]:
    """One 64-bit hash per graph that does not depend on the numbers of its nodes or the order of its edges.

    Each round, a node's colour takes in the multiset of its edges: their features, the colours at their ends, and
    the end it stands at; of hyperedges likewise. A multiset is hashed as the sum of its members' hashes, which does
    not depend on their order; sums may wrap around.
    """
    colour = _salted(_row_hashes(as_dense(batch.node_features), batch.num_nodes), 1)
    edge = _row_hashes(batch.edge_features, batch.num_edges)
    hyperedge = _row_hashes(batch.hyperedge_features, batch.num_hyperedges)
    joined = hyperedge
    for _ in range(rounds):
        heard = torch.zeros_like(colour)
        together = chain(torch.stack([edge, *(colour.index_select(0, ends) for ends in batch.edge_index)]))
        for end, nodes in enumerate(batch.edge_index):
            heard.index_add_(0, nodes, _salted(together, 3 + end))
        if batch.num_hyperedges:
            inside = _salted(colour.index_select(0, batch.hyperedge_nodes), 2)
            joined = _salted(hyperedge + _sums(inside, batch.members), 1)
            heard.index_add_(0, batch.hyperedge_nodes, _salted(joined, 2).index_select(0, batch.members.ids))
        colour = _salted(_salted(colour, 2) + heard, 1)
    total = _sums(_salted(colour, 2), batch.nodes) + _sums(_salted(joined, 3), batch.hyperedges)
    return _salted(total + _row_hashes(batch.graph_features, batch.num_graphs), 1)


def _hashes(graphs: GraphBatch, places: Tensor, rounds: int, molecules: bool) -> Int[Tensor, " places"]:
    """The hashes of the graphs at these places, worked out piece by piece in bounded memory."""
    hashes = torch.zeros(len(graphs), dtype=torch.int64)
    sizes = graphs.nodes.host_lengths + graphs.edges.host_lengths
    for chunk in evaluation_batches(places, sizes, _CHUNK):
        batch = graphs.select(chunk)
        hashes[chunk] = graph_hashes(_without_stereo(batch) if molecules else batch, rounds)
    return hashes.index_select(0, places)


def _without_stereo(batch: GraphBatch) -> GraphBatch:
    """What every spelling of a molecule has in common; extra descriptors are not part of the molecule."""
    node, edge = (
        None if features is None else torch.cat([features[:, :_STEREO_COLUMN], features[:, _STEREO_COLUMN + 1 :]], 1)
        for features in (as_dense(batch.node_features), batch.edge_features)
    )
    return replace(batch, node_features=node, edge_features=edge, graph_features=None)


def _repeated(keys: Int[Tensor, " places"]) -> Int[Tensor, " repeated"]:
    """Where a key stands that occurs more than once."""
    _, group, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    return torch.nonzero(counts.index_select(0, group) > 1).flatten()


def _shared(first: NDArray[np.int64], second: NDArray[np.int64], same: NDArray[np.int64]) -> NDArray[np.int64]:
    """[shared, 2] for every place of ``second`` with an equal in ``first``: the first such equal, and the place."""
    keys, where = np.unique(same[first], return_index=True)
    slot = np.searchsorted(keys, same[second]).clip(max=max(len(keys) - 1, 0))
    hit = keys[slot] == same[second] if len(keys) else np.zeros(len(second), dtype=bool)
    return np.stack([first[where[slot[hit]]], second[hit]], 1)


def _row_hashes(features: Shaped[Tensor, "rows _"] | None, rows: int) -> Int[Tensor, " rows"]:
    """One hash per row: of integers by value, of floats by their bits; zero where there are no features."""
    if features is None or features.shape[1] == 0:
        return torch.zeros(rows, dtype=torch.int64)
    # Adding zero turns -0.0 into 0.0, which compares equal but has other bits.
    bits = (features.double() + 0.0).view(torch.int64) if features.is_floating_point() else features.long()
    return chain(bits.T)


def _salted(x: Int[Tensor, " rows"], salt: int) -> Int[Tensor, " rows"]:
    """The salt keeps hashes of different uses apart, and keeps the hash of 0 from being 0, which adds nothing."""
    return mix(x + _SALTS[salt])


def _sums(values: Int[Tensor, " rows"], segments: Segments) -> Int[Tensor, " segments"]:
    """The wrapped-around sum of each segment, exact as a difference of running sums."""
    ends = torch.cat([values.new_zeros(1), torch.cumsum(values, 0)])
    return ends.index_select(0, segments.offsets).diff()


def _symbol(row: int) -> str:
    # The table is our own, because RDKit may not be installed on a machine that only trains.
    return ELEMENTS[row] if row < len(ELEMENTS) else "*"
