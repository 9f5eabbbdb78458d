"""Runs of tiny models and servers of them, made once."""

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import networkx as nx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from tests.serve.client import Running, running
from tests.workflow.small import molecule_csv, molecules, train_small, write_csv
from tokengt.inference import Predictor, load
from tokengt.serve.limits import Limits
from tokengt.workflow.fitting import TrainOptions


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on molecules with two targets."""
    folder = tmp_path_factory.mktemp("served")
    train_small(molecule_csv(folder / "data.csv"), folder / "run", ("y", "z"))
    return folder / "run"


@pytest.fixture(scope="session")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has intervals, since 40% of its molecules validate."""
    folder = tmp_path_factory.mktemp("trusted")
    data = write_csv(folder / "data.csv", ("smiles", "y"), zip(*molecules(160), strict=True))
    options = TrainOptions(quiet=True, workers=1, fractions=(0.4, 0.4, 0.2))
    train_small(data, folder / "run", "y", options=options)
    return folder / "run"


@pytest.fixture(scope="session")
def trusted_server(trusted: Path) -> Iterator[Running]:
    with running(load(trusted, "cpu"), folder=trusted) as started:
        yield started


@pytest.fixture(scope="session")
def predictor(run: Path) -> Predictor:
    return load(run, "cpu")


@pytest.fixture(scope="session", autouse=True)
def _one_reader() -> Iterator[None]:
    """Each process that reads takes a second to start, and the tests start a dozen servers."""
    with patch("tokengt.serve.service._MOST_READERS", 1):
        yield


@pytest.fixture(scope="session")
def server(predictor: Predictor, run: Path) -> Iterator[Running]:
    with running(predictor, Limits(slow_seconds=2.0), folder=run) as started:
        yield started


def path_graph(nodes: int) -> nx.Graph:
    """A path whose nodes have a category and a number; its label is its length."""
    graph = nx.path_graph(nodes)
    graph.graph["length"] = float(nodes)
    for node in graph:
        graph.nodes[node].update(kind=node % 3)
    return graph


@pytest.fixture(scope="session")
def graph_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on graphs that are no molecules."""
    folder = tmp_path_factory.mktemp("served-graphs")
    (folder / "data").mkdir()
    for place in range(24):
        content = nx.node_link_data(path_graph(2 + place % 6), edges="edges")
        (folder / "data" / f"{place:02d}.json").write_text(json.dumps(content))
    train_small(folder / "data", folder / "run", "length")
    return folder / "run"


@pytest.fixture(scope="session")
def graph_server(graph_run: Path) -> Iterator[Running]:
    with running(load(graph_run, "cpu"), Limits(batch_wait=1.0)) as started:
        yield started
