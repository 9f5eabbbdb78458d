"""Hostile sources of graphs, each with the truth about it: folders of NetworkX JSON and PyG files."""

import json
import math
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# "good", "bad" (rejected with a reason) or "doubtful": either, but never so that other graphs suffer.
Verdict = Literal["good", "bad", "doubtful"]


@dataclass(frozen=True)
class GraphTruth:
    """One graph of a source: ``name`` of its file, its label, and the sums that tell its tensors from another's."""

    name: str
    verdict: Verdict
    what: str = ""
    nodes: int = 0
    edges: int = 0
    label: float = math.nan
    feature_sum: float = 0.0


@dataclass(frozen=True)
class GraphSource:
    """``verdict`` "refused" where the whole must be; ``graphs`` in the order in which they are counted."""

    path: Path
    graphs: tuple[GraphTruth, ...]
    verdict: Literal["read", "refused", "doubtful"] = "read"
    what: str = ""
    # A file that must not appear: something in the source would make it, were it run.
    bomb: Path | None = None


Content = dict[str, Any]


def plain_graph(rng: random.Random, directed: bool = False) -> tuple[Content, GraphTruth]:
    """A small connected graph with two numbers per node, one per edge and a label, as node_link_data writes it."""
    count = rng.randrange(2, 9)
    pairs = [(place, rng.randrange(place)) for place in range(1, count)]
    features = [(rng.randrange(1, 50) / 4, rng.randrange(1, 50) / 4) for _ in range(count)]
    label = rng.randrange(-40, 40) / 4
    content = {
        "directed": directed,
        "multigraph": False,
        "graph": {"y": label},
        "nodes": [{"id": place, "x": list(pair)} for place, pair in enumerate(features)],
        "edges": [{"source": u, "target": v, "w": 1.5} for u, v in pairs],
    }
    edges = len(pairs) if directed else 2 * len(pairs)
    return content, GraphTruth("", "good", "", count, edges, label, sum(map(sum, features)))


Spoiler = Callable[[Content, random.Random], Any]


def _undeclared(content: Content, rng: random.Random) -> Content:
    content["edges"].append({"source": 0, "target": rng.choice((99, -1, "x")), "w": 1.0})
    return content


def _same_id(content: Content, rng: random.Random) -> Content:
    content["nodes"][1]["id"] = content["nodes"][0]["id"]
    return content


def _without(key: str) -> Spoiler:
    def spoil(content: Content, rng: random.Random) -> Content:
        del content[key]
        return content

    return spoil


def _wrong(key: str) -> Spoiler:
    def spoil(content: Content, rng: random.Random) -> Content:
        content[key] = rng.choice((7, "text", None, [[1, 2]], {"a": 1}, [None], [7]))
        return content

    return spoil


def _label(value: Any) -> Spoiler:
    def spoil(content: Content, rng: random.Random) -> Content:
        content["graph"]["y"] = value
        return content

    return spoil


def _node_value(value: Any) -> Spoiler:
    def spoil(content: Content, rng: random.Random) -> Content:
        rng.choice(content["nodes"])["x"] = value
        return content

    return spoil


def _missing_value(content: Content, rng: random.Random) -> Content:
    del rng.choice(content["nodes"])["x"]
    return content


def _edge_value(value: Any) -> Spoiler:
    def spoil(content: Content, rng: random.Random) -> Content:
        rng.choice(content["edges"])["w"] = value
        return content

    return spoil


def _empty(content: Content, rng: random.Random) -> Content:
    content["nodes"], content["edges"] = [], []
    return content


def _other(value: Any) -> Spoiler:
    return lambda content, rng: value


# What is wrong, whether it must be rejected, and how to make it so. Text is written as it is.
JSON_SPOILERS: tuple[tuple[str, Verdict, Spoiler], ...] = (
    ("a link to an undeclared node", "bad", _undeclared),
    ("a link to an undeclared node", "bad", _undeclared),
    ("two nodes of one id", "bad", _same_id),
    ("no nodes", "bad", _without("nodes")),
    ("no edges", "bad", _without("edges")),
    ("nodes of a wrong type", "bad", _wrong("nodes")),
    ("edges of a wrong type", "bad", _wrong("edges")),
    ("graph of a wrong type", "doubtful", _wrong("graph")),
    ("a label that is text", "bad", _label("abc")),
    ("an infinite label", "bad", _label(math.inf)),
    ("a label beyond floats", "bad", _label(10**400)),
    ("a label that is a list", "bad", _label([1, 2])),
    ("a label that is true", "doubtful", _label(True)),
    ("no graph", "bad", _other([])),
    ("no graph", "bad", _other("text")),
    ("no graph", "bad", _other(None)),
    ("a number", "bad", _other(7)),
    ("an empty graph", "bad", _empty),
    ("a feature that is text", "doubtful", _node_value("abc")),
    ("a feature of another width", "doubtful", _node_value([1.0, 2.0, 3.0])),
    ("a feature that is NaN", "bad", _node_value([math.nan, 1.0])),
    ("a feature that is infinite", "bad", _node_value([math.inf, 1.0])),
    ("a feature beyond floats", "bad", _node_value([10**400, 1.0])),
    ("a feature that is null", "doubtful", _node_value(None)),
    ("a node without its feature", "doubtful", _missing_value),
    ("an edge feature that is text", "doubtful", _edge_value("abc")),
    ("an edge feature that is NaN", "bad", _edge_value(math.nan)),
)
RAW_SPOILERS: tuple[tuple[str, Verdict, bytes], ...] = (
    ("no JSON", "bad", b"{"),
    ("an empty file", "bad", b""),
    ("bytes that are not UTF-8", "bad", b'{"nodes": [], "x": "\xff"}'),
    ("deep nesting", "bad", b"[" * 100_000 + b"]" * 100_000),
    ("deep nesting", "bad", b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    ("a long number", "bad", b'{"nodes": ' + b"9" * 10_000 + b"}"),
)


def json_folder(rng: random.Random, folder: Path) -> GraphSource:
    """A folder of JSON files, most of them good."""
    home = folder / "graphs"
    home.mkdir()
    graphs, count, directed = [], rng.choice((3, 8, 20)), rng.random() < 0.2
    spoiled = set(
        rng.sample(range(count), rng.choice((0, 1, 1, 1, 2)) if count > 4 else 1 if rng.random() < 0.5 else 0)
    )
    for place in range(count):
        name = f"g{place:03}.json"
        content, truth = plain_graph(rng, directed)
        if place in spoiled and rng.random() < 0.15:
            what, verdict, raw = rng.choice(RAW_SPOILERS)
            (home / name).write_bytes(raw)
            graphs.append(GraphTruth(name, verdict, what))
            continue
        verdict, what = "good", ""
        if place in spoiled:
            what, verdict, spoil = rng.choice(JSON_SPOILERS)
            content = spoil(content, rng)
        elif rng.random() < 0.2:
            content["links"] = content.pop("edges")
        (home / name).write_text(json.dumps(content))
        graphs.append(GraphTruth(name, verdict, what, truth.nodes, truth.edges, truth.label, truth.feature_sum))
    if rng.random() < 0.1:
        (home / "notes.txt").write_text("not a graph")
    return GraphSource(home, tuple(graphs), what=", ".join(truth.what for truth in graphs if truth.what))


# ---- PyG


class Bomb:
    """Would make a file, were it unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, (str(self.path), "w")


def pyg_file(rng: random.Random, folder: Path) -> GraphSource:
    """A file of PyG data: good, with bad graphs among good ones, damaged, or made to run something."""
    import torch
    from torch_geometric.data import Data

    path, graphs, datas = folder / "t.pt", [], []
    count = rng.choice((3, 8, 20))
    spoiled = rng.randrange(count) if rng.random() < 0.5 else -1
    for place in range(count):
        nodes = rng.randrange(2, 9)
        pairs = [(number, rng.randrange(number)) for number in range(1, nodes)]
        both = pairs + [(v, u) for u, v in pairs]
        x = [[rng.randrange(1, 50) / 4, rng.randrange(1, 50) / 4] for _ in range(nodes)]
        label = rng.randrange(-40, 40) / 4
        data = Data(x=torch.tensor(x), edge_index=torch.tensor(both).T.contiguous(), y=torch.tensor([label]))
        data.edge_attr = torch.full((len(both), 1), 1.5)
        verdict: Verdict = "good"
        what = ""
        if place == spoiled:
            what, verdict, spoil = rng.choice(PYG_SPOILERS)
            spoil(data, rng)
        graphs.append(GraphTruth(f"{place + 1}", verdict, what, nodes, len(both), label, sum(map(sum, x))))
        datas.append(data)
    torch.save(datas, path)
    what = ", ".join(truth.what for truth in graphs if truth.what)
    chance = rng.random()
    if chance < 0.15:
        bomb = folder / "exploded"
        content = rng.choice((Bomb(bomb), [*datas, Bomb(bomb)], {"a": Bomb(bomb)}))
        if rng.random() < 0.5:
            torch.save(content, path)
        else:
            path.write_bytes(pickle.dumps(Bomb(bomb), protocol=rng.choice((0, 2, 4))))
        return GraphSource(path, (), "refused", "a pickle that runs something", bomb)
    if chance < 0.25:
        torch.save(rng.choice(([], {}, 7, "text", None, [7], {"x": 1}, torch.zeros(3), [[]])), path)
        return GraphSource(path, (), "refused", "no PyG data")
    if chance < 0.35:
        content = path.read_bytes()
        path.write_bytes(content[: rng.randrange(len(content))])
        return GraphSource(path, (), "refused", "a torn file")
    return GraphSource(path, tuple(graphs), what=what)


def _set(name: str, make: Callable[[Any, Any], Any]) -> Callable[[Any, random.Random], None]:
    def spoil(data: Any, rng: random.Random) -> None:
        import torch

        data[name] = make(torch, data)

    return spoil


PYG_SPOILERS: tuple[tuple[str, Verdict, Callable[[Any, random.Random], None]], ...] = (
    ("an edge to a node that is not there", "bad", _set("edge_index", lambda t, d: t.tensor([[0, 1], [1, 999]]))),
    ("a negative node", "bad", _set("edge_index", lambda t, d: t.tensor([[0, -1], [1, 0]]))),
    ("edges of floats", "bad", _set("edge_index", lambda t, d: t.tensor([[0.0], [1.5]]))),
    ("edges of another shape", "bad", _set("edge_index", lambda t, d: t.zeros(3, 2, 2, dtype=t.long))),
    ("features of another width", "bad", _set("x", lambda t, d: t.ones(d.num_nodes, 5))),
    ("features that are NaN", "bad", _set("x", lambda t, d: t.full((d.num_nodes, 2), t.nan))),
    ("features that are complex", "bad", _set("x", lambda t, d: t.zeros(d.num_nodes, 2, dtype=t.complex64))),
    ("no feature", "bad", _set("x", lambda t, d: None)),
    ("features that are text", "bad", _set("x", lambda t, d: "abc")),
    ("an infinite label", "bad", _set("y", lambda t, d: t.tensor([t.inf]))),
    ("a label that is text", "bad", _set("y", lambda t, d: "abc")),
    ("three labels", "bad", _set("y", lambda t, d: t.ones(3))),
    ("a label with many dimensions", "bad", _set("y", lambda t, d: t.ones(1, 1, 1, 1, 2))),
)
