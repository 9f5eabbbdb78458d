"""Which pieces of molecules move predictions most: each is left out of molecules that have it."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tokengt.data.store import Store
from tokengt.explain.attributions import occlusions, subject_of
from tokengt.explain.run_summary import Picture, Substructure
from tokengt.explain.tokens import Tokens
from tokengt.inference import Predictor
from tokengt.interop.depiction import depict
from tokengt.interop.fragments import fragments
from tokengt.workflow.explaining import ready

# So many molecules are looked at, evenly spread over the file.
MOLECULES = 200
# A piece that fewer molecules have says little, unless hardly any molecule was looked at.
_FEWEST = 3
_SHOWN = 24


@dataclass(frozen=True, eq=False)
class FoundSubstructures:
    """The pieces that move predictions most, the most first, and how many molecules were looked at."""

    best: tuple[Substructure, ...]
    looked_at: int


def find_substructures(predictor: Predictor, store: Store, molecules: int = MOLECULES) -> FoundSubstructures:
    """Leave every piece (:mod:`tokengt.interop.fragments`) out of every molecule, and compare the predictions.

    Raises:
        ValueError: one sentence: the run is not about whole molecules.
    """
    policy, texts = predictor.spec.molecules, store.each_text
    if policy is None or texts is None or predictor.spec.level != "graph":
        raise ValueError("substructures are those of molecules that a run predicts as a whole")
    count = max(1, molecules // len(predictor.members))
    places = np.unique(np.linspace(0, len(store) - 1, min(count, len(store))).round().astype(np.int64))
    changes: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
    for place in places.tolist():
        pieces = fragments(texts[place], policy)
        # A molecule of one piece leaves nothing to compare with.
        if len(pieces) > 1:
            found = _changes(predictor, store, place, [piece.atoms for piece in pieces])
            own: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
            for piece, change in zip(pieces, found, strict=True):
                own[piece.smiles].append(change)
            for smiles, several in own.items():
                changes[smiles].append(np.mean(several, 0))
    fewest = _FEWEST if len(places) >= 20 else 1
    every = [_summed(smiles, np.stack(each)) for smiles, each in changes.items() if len(each) >= fewest]
    every.sort(key=lambda each: (-float(np.abs(each.change).max()), each.smiles))
    return FoundSubstructures(tuple(_drawn(each) for each in every[:_SHOWN]), len(places))


def _changes(
    predictor: Predictor, store: Store, place: int, pieces: list[tuple[int, ...]]
) -> Float[NDArray[np.float64], "pieces outputs"]:
    """Prediction minus prediction without each piece, the mean over the models of the run."""
    # Read again, because a store of mol blocks keeps SMILES beside graphs whose atoms are numbered otherwise.
    graph, _, _ = predictor.read_texts(store.texts([place]) or ())
    given = store.graphs.graph_features
    graph = graph if given is None else graph.with_graph_features(given[place : place + 1])
    parts = []
    for member in predictor.members:
        own = ready(member, graph, predictor.device)
        subject = subject_of(member.model, own, reading=member.task.readable)
        groups = [tokens_with(subject.tokens, piece) for piece in pieces]
        parts.append(occlusions(subject, groups).changes)
    mean: NDArray[np.float64] = np.mean(parts, 0)
    return mean


def tokens_with(tokens: Tokens, nodes: tuple[int, ...]) -> list[int]:
    """The tokens of some nodes, and of all edges that end at one of them."""
    return np.flatnonzero(np.isin(tokens.endpoints, nodes).any(1)).tolist()


def _summed(smiles: str, changes: Float[NDArray[np.float64], "molecules outputs"]) -> Substructure:
    count = len(changes)
    half = 1.96 * changes.std(0, ddof=1) / count**0.5 if count > 1 else np.full(changes.shape[1], np.nan)
    return Substructure(smiles, count, changes.mean(0), half, None)


def _drawn(piece: Substructure) -> Substructure:
    """The same with its picture; a piece that RDKit does not read by itself has none."""
    try:
        picture = Picture(depict(piece.smiles))
    except ValueError:
        return piece
    return Substructure(piece.smiles, piece.molecules, piece.change, piece.half_width, picture)
