"""What a model is asked about every chunk of rows, and how its answers become rows of a file.

The same question is asked by ``predict`` for a file, by the server for a request and by ``explain`` for one row, so
that all of them give the same numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.parts import Counts
from tokengt.data.sheets import Answers, PredictionSheet
from tokengt.inference import Predictor
from tokengt.level import Level
from tokengt.models.passes import Over, check_passes
from tokengt.training import outputs
from tokengt.training.calibration import Trust
from tokengt.training.metrics import to_numpy
from tokengt.workflow.beside import Beside
from tokengt.workflow.rows import Chunk, answered


@dataclass(frozen=True)
class Answered:
    """What a model says of the graphs of a chunk: one row for each of them (or of their nodes or edges)."""

    values: Float[Tensor, "kept out"]
    spread: Float[Tensor, "kept out"] | None = None
    trust: Trust = field(default_factory=Trust)

    def at(self, rows: slice | Int[Tensor, " some"]) -> "Answered":
        """Some of the rows, in the order in which they are named."""
        spread = None if self.spread is None else self.spread[rows]
        return Answered(self.values[rows], spread, self.trust.at(rows if isinstance(rows, slice) else rows.numpy()))

    @classmethod
    def joined(cls, parts: "Sequence[Answered]") -> "Answered":
        """The rows of answers to one question, one after another."""
        spreads = [part.spread for part in parts if part.spread is not None]
        trust = Trust.joined([part.trust for part in parts])
        return cls(torch.cat([part.values for part in parts]), torch.cat(spreads) if spreads else None, trust)


@dataclass(frozen=True)
class Question:
    """What is asked of every chunk, and how the answers are written."""

    ask: Callable[[GraphBatch], Answered]
    level: Level
    width: int
    dtype: type[np.floating]
    has_spread: bool
    # What decides the answers besides the run and the rows.
    options: tuple[object, ...]
    beside: Beside = field(default_factory=Beside)

    def answers(self, predictor: Predictor, chunk: Chunk) -> tuple[Answers, Counts]:
        return self.told(predictor, *answered(chunk, self.ask))

    def told(self, predictor: Predictor, chunk: Chunk, found: Answered | None) -> tuple[Answers, Counts]:
        """All rows of a chunk with what was found for those that have a graph, or with their reasons."""
        problems = chunk.told(predictor, None if found is None else found.values, self.level)
        values, spread = (None, None) if found is None else (found.values, found.spread)
        answers = Answers(
            chunk.front,
            chunk.lines,
            to_numpy(chunk.spread_out(values, self.width)).astype(self.dtype),
            problems,
            to_numpy(chunk.spread_out(spread, self.width)) if self.has_spread else None,
            self.beside.columns(chunk, self.width, Trust() if found is None else found.trust),
        )
        return answers, Counts(len(chunk), len(problems), len(problems) - len(chunk.problems))


def prediction_question(
    predictor: Predictor,
    draws: int = 1,
    over: Over = "identifiers",
    interval: float | None = None,
    neighbours: bool = False,
) -> Question:
    """What a prediction asks of every chunk.

    Raises:
        ValueError: one sentence: these models cannot be drawn from so, or the run has no such intervals.
    """
    for member in predictor.members:
        check_passes(member.model, draws, over)
    predictor.check_trust(interval, neighbours)
    task, spread = predictor.task, predictor.has_spread(draws)
    trust = Beside(interval, neighbours or (interval is not None and predictor.calibration.known is not None))

    def ask(graphs: GraphBatch) -> Answered:
        answer = predictor.answers(graphs, draws, over, None, trust.interval, trust.neighbours)
        return Answered(answer.mean, answer.std, answer.trust)

    options = ("predict", draws, over, *((interval, trust.neighbours) if trust.neighbours or interval else ()))
    return Question(ask, predictor.spec.level, task.width, np.float64, spread, options, trust)


def prediction_sheet(predictor: Predictor, question: Question, head: tuple[str, ...]) -> PredictionSheet:
    """The CSV of predictions whose rows begin with the columns of ``head``."""
    task = predictor.task
    columns = [*outputs.columns(task, question.has_spread), *question.beside.names(task), "reason"]
    return PredictionSheet(head, tuple(outputs.unused(columns, head)), task.classes)
