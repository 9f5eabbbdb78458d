"""Checks of a graph's tensors: each failure is one sentence that names the field and what was expected."""

import torch
from torch import Tensor

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def count_nodes(features: Tensor | None, num_nodes: int | None) -> int:
    if features is None and num_nodes is None:
        raise ValueError("a graph without node_features needs num_nodes")
    rows = num_nodes if features is None else features.shape[0] if features.ndim else -1
    if num_nodes is not None and rows != num_nodes:
        raise ValueError(f"node_features has {rows} rows but num_nodes is {num_nodes}; they must agree")
    if rows is None or rows < 1:
        raise ValueError("the graph is empty; expected at least one node")
    return int(rows)


def common_device(*tensors: Tensor | None) -> torch.device:
    devices = {t.device for t in tensors if t is not None}
    if len(devices) > 1:
        raise ValueError(f"a graph's tensors must be on one device, got {' and '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else torch.device("cpu")


def check_indices(field: str, index: Tensor, nodes: int, *, dims: int) -> None:
    shape = "[2, edges]" if dims == 2 else "[members]"
    if index.dtype not in _INTEGERS:
        raise ValueError(f"{field} must hold integers, got {_dtype(index)}")
    if index.ndim != dims or (dims == 2 and index.shape[0] < 2):
        raise ValueError(f"{field} must have shape {shape} (or [k, tuples]), got {list(index.shape)}")
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
    good = offsets.dtype in _INTEGERS and offsets.ndim == 1 and len(offsets) > 0
    if not good or int(offsets[0]) != 0 or int(offsets[-1]) != members or bool((offsets.diff() < 1).any()):
        raise ValueError(
            f"hyperedge_offsets must be integers that rise from 0 to {members} (the length of hyperedge_nodes), "
            "at least one node a hyperedge"
        )


def checked_features(field: str, features: Tensor | None, rows: int) -> Tensor | None:
    if features is None:
        return None
    if features.dtype not in _INTEGERS + _FLOATS:
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


def describe_features(features: Tensor | None) -> str:
    if features is None:
        return "none"
    kind = "floats" if features.is_floating_point() else "categories"
    return f"{features.shape[1]} {kind} ({_dtype(features)})"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
