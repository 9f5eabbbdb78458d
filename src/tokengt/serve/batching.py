"""Requests that arrive together are answered together: a queue in front of the model, and one thread that runs it.

A model takes nearly as long for one molecule as for twenty, so the thread takes whatever waits, up to a number of rows.
It never waits for company without need: only while other requests are just being read, and no longer than
``batch_wait``. A request of many rows, or one that asks for it, is answered by itself; it is then given batch for
batch what ``tokengt predict`` would give the model, so that its answer has the same bits. Between two batches of such a
request the others have their turn.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt import packing
from tokengt.batch import GraphBatch
from tokengt.inference import Predictor
from tokengt.workflow.questions import Answered, Question
from tokengt.workflow.rows import refused_graphs


@dataclass(frozen=True)
class Outcome:
    """What the model says of the graphs of one request.

    ``refused`` has the reasons of the graphs that it refuses, by their places; ``found`` has the rows of all others, in
    their order, and is None where there are none.
    """

    found: Answered | None
    refused: dict[int, str] = field(default_factory=dict)


@dataclass(eq=False)
class Job:
    """The graphs of one request, and what is known of them so far.

    ``left`` are the batches that are still to be answered, where it is answered by itself; ``parts`` are the numbers of
    the rows that were, with their answers, and ``refused`` the reasons of graphs that have none. Whoever no longer
    wants it sets ``dropped``: what has not begun is then never done.
    """

    graphs: GraphBatch
    question: Question
    alone: bool
    arrived: float
    future: "Future[Outcome]" = field(default_factory=Future)
    left: list[Tensor] | None = None
    parts: list[tuple[Int[Tensor, " rows"], Answered]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    dropped: bool = False

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """What jobs that are answered together must have in common: what is asked, and the features of the graphs."""
        features = (getattr(self.graphs, name) for name in packing.FEATURE_FIELDS)
        described = (None if x is None else (x.shape[1], x.is_floating_point()) for x in features)
        return (self.question.options, self.graphs.order, *described)

    def outcome(self) -> Outcome:
        """All parts together, in the order of the rows."""
        if not self.parts:
            return Outcome(None, self.refused)
        order = torch.argsort(torch.cat([index for index, _ in self.parts]))
        return Outcome(Answered.joined([part for _, part in self.parts]).at(order), self.refused)


class Batcher:
    """The queue and the thread.

    Args:
        predictor: the run.
        question: what is asked of it, where a request says nothing else.
        batch_rows: graphs of one batch of several requests.
        batch_wait: seconds that a request waits at most for others that are being read.
        observe: is told of every batch: how many requests and graphs it had, and the seconds that the model took.
    """

    def __init__(
        self,
        predictor: Predictor,
        question: Question,
        batch_rows: int,
        batch_wait: float,
        observe: Callable[[int, int, float], None] = lambda *_: None,
    ) -> None:
        self._predictor, self._question, self._observe = predictor, question, observe
        self._batch_rows, self._batch_wait = batch_rows, batch_wait
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._coming = 0
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="tokengt-model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    @contextmanager
    def coming(self) -> Iterator[None]:
        """While a request is read: others may wait for it."""
        with self._changed:
            self._coming += 1
        try:
            yield
        finally:
            with self._changed:
                self._coming -= 1
                self._changed.notify()

    def submit(self, graphs: GraphBatch, alone: bool = False, question: Question | None = None) -> Job:
        """Have graphs answered: the future of the job will have the outcome."""
        job = Job(graphs, question or self._question, alone or len(graphs) >= self._batch_rows, time.monotonic())
        with self._changed:
            if self._closed:
                raise RuntimeError("the server is stopping")
            self._queue.append(job)
            self._changed.notify()
        return job

    def close(self) -> None:
        """Answer what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while jobs := self._take():
            started = time.monotonic()
            try:
                done, count = self._answer_a_part(jobs[0]) if jobs[0].alone else self._answer_together(jobs)
            except Exception as error:
                # Whatever it is, these requests are told, and the thread goes on with the next ones.
                for job in jobs:
                    job.future.set_exception(error)
                continue
            # It is counted before it is told: whoever has an answer finds it among the counts.
            self._observe(len(jobs), count, time.monotonic() - started)
            for job, outcome in zip(jobs, done, strict=False):
                job.future.set_result(outcome)

    def _take(self) -> list[Job]:
        """The requests of the next batch; none when the queue is closed and empty."""
        with self._changed:
            while not (first := self._first()):
                if self._closed:
                    return []
                self._changed.wait()
            jobs, rows, deadline = [first], len(first.graphs), first.arrived + self._batch_wait
            while not first.alone:
                for job in list(self._queue):
                    fits = not job.alone and job.kind == first.kind and rows + len(job.graphs) <= self._batch_rows
                    if fits:
                        self._queue.remove(job)
                    if fits and _begun(job):
                        jobs.append(job)
                        rows += len(job.graphs)
                patience = deadline - time.monotonic()
                if not self._coming or self._closed or patience <= 0 or rows >= self._batch_rows:
                    break
                self._changed.wait(patience)
            return jobs

    def _first(self) -> Job | None:
        """The first request that somebody still wants."""
        while self._queue:
            job = self._queue.popleft()
            if _begun(job):
                return job
        return None

    def _answer_together(self, jobs: Sequence[Job]) -> tuple[list[Outcome], int]:
        """One batch for several requests; where the model refuses it, each by itself. Also the number of graphs."""
        question = jobs[0].question
        graphs = jobs[0].graphs if len(jobs) == 1 else GraphBatch.joined([job.graphs for job in jobs])
        try:
            found = question.ask(graphs)
        except ValueError:
            return [_answered(job.graphs, question) for job in jobs], len(graphs)
        outcomes, first = [], 0
        for job in jobs:
            last = first + job.graphs.level_rows(question.level).total
            outcomes.append(Outcome(found.at(slice(first, last))))
            first = last
        return outcomes, len(graphs)

    def _answer_a_part(self, job: Job) -> tuple[list[Outcome], int]:
        """The next batch of a request that is answered by itself, which then goes to the end of the queue.

        The outcome comes with the last batch.
        """
        if job.left is None:
            # How near the training data is depends, in its last digits, on which graphs are looked at together.
            at_once = job.question.beside.asked
            job.left = [torch.arange(len(job.graphs))] if at_once else self._predictor.batches(job.graphs)
        places = job.left.pop(0)
        part = _answered(job.graphs.select(places), job.question)
        numbers = places.tolist()
        job.refused.update({numbers[place]: reason for place, reason in part.refused.items()})
        if part.found is not None:
            kept = [number for place, number in enumerate(numbers) if place not in part.refused]
            index, _ = job.graphs.level_rows(job.question.level).take(torch.tensor(kept))
            job.parts.append((index, part.found))
        if not job.left:
            return [job.outcome()], len(places)
        with self._changed:
            self._queue.append(job)
        return [], len(places)


def _answered(graphs: GraphBatch, question: Question) -> Outcome:
    """What the model says of graphs, without those that it refuses."""
    try:
        return Outcome(question.ask(graphs))
    except ValueError:
        refused = refused_graphs(graphs, question.ask)
        if not refused:
            raise
    kept = [place for place in range(len(graphs)) if place not in refused]
    return Outcome(question.ask(graphs.select(kept)) if kept else None, refused)


def _begun(job: Job) -> bool:
    """Whether somebody still wants it; from now on its future can no longer be cancelled, only given its result."""
    return not job.dropped and (job.future.running() or job.future.set_running_or_notify_cancel())
