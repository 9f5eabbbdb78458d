"""What the structure of a graph says of each of its nodes, as labels: rings through it, and returns of random walks.

A graph gives these labels by itself. A model that works them out from node identifiers alone has learned to read the
identifiers, and is fine-tuned from there; one that is told them as input would have nothing to learn
(:func:`refuse_answers`).
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float32, Int8
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.config import override
from tokengt.data.manifest import FILE_PART, Manifest, TargetColumn, featurisation, policy_of
from tokengt.data.progress import say
from tokengt.data.splitting import SplitRequest, make_splits
from tokengt.data.store import Store
from tokengt.models.contract import ModelConfig
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.structure.facts import EdgeRings, EdgeWalks, NodeRings, WalkReturns, fact_of
from tokengt.structure.rings import APART

RINGS, WALKS = NodeRings(24), WalkReturns(12)
# What ZINC was learned with, where that is not what training does by itself.
RECIPE: Mapping[str, Any] = MappingProxyType(
    {
        "training.loss": "huber",
        "training.metric": "rmse",
        "training.batch_size": 128,
        "training.learning_rate": 2e-3,
        "training.warmup": 0.03,
        "training.weight_decay": 1e-5,
        "training.ema": 0.999,
    }
)
# Probabilities that differ by less are the same, but for their rounding.
_ALIKE = 1e-6
_RING_NAMES = (*(f"rings of {size}" for size in APART), "longer rings", "nodes in longer rings")


def node_labels(graphs: GraphBatch, rings: bool = True) -> tuple[Float32[Tensor, "nodes columns"], tuple[str, ...]]:
    """Labels of every node and their names, without columns that are the same for all nodes.

    With ``rings``, how many rings of 3, 4, ..., 8 nodes go through it, how many of 9 to 24, and how many nodes those
    have together. Then how likely a random walk is back at it after 2, 3, ..., 12 steps; after one step it is back only
    along a self-loop, which is no walk.

    Raises:
        ValueError: the graphs are too dense for rings, or too large for walks.
    """
    columns, names = [fact_of(graphs, WALKS)[:, 1:]], [f"walks of {step} steps" for step in range(2, WALKS.steps + 1)]
    if rings:
        columns, names = [fact_of(graphs, RINGS).float(), *columns], [*_RING_NAMES, *names]
    values = torch.cat(columns, 1)
    if not len(values):
        return values[:, :0], ()
    varied = values.amax(0) - values.amin(0) > _ALIKE
    return values[:, varied], tuple(name for name, kept in zip(names, varied.tolist(), strict=True) if kept)


def structure_store(store: Store, shown: bool = False, seed: int = 0) -> Store:
    """The same graphs with :func:`node_labels` in place of their own labels; nodes are in the parts of their graphs.

    Parts are those that the data came with, if any; ``seed`` draws the validation part where they have none.
    Numbers about whole graphs are left out: RDKit's descriptors, for one, count rings. With ``shown``, a sentence says
    that the graphs are too dense for rings, where they are; walks alone are learned then.

    Raises:
        ValueError: one sentence: the data is of links, or its nodes are all alike.
    """
    if store.manifest.level == "link":
        raise ValueError(
            "the data asks which nodes are joined, and rings and random walks would tell; expected graphs without links"
        )
    known, rings = store.with_facts([WALKS], shown), True
    try:
        known = known.with_facts([RINGS], shown)
    except ValueError:
        rings = False
        say("the graphs are too densely joined to count their rings; random walks alone are learned", shown)
    values, names = node_labels(known.graphs, rings)
    if not names:
        raise ValueError("the nodes are all alike in rings and random walks; expected graphs whose nodes differ")
    split = _parts(store, seed)
    return replace(
        store,
        manifest=_manifest(store.manifest, names, len(values), split is not None),
        graphs=replace(store.graphs, graph_features=None),
        targets=values.double(),
        split=split,
        folder=None,
        weights=None,
        bounds=None,
    )


def _manifest(before: Manifest, names: tuple[str, ...], rows: int, split: bool) -> Manifest:
    """What a store says of itself once it has these labels; it lies in memory, so that it has no files."""
    return replace(
        before,
        featurisation=_without_features(before.featurisation),
        level="node",
        task="regression",
        targets=tuple(TargetColumn(name) for name in names),
        descriptors=(),
        columns={
            "smiles": before.columns.get("smiles"),
            "targets": list(names),
            "split": _column(before) if split else None,
        },
        counts={**before.counts, "rows": rows},
        files={},
    )


def _column(before: Manifest) -> Any:
    """Where the parts come from; those of a file for each part are of nodes now, and no longer of graphs."""
    column = before.columns.get("split")
    return None if column == FILE_PART else column


def _without_features(made: Mapping[str, Any]) -> Mapping[str, Any]:
    """How graphs are made of molecules that come without numbers about the whole of them."""
    policy = policy_of(made)
    return made if policy is None else {**made, **featurisation(replace(policy, features=()))}


def _parts(store: Store, seed: int) -> Int8[Tensor, "nodes *splits"] | None:
    """The part of every node: that of its graph, or its own where the data splits nodes; parts of edges are none.

    Where all that is to be learned from is one graph, its nodes are split when it is trained on.
    """
    if store.split is None or store.manifest.level == "edge":
        return None
    if store.manifest.level == "node":
        return store.split
    # Whole graphs are split, also where a validation part has to be taken out of those to train on.
    (split,), _ = make_splits(store, SplitRequest(seed=seed))
    return split.codes(len(store)).index_select(0, store.graphs.nodes.ids)


def refuse_answers(config: ModelConfig, settings: Mapping[str, Any]) -> None:
    """Refuse a model that is given what it is to learn; ``settings`` are those of the model, by their paths inside it.

    Raises:
        ValueError: one sentence: which setting gives it.
    """
    if isinstance(config, TokenGTConfig):
        inner = {path: value for path, value in settings.items() if path.partition(".")[0] == "structure"}
        structure = override(config, inner, "model").structure
        given = [f"model.structure.{name}" for name in ("walks", "rings") if getattr(structure, name)]
        if given:
            raise ValueError(
                f"the model is given by {' and '.join(given)} what it is to learn; set {' and '.join(given)} to 0"
            )
    elif any(isinstance(fact, WalkReturns | EdgeWalks | NodeRings | EdgeRings) for fact in config.facts()):
        raise ValueError(
            f"a {config.describe().name} is given random walks or rings, which it is to learn; expected a model "
            "without them, such as the preset small"
        )
