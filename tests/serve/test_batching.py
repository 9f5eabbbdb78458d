"""The queue in front of the model: what is answered together, what by itself, and in what order."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graphs import graphs as any_graphs
from tests.workflow.small import molecules
from tokengt.batch import GraphBatch
from tokengt.graph import Graph
from tokengt.inference import Predictor, load
from tokengt.serve.batching import Batcher, Job
from tokengt.workflow.predicting import predict_file
from tokengt.workflow.questions import Answered, Question, prediction_question

TEXTS = molecules(20)[0]
SECONDS = 30


def graphs_of(predictor: Predictor, texts: list[str]) -> GraphBatch:
    return predictor.read_texts(texts)[0]


def outcome(job: Job) -> Answered:
    found = job.future.result(SECONDS).found
    assert found is not None
    return found


class Watched:
    """A question that is asked only when it may be, and that keeps what it was asked."""

    def __init__(self, predictor: Predictor) -> None:
        plain = prediction_question(predictor)
        self.open, self.began = threading.Event(), threading.Event()
        self.sizes: list[int] = []

        def ask(graphs: GraphBatch) -> object:
            self.began.set()
            assert self.open.wait(SECONDS)
            self.sizes.append(len(graphs))
            return plain.ask(graphs)

        self.question = Question(ask, plain.level, plain.width, plain.dtype, plain.has_spread, ())  # type: ignore[arg-type]


@contextmanager
def batching(predictor: Predictor, rows: int = 8, wait_for: float = 0.0) -> Iterator[tuple[Batcher, Watched]]:
    watched = Watched(predictor)
    batcher = Batcher(predictor, watched.question, rows, wait_for)
    batcher.start()
    try:
        yield batcher, watched
    finally:
        watched.open.set()
        batcher.close()


def test_what_waits_is_answered_together_with_the_bits_of_predict(
    predictor: Predictor, run: Path, tmp_path: Path
) -> None:
    """Requests that share a batch get, to the bit, what ``tokengt predict`` gives for a file of their rows."""
    parts = [["CCO"], TEXTS[:3], TEXTS[3:5], ["c1ccccc1"]]
    with batching(predictor) as (batcher, watched):
        first = batcher.submit(graphs_of(predictor, parts[0]))
        assert watched.began.wait(SECONDS)
        rest = [batcher.submit(graphs_of(predictor, part)) for part in parts[1:]]
        assert len(batcher) == 3
        watched.open.set()
        found = [outcome(job).values for job in (first, *rest)]
    assert watched.sizes == [1, 6]
    texts = [text for part in parts[1:] for text in part]
    assert torch.cat(found[1:]).tolist() == predictor.predict(texts).mean.tolist()
    (tmp_path / "in.csv").write_text("smiles\n" + "\n".join(texts))
    predict_file(run, tmp_path / "in.csv", tmp_path / "out.csv", quiet=True, device="cpu")
    written = [line.split(",")[1:3] for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
    assert written == [[f"{value:.12g}" for value in row] for row in torch.cat(found[1:]).tolist()]
    assert found[0].tolist() == predictor.predict(parts[0]).mean.tolist()


def test_a_batch_has_at_most_so_many_rows_and_keeps_the_order(predictor: Predictor) -> None:
    with batching(predictor, rows=4) as (batcher, watched):
        blocker = batcher.submit(graphs_of(predictor, ["C"]))
        assert watched.began.wait(SECONDS)
        jobs = [batcher.submit(graphs_of(predictor, TEXTS[place : place + 2])) for place in range(0, 10, 2)]
        watched.open.set()
        found = torch.cat([outcome(job).values for job in jobs])
        outcome(blocker)
    assert watched.sizes == [1, 4, 4, 2]
    assert torch.allclose(found, torch.from_numpy(predictor.predict(TEXTS[:10]).mean), atol=1e-5)


def test_whoever_asks_to_be_alone_is(predictor: Predictor) -> None:
    with batching(predictor) as (batcher, watched):
        batcher.submit(graphs_of(predictor, ["C"]))
        assert watched.began.wait(SECONDS)
        jobs = [batcher.submit(graphs_of(predictor, TEXTS[place : place + 2]), alone=place == 2) for place in (0, 2, 4)]
        watched.open.set()
        values = [outcome(job).values.tolist() for job in jobs]
    assert sorted(watched.sizes) == [1, 2, 4]
    assert values[1] == predictor.predict(TEXTS[2:4]).mean.tolist()


def test_intervals_are_asked_together_with_others_that_ask_for_them(trusted: Path) -> None:
    """Each has the bounds of its own rows; whoever asks for none is not kept waiting for them."""
    run = load(trusted, "cpu")
    bounded = prediction_question(run, interval=0.9)
    with batching(run) as (batcher, watched):
        batcher.submit(graphs_of(run, ["C"]))
        assert watched.began.wait(SECONDS)
        parts = [TEXTS[:2], TEXTS[2:5]]
        jobs = [batcher.submit(graphs_of(run, part), question=bounded) for part in parts]
        plain = batcher.submit(graphs_of(run, TEXTS[:2]))
        assert jobs[0].kind == jobs[1].kind != plain.kind
        alone = batcher.submit(graphs_of(run, TEXTS[:5]), alone=True, question=bounded)
        watched.open.set()
        found = [outcome(job) for job in jobs]
        whole, without = outcome(alone), outcome(plain)
    expected = run.predict(TEXTS[:5], interval=0.9)
    for name in ("low", "high", "similarity", "distance", "unlike"):
        told = [getattr(each.trust, name) for each in (*found, whole)]
        np.testing.assert_array_equal(np.concatenate(told[:2]).ravel(), getattr(expected, name).ravel())
        np.testing.assert_array_equal(told[2].ravel(), getattr(expected, name).ravel())
    assert without.trust.low is None


def test_a_long_request_lets_others_in_between_and_keeps_its_bits(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered batch by batch, as tokengt predict answers it; those who come later do not wait for all of it."""
    monkeypatch.setattr("tokengt.inference.predictor.tokens_predicted_at_once", lambda _: 60)
    long = graphs_of(predictor, TEXTS)
    parts = len(predictor.batches(long))
    assert parts > 4
    with batching(predictor) as (batcher, watched):
        job = batcher.submit(long)
        assert watched.began.wait(SECONDS)
        short = batcher.submit(graphs_of(predictor, ["CCO"]))
        order: list[str] = []
        job.future.add_done_callback(lambda _: order.append("long"))
        short.future.add_done_callback(lambda _: order.append("short"))
        watched.open.set()
        wait([job.future, short.future], SECONDS)
    assert order == ["short", "long"]
    assert watched.sizes[1] == 1
    assert len(watched.sizes) == parts + 1
    assert outcome(job).values.tolist() == predictor.predict(TEXTS).mean.tolist()


def test_what_nobody_wants_any_more_is_not_done(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokengt.inference.predictor.tokens_predicted_at_once", lambda _: 60)
    with batching(predictor) as (batcher, watched):
        long = batcher.submit(graphs_of(predictor, TEXTS))
        assert watched.began.wait(SECONDS)
        gone = batcher.submit(graphs_of(predictor, ["CCO"]))
        kept = batcher.submit(graphs_of(predictor, ["CCN"]))
        gone.dropped = long.dropped = True
        watched.open.set()
        outcome(kept)
    assert len(watched.sizes) == 2
    assert not gone.future.done()
    assert not long.future.done()


def test_nobody_waits_without_need(predictor: Predictor) -> None:
    """A request waits for company only while others are being read, and then no longer than it may."""
    with batching(predictor, wait_for=5.0) as (batcher, watched):
        watched.open.set()
        started = time.monotonic()
        outcome(batcher.submit(graphs_of(predictor, ["C"])))
        assert time.monotonic() - started < 2.5
        with batcher.coming():
            early = batcher.submit(graphs_of(predictor, ["CC"]))
            time.sleep(0.05)
            assert not early.future.done()
            late = batcher.submit(graphs_of(predictor, ["CCC"]))
        outcome(early)
        outcome(late)
        assert watched.sizes == [1, 2]
    with batching(predictor, wait_for=0.05) as (batcher, watched):
        watched.open.set()
        with batcher.coming():
            outcome(batcher.submit(graphs_of(predictor, ["CC"])))


def test_an_error_is_told_and_the_thread_goes_on(predictor: Predictor) -> None:
    plain = prediction_question(predictor)
    calls = []

    def ask(graphs: GraphBatch) -> object:
        calls.append(len(graphs))
        if len(calls) == 1:
            raise RuntimeError("out of everything")
        return plain.ask(graphs)

    question = Question(ask, plain.level, plain.width, plain.dtype, False, ())  # type: ignore[arg-type]
    batcher = Batcher(predictor, question, 8, 0.0)
    batcher.start()
    with pytest.raises(RuntimeError, match="out of everything"):
        outcome(batcher.submit(graphs_of(predictor, ["C"])))
    assert outcome(batcher.submit(graphs_of(predictor, ["C"]))).values.shape == (1, 2)
    waiting = batcher.submit(graphs_of(predictor, ["C"]))
    batcher.close()
    assert waiting.future.done(), "what waited is answered before the thread ends"
    with pytest.raises(RuntimeError, match="stopping"):
        batcher.submit(graphs_of(predictor, ["C"]))


@settings(max_examples=20)
@given(st.lists(st.lists(any_graphs(), min_size=1, max_size=3), min_size=1, max_size=4))
def test_joined_batches_are_the_graphs_one_after_another(parts: list[list[Graph]]) -> None:
    joined = GraphBatch.joined([GraphBatch.collate(part).narrowed() for part in parts])
    together = GraphBatch.collate([graph for part in parts for graph in part])
    assert torch.equal(joined.edge_index, together.edge_index)
    for name in ("nodes", "edges"):
        assert torch.equal(getattr(joined, name).host, getattr(together, name).host)
    for name in ("node_features", "edge_features"):
        mine, theirs = getattr(joined, name), getattr(together, name)
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs.to(mine.dtype))
