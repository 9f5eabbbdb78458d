"""A folder of NetworkX JSON files (``networkx.node_link_data``), one graph per file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from tokengt.batch import Level
from tokengt.data._labelled import LabelledGraphs, Record, assembled
from tokengt.graph import Graph
from tokengt.interop.networkx import from_networkx

_Rows = list[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class _File:
    """One file: its number and name, the NetworkX graph, and the attributes of what each level labels."""

    number: int
    name: str
    graph: Any
    rows: Mapping[Level, _Rows]


def read_networkx_folder(
    path: Path, targets: Sequence[str], level: Level | None = None, *, labelled: bool = True
) -> LabelledGraphs:
    """All ``*.json`` of the folder, in the order of their names; a file that cannot be read is rejected with its name.

    Features are the attributes that every node (edge) of every file has as a number or a list of numbers, in the order
    of their names, without the targets: categories when all are whole numbers from 0, else floats. Targets are
    attributes of the graph, its nodes or its edges; both directions of an undirected edge get its label.

    Raises:
        ValueError: nothing can be read, or the targets are on no level, or on several.
        ImportError: networkx is not installed.
    """
    files, rejected = [], []
    for number, json_file in enumerate(sorted(path.glob("*.json")), 1):
        try:
            files.append(_read(number, json_file))
        except ValueError as error:
            rejected.append((number, f"{json_file.name}: {error}"))
    if not files:
        why = f": {rejected[0][1]}" if rejected else ""
        raise ValueError(f"{path} holds no NetworkX JSON file that can be read{why}")
    level = _level(path, files, targets, level) if labelled or level is None else level
    nodes = _common([file.rows["node"] for file in files], targets)
    edges = _common([file.rows["edge"] for file in files if file.rows["edge"]], targets)
    records = []
    for file in files:
        try:
            graph = from_networkx(file.graph, nodes or None, edges or None)
            labels, whole = _labels(file.rows[level], targets), _are_integers(file.rows[level], targets)
            records.append(Record(file.number, graph, labels, integers=whole))
        except ValueError as error:
            rejected.append((file.number, f"{file.name}: {error}"))
    return assembled(path, _one_kind(records), rejected, level, targets)


def _read(number: int, file: Path) -> _File:
    try:
        import networkx as nx
    except ImportError as error:
        raise ImportError("reading NetworkX files needs NetworkX: pip install networkx") from error
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        # NetworkX before 3.6 wrote the list of edges under the name "links".
        links = "links" if "links" in content else "edges"
        graph = nx.node_link_graph(content, edges=links)
        whole = dict(graph.graph)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except Exception:  # NetworkX fails in many ways on JSON of another shape
        raise ValueError("it does not hold a graph; expected what networkx.node_link_data gives") from None
    edges: _Rows = []
    for u, v, attributes in graph.edges(data=True):
        edges += [attributes] * (1 if graph.is_directed() or u == v else 2)
    nodes = [attributes for _, attributes in graph.nodes(data=True)]
    return _File(number, file.name, graph, {"graph": [whole], "node": nodes, "edge": edges})


def _level(path: Path, files: Sequence[_File], targets: Sequence[str], level: Level | None) -> Level:
    """The level (graph, node or edge) whose attributes include all targets."""
    names: dict[Level, set[str]] = {"graph": set(), "node": set(), "edge": set()}
    for file in files:
        for each, rows in file.rows.items():
            names[each].update(*rows)
    levels = [each for each in names if (level in (None, each)) and names[each].issuperset(targets)]
    if len(levels) > 1 and targets:
        raise ValueError(
            f"{path}: targets {', '.join(targets)} are attributes of {'s and '.join(levels)}s; choose one as the level"
        )
    if not levels:
        attributes = "; ".join(
            f"{each}s have {', '.join(sorted(each_names))}" for each, each_names in names.items() if each_names
        )
        what = f"no {level} has" if level else "neither graphs, nodes nor edges have all of"
        raise ValueError(f"{path}: {what} the targets {', '.join(targets)}; {attributes or 'there are no attributes'}")
    return levels[0]


def _common(parts: Sequence[_Rows], targets: Sequence[str]) -> list[str]:
    """Names of the attributes that are numbers on every row of every file."""
    names: set[str] | None = None
    for attributes in (row for rows in parts for row in rows):
        numeric = {name for name, value in attributes.items() if _is_numeric(value)}
        names = numeric if names is None else names & numeric
    return sorted((names or set()) - set(targets))


def _is_numeric(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, int | float) for each in value)
    return isinstance(value, int | float)


def _labels(rows: _Rows, targets: Sequence[str]) -> Float64[Tensor, "rows targets"]:
    values = [[_label(name, row.get(name)) for name in targets] for row in rows]
    return torch.tensor(values, dtype=torch.float64).view(len(rows), len(targets))


def _label(name: str, value: Any) -> float:
    if value is None:
        return math.nan
    try:
        number = float(value) if isinstance(value, int | float) else math.inf
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise ValueError(f"target {name!r} is {value!r}; expected a number")
    return number


def _are_integers(rows: _Rows, targets: Sequence[str]) -> bool:
    """Whether all labels that there are were written as integers or booleans; JSON tells 1 from 1.0."""
    return all(isinstance(row.get(name), int | None) for row in rows for name in targets)


def _one_kind(records: Sequence[Record]) -> list[Record]:
    """Features of all graphs as floats where those of one graph are floats or hold a number below 0."""

    def floats(features: Sequence[Tensor | None]) -> bool:
        return any(f is not None and (f.is_floating_point() or bool((f < 0).any())) for f in features)

    nodes, edges = (
        floats([getattr(record.graph, name) for record in records]) for name in ("node_features", "edge_features")
    )
    return [replace(record, graph=_cast(record.graph, nodes, edges)) for record in records]


def _cast(graph: Graph, nodes: bool, edges: bool) -> Graph:
    dtype = torch.get_default_dtype()
    x, e = graph.node_features, graph.edge_features
    return Graph(
        x if x is None or not nodes else x.to(dtype),
        graph.edge_index,
        e if e is None or not edges else e.to(dtype),
        num_nodes=graph.num_nodes,
    )
