"""Hostile sources of graphs: every good graph keeps its label and features, every bad one is named with a reason."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load

from tests.drill.calls import Answer
from tests.drill.case import Case
from tests.drill.graphs import GraphSource, json_folder, pyg_file
from tests.drill.oracle import MOST_REJECTED, Fault, check_folder, judged, rejected_rows, snapshot

# A call, what is wrong with its result, and what it was asked to write.
Called = tuple[Answer, Callable[[], Iterable[str]], str]


def play(case: Case) -> list[Fault]:
    make = json_folder if case.rng.random() < 0.65 else pyg_file
    source = make(case.rng, case.folder)
    before = snapshot(case.folder)
    (way,) = case.rng.choices((_prepare, _predict, _embed), (5, 4, 1))
    answer, check, output = way(case, source)
    faults = judged(answer)
    if source.bomb is not None and source.bomb.exists():
        faults.append(Fault("silent", "a pickle was run", str(answer)))
    if faults:
        return faults
    wrong = list(check())
    found = [Fault("silent", f"{source.what}: {'; '.join(wrong[:3])}", str(answer))] if wrong else []
    return found + check_folder(answer, before, [output])


def _prepare(case: Case, source: GraphSource) -> Called:
    options = ["--target", "y"] if source.path.is_dir() or case.rng.random() < 0.5 else []
    answer = case.call("prepare", source.path.name, "--out", "store", *options)
    store = case.folder / "store"
    return answer, lambda: _verdict(answer, source) or _wrong_store(answer, source, store), "store"


def _verdict(answer: Answer, source: GraphSource) -> list[str]:
    """What is wrong with a refusal, or with the lack of one."""
    good = sum(truth.verdict == "good" for truth in source.graphs)
    bad = sum(truth.verdict == "bad" for truth in source.graphs)
    if answer.refused:
        enough = source.verdict == "read" and good > (1 - MOST_REJECTED) * len(source.graphs)
        doubtful = any(truth.verdict == "doubtful" for truth in source.graphs)
        if enough and not doubtful:
            return [f"{good} good graphs of {len(source.graphs)} are refused"]
        bad_names = [truth.name for truth in source.graphs if truth.verdict != "good"]
        if enough and source.path.is_dir() and not any(name in answer.stderr for name in bad_names):
            return ["the refusal does not name the file"]
        return []
    if source.verdict == "refused":
        return [f"{source.what} was read without a word"]
    if answer.done and bad > MOST_REJECTED * len(source.graphs) and answer.arguments[0] == "prepare":
        return [f"{bad} of {len(source.graphs)} graphs are bad, and it goes on"]
    return []


def _wrong_store(answer: Answer, source: GraphSource, store: Path) -> Iterator[str]:
    if answer.refused:
        return
    manifest = json.loads((store / "manifest.json").read_bytes())
    tensors = load((store / "graphs.safetensors").read_bytes())
    lines = tensors["lines"].tolist()
    rejected = dict(rejected_rows(store / "rejected.csv"))
    if manifest["source"]["rows"] != len(source.graphs) or len(lines) + len(rejected) != len(source.graphs):
        yield f"{len(lines)} kept and {len(rejected)} rejected of {len(source.graphs)}"
    features = tensors.get("node_features")
    dropped = features is None or features.shape[1] != 2
    if dropped and not _doubtful_and_said(answer, source):
        yield "the graphs have lost their features"
    bounds, edges = tensors["node_offsets"], np.diff(tensors["edge_offsets"])
    for number, truth in enumerate(source.graphs, 1):
        if number in rejected:
            if truth.verdict == "good":
                yield f"graph {truth.name} is good and was rejected: {rejected[number]}"
            elif not rejected[number].strip():
                yield f"graph {truth.name} was rejected without a reason"
            elif source.path.is_dir() and truth.name not in rejected[number]:
                yield f"the reason does not name {truth.name}: {rejected[number]}"
            continue
        if number not in lines:
            yield f"graph {truth.name} is gone"
            continue
        if truth.verdict == "bad":
            yield f"graph {truth.name} ({truth.what}) must be rejected"
        if truth.verdict != "good":
            continue
        place = lines.index(number)
        begin, end = int(bounds[place]), int(bounds[place + 1])
        held = (end - begin, int(edges[place]), float(tensors["targets"][place][0]))
        if held != (truth.nodes, truth.edges, truth.label):
            yield f"graph {truth.name} is {held}; expected {(truth.nodes, truth.edges, truth.label)}"
        if not dropped and not math.isclose(float(features[begin:end].sum()), truth.feature_sum, rel_tol=1e-6):
            yield f"graph {truth.name} has other features"


def _doubtful_and_said(answer: Answer, source: GraphSource) -> bool:
    """A feature that some graph lacks may be left out of all, if that is said."""
    return any(truth.verdict == "doubtful" for truth in source.graphs) and "'x'" in answer.stderr


def _predict(case: Case, source: GraphSource) -> Called:
    answer = case.call("predict", case.shop.on_graphs.folder, source.path.name, "--out", "out.csv")
    return answer, lambda: _verdict(answer, source) or _wrong_predictions(case, answer, source), "out.csv"


def _wrong_predictions(case: Case, answer: Answer, source: GraphSource) -> Iterator[str]:
    if answer.refused:
        return
    rows = list(csv.DictReader(io.StringIO((case.folder / "out.csv").read_text(), newline="")))
    if len(rows) != len(source.graphs):
        yield f"{len(rows)} rows come back for {len(source.graphs)} graphs"
        return
    for row, truth in zip(rows, source.graphs, strict=True):
        value, reason = row[case.shop.on_graphs.columns[0]], row["reason"]
        if bool(value) == bool(reason.strip()):
            yield f"graph {truth.name} has {value!r} and the reason {reason!r}"
        elif value and not math.isfinite(float(value)):
            yield f"graph {truth.name} has {value}"
        elif reason and truth.verdict == "good":
            yield f"graph {truth.name} is good and has the reason {reason!r}"
        # A bad label does not keep a graph from being predicted.
        elif value and truth.verdict == "bad" and "label" not in truth.what:
            yield f"graph {truth.name} ({truth.what}) has {value}"


def _embed(case: Case, source: GraphSource) -> Called:
    answer = case.call("embed", case.shop.on_graphs.folder, source.path.name, "--out", "v.npz")
    return answer, lambda: _wrong_vectors(answer, case.folder / "v.npz"), "v.npz"


def _wrong_vectors(answer: Answer, path: Path) -> list[str]:
    if answer.refused:
        return []
    held = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
    finite = np.isfinite(held["vectors"]).all(1)
    return [] if (finite == held["valid"]).all() else ["a good graph has a vector that is not finite"]
