"""Checks of a graph's tensors: each failure is one sentence that names the field and what was expected."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tokengt.sparse import SparseRows

# Tuples of more entries have thousands of equality patterns; an index of so many rows is more likely a transposed one.
MAX_ORDER = 8
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def count_nodes(features: Tensor | SparseRows | None, num_nodes: int | None) -> int:
    if num_nodes is not None and whole_number(num_nodes) is None:
        raise ValueError(f"num_nodes is {num_nodes!r}; expected a whole number")
    if features is None and num_nodes is None:
        raise ValueError("a graph without node_features needs num_nodes")
    rows = num_nodes if features is None else features.shape[0] if features.ndim else -1
    if num_nodes is not None and rows != num_nodes:
        raise ValueError(f"node_features has {rows} rows but num_nodes is {num_nodes}; they must agree")
    if rows is None or rows < 1:
        raise ValueError("the graph is empty; expected at least one node")
    return int(rows)


def common_device(**tensors: Tensor | SparseRows | None) -> torch.device:
    """The one device of all tensors; an argument that is no tensor is refused by name."""
    devices = set()
    for field, tensor in tensors.items():
        if isinstance(tensor, Tensor | SparseRows):
            devices.add(tensor.device)
        elif tensor is not None:
            raise ValueError(f"{field} must be a torch.Tensor, got {type(tensor).__name__}")
    if len(devices) > 1:
        raise ValueError(f"a graph's tensors must be on one device, got {' and '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else torch.device("cpu")


def check_indices(field: str, index: Tensor, nodes: int, *, dims: int) -> None:
    shape = "[2, edges]" if dims == 2 else "[members]"
    if index.dtype not in INTEGERS:
        raise ValueError(f"{field} must hold integers, got {_dtype(index)}")
    if index.ndim != dims or (dims == 2 and not 2 <= index.shape[0] <= MAX_ORDER):
        more = f", or [k, tuples] with k up to {MAX_ORDER}" if dims == 2 else ""
        hint = "; did you mean its transpose?" if index.ndim == 2 and index.shape[1] == 2 else ""
        raise ValueError(f"{field} must have shape {shape}{more}, got {list(index.shape)}{hint}")
    if index.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(index))
    if low < 0 or high >= nodes:
        wrong = low if low < 0 else high
        column = int(torch.nonzero(index == wrong)[0, -1])
        raise ValueError(
            f"{field} column {column} names node {wrong}; expected 0 to {nodes - 1} in a graph of {nodes} nodes"
        )


def check_offsets(offsets: Tensor, members: int) -> None:
    good = offsets.dtype in INTEGERS and offsets.ndim == 1 and len(offsets) > 0
    if not good or int(offsets[0]) != 0 or int(offsets[-1]) != members or bool((offsets.diff() < 1).any()):
        raise ValueError(
            f"hyperedge_offsets must be integers that rise from 0 to {members} (the length of hyperedge_nodes), "
            "at least one node per hyperedge"
        )


def whole_number(value: Any) -> int | None:
    """An int from an int or anything that stands for one exactly, such as NumPy's integers; None for all else."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def checked_members(place: int, members: Any) -> list[int]:
    """A hyperedge as a caller writes it: distinct whole numbers."""
    numbers = [whole_number(node) for node in members] if isinstance(members, Iterable) else []
    valid = [node for node in numbers if node is not None]
    if not valid or len(set(valid)) < len(numbers):
        raise ValueError(f"hyperedge {place} is {members!r}; expected a list of one or more distinct nodes, each once")
    return valid


def check_distinct(members: Tensor, offsets: Tensor, nodes: int) -> None:
    """A hyperedge is a set: no node twice."""
    owner = torch.repeat_interleave(offsets.diff())
    keys, counts = torch.unique(owner * nodes + members, return_counts=True)
    twice = torch.nonzero(counts > 1).flatten()
    if len(twice):
        hyperedge, node = divmod(int(keys[twice[0]]), nodes)
        raise ValueError(f"hyperedge {hyperedge} holds node {node} twice; expected distinct nodes")


def checked_selection(index: Sequence[int] | Tensor, graphs: int) -> Tensor:
    """Places of graphs, 0 to ``graphs - 1``, int64 on the CPU; an empty selection is allowed."""
    chosen = torch.as_tensor(index).cpu()
    if chosen.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    if chosen.dtype == torch.bool and chosen.shape == (graphs,):
        return torch.nonzero(chosen).flatten()
    if chosen.ndim != 1 or chosen.dtype not in INTEGERS:
        raise ValueError(
            f"select needs a list of integers or {graphs} booleans, got {chosen.dtype} of shape {list(chosen.shape)}"
        )
    low, high = (int(bound) for bound in torch.aminmax(chosen))
    if low < -graphs or high >= graphs:
        raise ValueError(f"graph {low if low < -graphs else high} is out of range for a batch of {graphs} graphs")
    return chosen.long() if low >= 0 else chosen.long().remainder(graphs)


def checked_node_features(features: Tensor | SparseRows | None, rows: int) -> Tensor | SparseRows | None:
    """Features of nodes, which may be sparse."""
    if not isinstance(features, SparseRows):
        return checked_features("node_features", features, rows)
    if len(features) != rows:
        raise ValueError(f"node_features has {len(features)} rows; expected {rows}")
    low, high = torch.aminmax(features.columns) if len(features.columns) else (0, -1)
    if int(low) < 0 or int(high) >= features.width:
        wrong = int(low) if int(low) < 0 else int(high)
        raise ValueError(f"node_features names column {wrong}; expected 0 to {features.width - 1}")
    finite = torch.isfinite(features.values)
    if not bool(finite.all()):
        place = int(torch.nonzero(~finite)[0])
        row = int(torch.searchsorted(features.entries.host, place, right=True)) - 1
        raise ValueError(
            f"node_features row {row}, column {int(features.columns[place])} is {float(features.values[place])}; "
            "expected a finite number"
        )
    return features


def checked_features(field: str, features: Tensor | None, rows: int) -> Tensor | None:
    if features is None:
        return None
    if features.layout != torch.strided:
        raise ValueError(f"{field} is a sparse tensor; expected a dense one: only node_features may be sparse")
    if features.dtype not in INTEGERS + _FLOATS:
        raise ValueError(f"{field} must hold integers (categories) or floats, got {_dtype(features)}")
    if features.ndim != 2:
        raise ValueError(f"{field} must have shape [{rows}, columns], got {list(features.shape)}")
    if features.shape[0] != rows:
        raise ValueError(f"{field} has {features.shape[0]} rows; expected {rows}")
    if features.is_floating_point():
        finite = torch.isfinite(features)
        if not bool(finite.all()):
            row, column = torch.nonzero(~finite)[0].tolist()
            value = float(features[row, column])
            raise ValueError(f"{field} row {row}, column {column} is {value}; expected a finite number")
    return features


def describe_features(features: Tensor | SparseRows | None) -> str:
    if features is None:
        return "none"
    if isinstance(features, SparseRows):
        return f"{features.width} floats (sparse {_dtype(features.values)})"
    kind = "floats" if features.is_floating_point() else "categories"
    return f"{features.shape[1]} {kind} ({_dtype(features)})"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
