"""Facts of chunks that are worked out beside the model: the same chunks, in order, with what the model asks for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.structure.graph_families import path
from tests.workflow.small import molecule_csv, train_small
from tokengt import Graph, GraphBatch
from tokengt.data.sheets import Numbers
from tokengt.inference import Predictor, load
from tokengt.structure.facts import LaplacianVectors, StructureFact, WalkReturns
from tokengt.structure.laplacian import laplacian_eigenvectors
from tokengt.workflow import ahead, predicting
from tokengt.workflow.ahead import made_ready, with_facts_ahead
from tokengt.workflow.predicting import predict_file
from tokengt.workflow.rows import Chunk, Chunks

FACTS: Sequence[StructureFact] = (LaplacianVectors(3, "lowest"), WalkReturns(2))


def chunk(number: int, graphs: GraphBatch | None) -> Chunk:
    lines = np.array([number])
    return Chunk(number, Numbers(lines[:, None]), lines, graphs, np.array([0]), {})


class Given:
    """Chunks of paths of one, two, ... nodes, and how many of them were taken."""

    def __init__(self, count: int) -> None:
        self.count, self.taken, self.closed = count, 0, False

    def chunks(self) -> Chunks:
        try:
            for number in range(self.count):
                self.taken += 1
                yield chunk(number, GraphBatch.collate([path(number + 1)]))
        finally:
            self.closed = True


@pytest.mark.parametrize(("count", "threads"), [(0, 2), (1, 3), (9, 1), (9, 4)])
def test_chunks_come_in_order_with_their_facts(count: int, threads: int) -> None:
    given = Given(count)
    found = list(with_facts_ahead(given.chunks(), FACTS, threads))
    assert [each.number for each in found] == list(range(count))
    for each in found:
        assert each.graphs is not None
        vectors = each.graphs.fact(FACTS[0].name)
        assert vectors is not None
        assert torch.equal(vectors.double(), laplacian_eigenvectors(each.graphs, 3).vectors.to(vectors.dtype).double())
        assert each.graphs.fact(FACTS[1].name) is not None
    assert given.closed


def test_few_are_on_the_way_and_the_source_is_closed_early() -> None:
    given = Given(100)
    chunks = with_facts_ahead(given.chunks(), FACTS, 2)
    next(chunks)
    assert given.taken == 3
    chunks.close()
    assert given.closed


def test_a_chunk_without_graphs_or_facts_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokengt.structure.walks.MAX_NODES", 3)
    large = chunk(0, GraphBatch.collate([Graph(num_nodes=4)]))
    found = list(with_facts_ahead((each for each in (large, chunk(1, None))), FACTS, 2))
    assert found[0] is large
    assert found[1].graphs is None


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("run")
    train_small(molecule_csv(folder / "data.csv"), folder / "run", ("y", "z"))
    return load(folder / "run", "cpu")


def test_predictions_are_the_same(predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = molecule_csv(tmp_path / "new.csv")
    predict_file(predictor, source, tmp_path / "plain.csv", quiet=True)

    def on_a_gpu(given: Predictor, chunks: Chunks) -> Chunks:
        return with_facts_ahead(chunks, given.members[0].model.config.facts(), 2)

    monkeypatch.setattr(predicting, "made_ready", on_a_gpu)
    predict_file(predictor, source, tmp_path / "ahead.csv", quiet=True)
    assert (tmp_path / "plain.csv").read_bytes() == (tmp_path / "ahead.csv").read_bytes()


def test_it_is_for_a_gpu_and_not_for_links(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = Given(1).chunks()
    assert made_ready(predictor, chunks) is chunks
    gpu = Predictor(predictor.spec, predictor.members, torch.device("cuda"))
    monkeypatch.setattr(ahead, "available_cores", lambda: 1)
    (found,) = made_ready(gpu, chunks)
    assert found.graphs is not None
    (fact,) = predictor.members[0].model.config.facts()
    assert found.graphs.fact(fact.name) is not None
    links = Predictor(replace(predictor.spec, level="link"), predictor.members, torch.device("cuda"))
    chunks = Given(1).chunks()
    assert made_ready(links, chunks) is chunks
