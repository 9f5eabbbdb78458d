"""Rows with what the model says of them, as the CSV of ``tokengt predict`` or as JSON."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tokengt.data.sheets import Answers, Numbers, PredictionSheet
from tokengt.inference import Predictor
from tokengt.serve.asking import Graphs, check_size
from tokengt.serve.batching import Outcome
from tokengt.serve.limits import Limits
from tokengt.serve.problems import Problem
from tokengt.serve.reading import ReadRows
from tokengt.workflow.inputs import unlabelled_contents
from tokengt.workflow.questions import Question, prediction_sheet
from tokengt.workflow.rows import Chunk, graph_chunk, table_chunk


class Rows(NamedTuple):
    """The rows of a request: the columns that say which row it is, and the chunk that they make."""

    head: tuple[str, ...]
    chunk: Chunk


class Answer(NamedTuple):
    """The rows of a request, answered."""

    sheet: PredictionSheet
    answers: Answers

    @property
    def rows(self) -> int:
        return len(self.answers.values)

    @property
    def bad(self) -> int:
        """How many rows have no prediction."""
        return len(self.answers.reasons)

    def csv(self) -> bytes:
        """What ``tokengt predict`` writes for these rows."""
        return self.sheet.header() + self.sheet.piece(self.answers)

    def json(self) -> dict[str, Any]:
        """One object per row: its own columns, the predictions under the names of the CSV, and the reason, or null."""
        front = self.answers.front
        fronts = _whole_numbers(front) if isinstance(front, Numbers) else front.cells()
        numbers = _numbers(self.answers, self.sheet.classes)
        reasons = (self.answers.reasons.get(place) for place in range(self.rows))
        names = (*self.sheet.head, *self.sheet.names)
        rows = [
            dict(zip(names, (*front, *values, reason), strict=True))
            for front, values, reason in zip(fronts, numbers, reasons, strict=True)
        ]
        return {"columns": list(names), "rows": rows, "predicted": self.rows - self.bad, "refused": self.bad}


def rows_of_table(read: ReadRows) -> Rows:
    return Rows(read.head, table_chunk(0, read.shard))


def rows_of_graphs(predictor: Predictor, asked: Graphs, limits: Limits) -> Rows:
    """Graphs as ``networkx.node_link_data`` writes them, numbered from 1.

    Raises:
        Problem: none of them can be read, or one is too large.
    """
    for place, content in enumerate(asked.graphs):
        check_size(content, f"graphs[{place}]", limits.elements, "the limit elements")
    try:
        found = unlabelled_contents(predictor.spec, asked.graphs)
    except ValueError as error:
        raise Problem(422, str(error), "graphs", "graphs as networkx.node_link_data gives them") from None
    level = predictor.spec.level
    head = ("graph",) if level == "graph" else ("graph", level)
    return Rows(head, graph_chunk(0, found.graphs, found.lines.numpy(), found.rejected, level))


def answer_rows(predictor: Predictor, question: Question, rows: Rows, outcome: Outcome | None) -> Answer:
    """The rows with what the model says of them; ``outcome`` is None where none of them has a graph."""
    chunk = rows.chunk
    if outcome is not None and outcome.refused:
        if chunk.without is None:
            raise Problem(422, next(iter(outcome.refused.values())), None, "molecules that the model takes")
        chunk = chunk.without(outcome.refused)
    answers, _ = question.told(predictor, chunk, None if outcome is None else outcome.found)
    return Answer(prediction_sheet(predictor, question, rows.head), answers)


def _whole_numbers(front: Numbers) -> list[Sequence[Any]]:
    return [[None if value < 0 else value for value in row] for row in front.values.tolist()]


def _numbers(answers: Answers, classes: Sequence[str] | None) -> list[list[Any]]:
    """What the CSV has in the columns of a prediction, as numbers and not as text; None where there is none."""
    parts = [answers.values] if answers.spread is None else [answers.values, answers.spread]
    columns = [*np.concatenate(parts, 1).T.tolist(), *(column.tolist() for column in answers.beside)]
    if classes is not None:
        best = np.nan_to_num(answers.values, nan=-1.0).argmax(1).tolist() if len(answers.values) else []
        columns.insert(0, [classes[place] for place in best])
    answered = (~np.isnan(answers.values).any(1)).tolist()
    return [
        [value if there and value == value else None for value in row]
        for there, row in zip(answered, zip(*columns, strict=True), strict=True)
    ]
