"""What the routes call: requests through the processes that read them and the queue of the model, to their answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tokengt.data.engines import available_cores
from tokengt.inference import Predictor
from tokengt.serve import explaining, reading, sketches
from tokengt.serve.answering import Answer, Rows, answer_rows, rows_of_graphs, rows_of_table
from tokengt.serve.asking import Graphs, Molecules
from tokengt.serve.batching import Batcher, Outcome
from tokengt.serve.limits import Limits
from tokengt.serve.metrics import Metrics
from tokengt.serve.needs import Needs
from tokengt.serve.problems import Problem
from tokengt.serve.readers import Readers
from tokengt.serve.sketches import Drawing
from tokengt.training import outputs
from tokengt.training.spec import RunSpec
from tokengt.workflow.beside import Beside
from tokengt.workflow.questions import Question, prediction_question

T = TypeVar("T")
# Reading is quicker than the model: more processes would only take its cores.
_MOST_READERS = 2


class Service:
    """A run that answers requests; opened and closed in one event loop.

    Args:
        predictor: the run.
        limits: what may be asked for.
        draws: passes of each model that are averaged, over identifiers.
        metrics: what is counted.
        folder: where the run lies, so that explanations can be compared with its data; None where that is not known.
    """

    def __init__(
        self, predictor: Predictor, limits: Limits, draws: int, metrics: Metrics, folder: Path | None = None
    ) -> None:
        self.predictor, self.limits, self.metrics = predictor, limits, metrics
        self.needs = needs_of(predictor.spec, limits.atoms)
        self.question = prediction_question(predictor, draws)
        self.batcher = Batcher(predictor, self.question, limits.batch_rows, limits.batch_wait, metrics.batch)
        self._reader_count = min(_MOST_READERS, available_cores())
        self._readers = Readers(self._reader_count, limits.seconds, "reading the input", reading.warm)
        self._explainers = Readers(
            1, limits.explain_seconds, "the explanation", explaining.prepare, predictor, folder, limits.explain_atoms
        )
        self._draws = draws
        self.pages = explaining.Pages()
        self._at_work = 0
        self._explaining = 0

    async def open(self) -> None:
        """Start the thread of the model, and what the first request would otherwise wait for."""
        self.batcher.start()
        if self.needs.policy is not None:
            await asyncio.gather(*(self._readers.ask(reading.warm) for _ in range(self._reader_count)))

    async def close(self) -> None:
        """Answer what waits, and end all threads and processes."""
        await asyncio.to_thread(self.batcher.close)
        await self._readers.close()
        await self._explainers.close()

    def gauges(self) -> dict[str, tuple[str, int | float]]:
        return {
            "requests_at_work": ("Requests that are being answered now.", self._at_work),
            "requests_waiting": ("Requests that wait for the model now.", len(self.batcher)),
        }

    async def predict(self, asked: Molecules | Graphs) -> Answer:
        """Predictions of a list of molecules or graphs."""
        if isinstance(asked, Graphs):
            return await self._predicted(
                lambda: asyncio.to_thread(rows_of_graphs, self.predictor, asked, self.limits), asked.alone, asked.beside
            )
        work = partial(reading.read_molecules, asked.smiles, asked.descriptors, self.needs)
        return await self._predicted(lambda: self._table(work), asked.alone, asked.beside)

    async def predict_table(self, body: bytes, ending: str, smiles: str | None, beside: Beside) -> Answer:
        """Predictions of a table of molecules: always those that ``tokengt predict`` gives for such a file."""
        self._refuse_graphs("a table of molecules")
        work = partial(reading.read_table, body, ending, self.needs, smiles, self.limits.rows)
        return await self._predicted(lambda: self._table(work), True, beside)

    async def smiles_of(self, drawing: Drawing) -> str:
        return await self._read("atoms", "a molecule", sketches.smiles_of, drawing)

    async def drawing_of(self, smiles: str) -> dict[str, Any]:
        drawing, stereo = await self._read("smiles", "a SMILES", sketches.drawing_of, smiles, self._as_written)
        return {**asdict(drawing), "stereo_left_out": stereo}

    async def picture_of(self, smiles: str, dark: bool) -> str:
        return await self._read("smiles", "a SMILES", sketches.picture_of, smiles, dark, self._as_written)

    async def explain(self, asked: explaining.Explained) -> str:
        """Have the prediction of one molecule or graph explained; the name of the page."""
        if self.needs.nothing_fits is not None:
            raise Problem(409, self.needs.nothing_fits)
        if isinstance(asked.given, str):
            # What cannot be read is said at once, by a process that is quick to replace.
            await self._read("smiles", "a SMILES", reading.check_molecule, asked.given, self.needs)
        if self._explaining >= self.limits.explanations:
            self.metrics.gave_up("full")
            most = f"{self.limits.explanations} explanations (the limit explanations)"
            raise Problem(503, f"the server is at work for {most} already; come again", headers={"Retry-After": "5"})
        self._explaining += 1
        try:
            page = await self._explainers.ask(explaining.page_of, asked, self._draws)
        except ValueError as error:
            raise Problem(422, str(error), None, "what the run can explain") from None
        finally:
            self._explaining -= 1
        return self.pages.keep(page)

    def describe(self) -> dict[str, Any]:
        """What the page has to know of the run and of the limits."""
        spec, limits, beside = self.predictor.spec, self.limits, Beside.usual(self.predictor)
        return {
            "data": spec.source.name,
            "model": spec.model.describe().summary,
            "models": len(self.predictor.members),
            "task": spec.task.kind,
            "targets": list(spec.task.names),
            "classes": None if spec.task.classes is None else list(spec.task.classes),
            "level": spec.level,
            "input": "graphs" if self.needs.policy is None else "molecules",
            "columns": outputs.columns(spec.task, self.question.has_spread),
            "spread": self.question.has_spread,
            "beside": {**asdict(beside), "columns": beside.names(spec.task)},
            "descriptors": list(self.needs.descriptors),
            "text_column": self.needs.text_column,
            "nothing_fits": self.needs.nothing_fits,
            "file_only": self.needs.file_only,
            "limits": {name: getattr(limits, name) for name in ("body", "rows", "atoms", "elements", "explain_atoms")},
        }

    @property
    def _as_written(self) -> Any:
        """Molecules are drawn as they are written, whatever of them the run reads."""
        self._refuse_graphs("a molecule")
        assert self.needs.policy is not None
        return self.needs.policy.of_whole

    def _refuse_graphs(self, given: str) -> None:
        if self.needs.policy is None:
            raise Problem(409, f"this run was trained on graphs that are no molecules; it cannot read {given}")

    async def _table(self, work: Callable[[], reading.ReadRows]) -> Rows:
        return rows_of_table(await self._readers.ask(work))

    async def _predicted(self, read: Callable[[], Awaitable[Rows]], alone: bool, beside: Beside) -> Answer:
        if self.needs.nothing_fits is not None:
            raise Problem(409, self.needs.nothing_fits)
        question = self._asking(beside)
        async with self._admitted():
            with self.batcher.coming():
                rows = await read()
            outcome = None if rows.chunk.graphs is None else await self._outcome(rows, alone, question)
            answer = answer_rows(self.predictor, question, rows, outcome)
        self.metrics.predicted(answer.rows, answer.bad)
        return answer

    def _asking(self, beside: Beside) -> Question:
        """What the model is asked, with what a request wants beside predictions."""
        if not beside.asked:
            return self.question
        try:
            return prediction_question(
                self.predictor, self._draws, interval=beside.interval, neighbours=beside.neighbours
            )
        except ValueError as error:
            field = "neighbours" if beside.interval is None else "interval"
            raise Problem(422, str(error), field, "what GET /api/run says under beside") from None

    async def _outcome(self, rows: Rows, alone: bool, question: Question) -> Outcome:
        assert rows.chunk.graphs is not None
        job = self.batcher.submit(rows.chunk.graphs, alone, question)
        try:
            return await asyncio.wrap_future(job.future)
        finally:
            # Whoever waited may have been cancelled: because time is over, or because the client has gone.
            job.dropped = True

    async def _read(self, field: str, expected: str, work: Callable[..., T], *arguments: Any) -> T:
        async with self._admitted():
            try:
                return await self._readers.ask(work, *arguments)
            except ValueError as error:
                raise Problem(422, str(error), field, expected) from None

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Counts a request while it is worked on; one too many is told to come again."""
        if self._at_work >= self.limits.waiting:
            self.metrics.gave_up("full")
            most = f"{self.limits.waiting:,} requests (the limit waiting)"
            raise Problem(503, f"the server is at work for {most} already; come again", headers={"Retry-After": "1"})
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1


def needs_of(spec: RunSpec, atoms: int) -> Needs:
    """What a run has to be told; ``atoms`` is how large a molecule may be, where the run's own limit is not less."""
    policy, given = spec.molecules, spec.descriptors
    if policy is not None:
        policy = replace(policy, max_atoms=min(atoms, policy.max_atoms))
    return Needs(
        policy, given.columns, spec.text_column, 0 if given.names else len(given.mean), spec.tables is not None
    )
