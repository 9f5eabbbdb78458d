"""A random forest beside a model: its trees as arrays, which anybody can read and nothing has to unpickle.

A tree looks at one column of a graph's features at every node: where the number is at most the node's threshold, the
left child is next, which is the following node, else the right one. A leaf holds what it says: a number, the
probability of class 1, or one probability per class. A forest says the mean over its trees (Breiman 2001); every target
has as many trees of its own. scikit-learn grows them (:mod:`tokengt.training.forest`) and is not needed to ask them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int16, Int32
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tokengt.files import checksum, write_whole
from tokengt.models.pretrained import read_saved

FILE = "forest.safetensors"
_FORMAT, _ABOUT = "tokengt-forest-1", "about"
HALF = 0.5
# Columns that a tree can tell apart by 16 bits.
MOST_COLUMNS = 2**15 - 1
# Rows times trees that are followed at once.
_AT_ONCE = 2**20


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees, node after node, each tree's own in the order in which a walk to the left meets them.

    Args:
        column: which feature a node looks at; -1 for a leaf.
        threshold: of nodes; 0 for leaves.
        other: the right child of a node; of a leaf, its row in ``said``.
        said: what leaves say.
        roots: the first node of every tree, by target.
        share: how much of what is predicted of a target is the forest's; the rest is the model's.
    """

    column: Int16[Tensor, " nodes"]
    threshold: Float32[Tensor, " nodes"]
    other: Int32[Tensor, " nodes"]
    said: Float32[Tensor, "leaves width"]
    roots: Int[Tensor, "targets trees"]
    share: Float32[Tensor, " targets"]

    @classmethod
    def of_trees(cls, trees: Sequence[Sequence[Any]], said: Sequence[Sequence[Any]]) -> "Forest":
        """From scikit-learn's trees by target, and what each of their nodes says, [nodes, width]."""
        parts: dict[str, list[Any]] = {name: [] for name in ("column", "threshold", "other", "said", "roots")}
        nodes = leaves = 0
        for tree, words in zip(chain(*trees), chain(*said), strict=True):
            leaf = tree.children_left < 0
            inner = np.flatnonzero(~leaf)
            assert np.array_equal(tree.children_left[inner], inner + 1), "a left child is not the following node"
            place = leaves + np.cumsum(leaf) - 1
            parts["column"].append(np.where(leaf, -1, tree.feature))
            parts["threshold"].append(np.where(leaf, 0, at_most(tree.threshold)))
            parts["other"].append(np.where(leaf, place, nodes + tree.children_right))
            parts["said"].append(words[leaf])
            parts["roots"].append(nodes)
            nodes, leaves = nodes + len(leaf), leaves + int(leaf.sum())
        kinds = {"column": np.int16, "threshold": np.float32, "other": np.int32, "said": np.float32}
        arrays = {name: torch.from_numpy(np.concatenate(parts[name]).astype(kind)) for name, kind in kinds.items()}
        roots = torch.tensor(parts["roots"]).view(len(trees), -1)
        return cls(**arrays, roots=roots, share=torch.full((len(trees),), HALF))

    @property
    def width(self) -> int:
        """How many numbers are said of a row: one per target, or one per class."""
        return self.roots.shape[0] * self.said.shape[1]

    def __call__(self, features: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows width"]:
        """The mean over the trees of each target, in float64."""
        step = max(1, _AT_ONCE // self.roots.numel())
        return torch.cat([self._mean(part.float()) for part in torch.split(features, step)])

    def to(self, device: torch.device) -> "Forest":
        return Forest(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    def _mean(self, features: Float32[Tensor, "rows columns"]) -> Float[Tensor, "rows width"]:
        place = self.roots.flatten().expand(len(features), -1)
        while True:
            column = self.column[place].long()
            inner = column >= 0
            if not bool(inner.any()):
                break
            left = features.gather(1, column.clamp(min=0)) <= self.threshold[place]
            place = torch.where(inner, torch.where(left, place + 1, self.other[place].long()), place)
        said = self.said[self.other[place].long()].double()
        return said.view(len(features), *self.roots.shape, self.said.shape[1]).mean(2).flatten(1)


def at_most(numbers: Any) -> Any:
    """float64 thresholds in float32: the largest that is no larger, so that the same float32 features are below."""
    rounded = numbers.astype(np.float32)
    return np.where(rounded > numbers, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def write_forest(folder: Path, forest: Forest, run: str) -> None:
    """``forest.safetensors``, with a checksum of its own and the fingerprint of the run that it belongs to."""
    tensors = {field.name: getattr(forest, field.name).contiguous() for field in fields(forest)}
    told = {"format": _FORMAT, "run": run, "checksum": _checksum(tensors)}
    # Under one name, since safetensors writes several in any order.
    write_whole(folder / FILE, save(tensors, {_ABOUT: json.dumps(told)}))


def read_forest(folder: Path) -> Forest:
    """What :func:`write_forest` wrote.

    Raises:
        ValueError: one sentence: it is not there, not as it was written, or that of another run.
    """
    file = folder / FILE
    if not file.is_file():
        raise ValueError(f"{folder} was trained with a random forest beside its model, and {FILE} is missing")
    try:
        with safe_open(file, "pt") as opened:
            told = json.loads((opened.metadata() or {}).get(_ABOUT, "{}"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file: {error}") from error
    names = {field.name for field in fields(Forest)}
    if told.get("format") != _FORMAT or set(tensors) != names or told.get("checksum") != _checksum(tensors):
        raise ValueError(f"{file} does not match its checksum: it is torn or was changed")
    if told.get("run") != read_saved(folder).run:
        raise ValueError(f"{file} belongs to another run than the one in {folder}")
    return Forest(**tensors)


def _checksum(tensors: dict[str, Tensor]) -> str:
    return checksum(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors)))
