"""NetworkX JSON (``networkx.node_link_data``): a folder of files, one graph per file, or graphs in memory."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from tokengt.batch import Level
from tokengt.data._labelled import LabelledGraphs, Record, assembled
from tokengt.data.manifest import Attributes
from tokengt.graph import Graph
from tokengt.interop.networkx import from_networkx
from tokengt.sparse import as_dense

_Rows = list[Mapping[str, Any]]
# What a link says besides its attributes.
_ENDS = ("source", "target", "key")
_FEATURES = ("node_features", "edge_features")
_NO_GRAPH = "it does not hold a graph; expected what networkx.node_link_data gives"


@dataclass(frozen=True, eq=False)
class _File:
    """One file: its number and name, the NetworkX graph, and the attributes of what each level labels."""

    number: int
    name: str
    graph: Any
    rows: Mapping[Level, _Rows]


def read_networkx_folder(
    path: Path,
    targets: Sequence[str],
    level: Level | None = None,
    *,
    labelled: bool = True,
    attributes: Attributes | None = None,
) -> LabelledGraphs:
    """All ``*.json`` of the folder, in the order of their names; a file that cannot be read is rejected with its name.

    The path may also be one such file.

    Features are the ``attributes``; where they are not told, those that are a number or a list of numbers on every
    node (edge) of at least half of the files, in the order of their names, without the targets. A file without one of
    them is rejected, and costs the others nothing. They are categories when all are whole numbers from 0, else floats.
    Targets are attributes of the graph, its nodes or its edges; both directions of an undirected edge get its label.

    Raises:
        ValueError: nothing can be read, or the targets are on no level, or on several.
        ImportError: networkx is not installed.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.json"))
    named = [(file.name, partial(_content, file)) for file in files]
    found = _read_all(path, named, targets, level, labelled, attributes)
    return replace(found, files=tuple(file.name for file in files))


def read_networkx_graphs(
    contents: Sequence[Any], targets: Sequence[str], level: Level, attributes: Attributes | None
) -> LabelledGraphs:
    """What :func:`read_networkx_folder` reads of files that say this, for a prediction: labels may be there or not."""
    named = [("", partial(_each, content)) for content in contents]
    return _read_all(Path("the list of graphs"), named, targets, level, False, attributes)


def _each(content: Any) -> Any:
    return content


def _read_all(
    path: Path,
    named: Sequence[tuple[str, Callable[[], Any]]],
    targets: Sequence[str],
    level: Level | None,
    labelled: bool,
    attributes: Attributes | None,
) -> LabelledGraphs:
    """The graphs whose names and readers are ``named``; a graph in memory has no name."""
    files, rejected = [], []
    for number, (name, content) in enumerate(named, 1):
        try:
            files.append(_read(number, name, content()))
        except ValueError as error:
            rejected.append((number, _of_file(name, error)))
    if not files:
        why = f": {rejected[0][1]}" if rejected else ""
        what = "NetworkX JSON file" if any(name for name, _ in named) or not named else "graph"
        raise ValueError(f"{path} holds no {what} that can be read{why}")
    level = _level(path, files, targets, level) if labelled or level is None else level
    chosen = attributes or Attributes(_usual(files, "node", targets), _usual(files, "edge", targets))
    read, records = [], []
    for file in files:
        try:
            graph = from_networkx(file.graph, chosen.nodes or None, chosen.edges or None)
            labels, whole = _labels(file.rows[level], targets), _are_integers(file.rows[level], targets)
            read.append(Record(file.number, graph, labels, integers=whole, name=file.name))
        except ValueError as error:
            rejected.append((file.number, _of_file(file.name, error)))
    chosen = chosen if attributes is not None else replace(chosen, floats=_floats(read))
    for record in read:
        try:
            records.append(_of_kind(record, chosen.floats))
        except ValueError as error:
            rejected.append((record.number, _of_file(record.name, error)))
    found = assembled(path, records, rejected, level, targets)
    assert len(found.graphs) + len(found.rejected) == len(named), "every file is a graph or rejected"
    return replace(found, attributes=chosen)


def _of_file(name: str, error: ValueError) -> str:
    return f"{name}: {error}" if name else str(error)


def _read(number: int, name: str, said: Any) -> _File:
    try:
        import networkx as nx
    except ImportError as error:
        raise ImportError("reading NetworkX files needs NetworkX: pip install networkx") from error
    content, links = _checked(said)
    try:
        graph = nx.node_link_graph(content, edges=links)
        whole = dict(graph.graph)
    except Exception:  # NetworkX fails in many ways on JSON of another shape
        raise ValueError(_NO_GRAPH) from None
    edges: _Rows = []
    for u, v, attributes in graph.edges(data=True):
        edges += [attributes] * (1 if graph.is_directed() or u == v else 2)
    nodes = [attributes for _, attributes in graph.nodes(data=True)]
    return _File(number, name, graph, {"graph": [whole], "node": nodes, "edge": edges})


def _content(file: Path) -> Any:
    """What the JSON file says, or a ValueError about "it"."""
    if not file.is_file():
        raise ValueError("it is no regular file")
    try:
        text = file.read_text(encoding="utf-8-sig")
        content = json.loads(text, object_pairs_hook=_each_once)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply for a graph") from None
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    # Half a character of two, which JSON can spell and no file can hold.
    if re.search(r"\\u[dD][89a-fA-F]", text):
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it holds text that is no Unicode") from None
    return content


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a name that stands there twice, Python would drop the first value."""
    names = dict(pairs)
    if len(names) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"an object in it has the name {twice!r} twice; expected every name once")
    return names


def _checked(content: Any) -> tuple[dict[str, Any], str]:
    """Node-link data in which every node is declared once and every link joins declared nodes, and its list of links.

    NetworkX would declare the nodes of a link itself, without attributes, and merge nodes and links that repeat.
    """
    if not isinstance(content, dict) or ("links" in content) == ("edges" in content):
        raise ValueError(_NO_GRAPH)
    # NetworkX before 3.6 wrote the list of edges under the name "links".
    name = "links" if "links" in content else "edges"
    nodes, links = content.get("nodes"), content[name]
    for part, entries in (("nodes", nodes), (name, links)):
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"its {part} are no list of objects; expected what networkx.node_link_data gives")
    for flag in ("directed", "multigraph"):
        if not isinstance(content.get(flag, False), bool):
            raise ValueError(f"its {flag} is {_short(content[flag])}; expected true or false")
    assert isinstance(nodes, list)
    declared: set[Hashable] = set()
    for place, node in enumerate(nodes):
        key = _key(node.get("id", place))
        if key in declared:
            raise ValueError(f"two nodes have the id {_short(key)}; expected every id once")
        declared.add(key)
    _check_links(links, declared, content.get("directed", False), content.get("multigraph", False))
    return content, name


def _check_links(links: list[dict[str, Any]], declared: set[Hashable], directed: bool, several: bool) -> None:
    seen: dict[Hashable, tuple[int, dict[str, Any]]] = {}
    for place, link in enumerate(links):
        ends = []
        for end in ("source", "target"):
            if end not in link:
                raise ValueError(f"link {place} has no {end}; expected the id of a node")
            ends.append(_key(link[end]))
            if ends[-1] not in declared:
                raise ValueError(f"link {place} names the node {_short(ends[-1])}, which is not among its nodes")
        joined: Hashable = tuple(ends) if directed else frozenset(ends)
        if several:
            joined = (joined, _key(link["key"])) if link.get("key") is not None else place
        own = {name: value for name, value in link.items() if name not in _ENDS}
        first, before = seen.setdefault(joined, (place, own))
        if first != place and (several or before != own):
            expected = "keys that differ" if several else "one link, or a multigraph"
            raise ValueError(f"links {first} and {place} join the same nodes; expected {expected}")


def _key(value: Any) -> Hashable:
    """A node's id as NetworkX takes it: a list is a tuple."""
    if isinstance(value, list):
        return tuple(map(_key, value))
    if value is None or isinstance(value, dict) or value != value:
        raise ValueError(f"a node has the id {_short(value)}; expected text or a number")
    hashed: Hashable = value
    return hashed


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _level(path: Path, files: Sequence[_File], targets: Sequence[str], level: Level | None) -> Level:
    """The level (graph, node or edge) whose attributes include all targets; of several, the one of most files."""
    names: dict[Level, set[str]] = {"graph": set(), "node": set(), "edge": set()}
    votes: Counter[Level] = Counter()
    for file in files:
        for each, rows in file.rows.items():
            own = set().union(*rows)
            names[each] |= own
            votes[each] += own.issuperset(targets)
    levels = [each for each in names if (level in (None, each)) and names[each].issuperset(targets)]
    # An attribute of the same name in a few files does not make the others unclear.
    levels = [each for each in levels if 2 * votes[each] >= max(votes[other] for other in levels)]
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


def _usual(files: Sequence[_File], level: Level, targets: Sequence[str]) -> tuple[str, ...]:
    """Names of the attributes that are numbers on every node (edge) of at least half of the files that have any."""
    parts = [file.rows[level] for file in files if file.rows[level]]
    counts: Counter[str] = Counter()
    for rows in parts:
        numeric = [{name for name, value in row.items() if _is_numeric(value)} for row in rows]
        counts.update(set.intersection(*numeric))
    return tuple(sorted(name for name, count in counts.items() if 2 * count >= len(parts) and name not in targets))


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


def _floats(records: Sequence[Record]) -> tuple[str, ...]:
    """The features that are numbers and no categories: those of one graph are floats or hold a number below 0."""
    return tuple(name for name in _FEATURES if any(_no_category(getattr(record.graph, name)) for record in records))


def _no_category(features: Tensor | None) -> bool:
    return features is not None and (features.is_floating_point() or bool((features < 0).any()))


def _of_kind(record: Record, floats: Sequence[str]) -> Record:
    """The record with these features as floats; a ValueError if others hold what is no category."""
    for name in _FEATURES:
        if name not in floats and _no_category(getattr(record.graph, name)):
            raise ValueError(f"{name} hold a number that is no category; expected whole numbers from 0")
    return replace(record, graph=_cast(record.graph, "node_features" in floats, "edge_features" in floats))


def _cast(graph: Graph, nodes: bool, edges: bool) -> Graph:
    dtype = torch.get_default_dtype()
    x, e = as_dense(graph.node_features), graph.edge_features
    return Graph(
        x if x is None or not nodes else x.to(dtype),
        graph.edge_index,
        e if e is None or not edges else e.to(dtype),
        num_nodes=graph.num_nodes,
    )
