"""Labels and splits of PyG objects, graph by graph."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int8
from torch import Tensor

from tokengt.batch import Level
from tokengt.data.cells import PART_CODES
from tokengt.data.manifest import NO_PART

MASKS = {f"{word}_mask": PART_CODES[word] for word in ("train", "val", "valid", "test")}


def target_names(name: str, width: int) -> tuple[str, ...]:
    return (name,) if width == 1 else tuple(f"{name}_{place}" for place in range(width))


def label_attribute(targets: Sequence[str]) -> str | None:
    """The attribute that holds these targets: itself, or the one whose columns they are, as :func:`target_names` says.

    Raises:
        ValueError: they are several attributes.
    """
    if len(targets) < 2:
        return targets[0] if targets else None
    name = targets[0].removesuffix("_0")
    if tuple(targets) != target_names(name, len(targets)):
        raise ValueError(f"PyG graphs have one attribute of labels; target names {', '.join(targets)}")
    return name


def check_columns(targets: Sequence[str], found: Sequence[str]) -> None:
    """Refuse labels of other columns than those that were asked for one by one."""
    if len(targets) > 1 and tuple(targets) != tuple(found):
        raise ValueError(f"the labels are {', '.join(found) or 'none'}; expected {', '.join(targets)}")


def label_of(data: Any, name: str) -> Float64[Tensor, "..."] | None:
    """The attribute as it is, [], [rows] or [rows, targets]; None where there is none.

    Raises:
        ValueError: it holds no numbers, an infinite one, or has more dimensions.
    """
    value = data[name] if name in data else None  # noqa: SIM401, PyG's Data is no dict
    if value is None:
        return None
    try:
        label = torch.as_tensor(value)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"{name} is a {type(value).__name__}; expected a tensor of numbers") from None
    if label.is_complex() or label.layout != torch.strided or label.ndim > 2:
        raise ValueError(f"{name} has shape {list(label.shape)} ({label.dtype}); expected numbers [rows, targets]")
    label = label.double()
    if bool(label.isinf().any()):
        raise ValueError(f"{name} holds an infinite number; expected finite ones, or NaN where a label is missing")
    return label


def is_integer(data: Any, name: str) -> bool:
    """Whether the attribute, which :func:`label_of` could read, holds integers or booleans."""
    return name in data and not torch.as_tensor(data[name]).is_floating_point()


def shaped(label: Float64[Tensor, "..."], level: Level) -> Float64[Tensor, "rows targets"]:
    """A graph's vector is one row of several targets; a node's or an edge's is several rows of one."""
    if label.ndim == 2:
        return label
    return label.reshape(1, -1) if level == "graph" else label.reshape(-1, 1)


def targets_of(
    label: Float64[Tensor, "..."] | None, name: str, level: Level, rows: int, width: int
) -> Float64[Tensor, "rows targets"]:
    if label is None:
        return torch.full((rows, width), torch.nan, dtype=torch.float64)
    targets = shaped(label, level)
    if targets.shape != (rows, width):
        each = "" if level == "graph" else f", one row per {level}"
        raise ValueError(f"{name} has shape {list(label.shape)}; expected {[rows, width]}{each}")
    return targets


def split_of(data: Any, rows: int, code: int | None) -> Int8[Tensor, "rows *splits"] | None:
    """The part of every row: that of the file, or else those of the masks that have as many rows."""
    if code is not None:
        return torch.full((rows,), code, dtype=torch.int8)
    masks = {name: mask for name in MASKS if (mask := mask_of(data, name)) is not None and len(mask) == rows}
    return codes_of(masks)


def mask_of(data: Any, name: str) -> Bool[Tensor, "rows *splits"] | None:
    """The mask, with one column for each where there are several splits of one data set; None if it is no mask."""
    mask = data[name] if name in data else None  # noqa: SIM401, PyG's Data is no dict
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.ndim not in (1, 2) or mask.shape[-1] == 0:
        return None
    return mask[:, 0] if mask.ndim == 2 and mask.shape[1] == 1 else mask


def codes_of(masks: Mapping[str, Bool[Tensor, "rows *splits"]]) -> Int8[Tensor, "rows *splits"] | None:
    """The part of every row, in one column for each split; of masks with different numbers of splits, the first."""
    if not masks:
        return None
    if len({mask.shape for mask in masks.values()}) > 1:
        masks = {name: mask.reshape(len(mask), -1)[:, 0] for name, mask in masks.items()}
    codes = torch.full(next(iter(masks.values())).shape, NO_PART, dtype=torch.int8)
    for name, mask in masks.items():
        twice = mask & (codes >= 0) & (codes != MASKS[name])
        if bool(twice.any()):
            raise ValueError(f"row {int(torch.nonzero(twice)[0])} stands in {name} and in another mask; expected one")
        codes[mask] = MASKS[name]
    return codes


def guessed_level(path: Path, name: str, rows: Sequence[tuple[int, int, int]]) -> Level:
    """The level whose rows most graphs' labels have; ``rows`` lists (labels, nodes, edges) of each labelled graph.

    Raises:
        ValueError: no level fits, or two fit alike.
    """
    if not rows:
        return "graph"
    votes: dict[Level, int] = {
        "graph": sum(labels == 1 for labels, _, _ in rows),
        "node": sum(labels == nodes for labels, nodes, _ in rows),
        "edge": sum(labels == edges for labels, _, edges in rows),
    }
    best = [level for level, count in votes.items() if count == max(votes.values())]
    if len(best) == 1:
        return best[0]
    labels, nodes, edges = rows[0]
    fits = f"fits {'s and '.join(best)}s alike" if max(votes.values()) else "fits none of graphs, nodes and edges"
    raise ValueError(
        f"{path}: {name} {fits} (the first graph: {labels} rows, {nodes} nodes, {edges} edges); choose one as the level"
    )
