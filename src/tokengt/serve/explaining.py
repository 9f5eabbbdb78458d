"""Explanations of predictions: pages that a process of its own makes, kept for a while.

Explaining takes the model a hundred times as long as predicting, and needs gradients and recorded attention. It has
its own process with its own copy of the run, so that predictions do not wait for it, and so that it can be killed.
"""

import secrets
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokengt.inference import Predictor

# Pages that are kept; what a browser shows already does not need them any more.
_MOST_PAGES, _MOST_BYTES = 32, 64 << 20
# Of a run with several targets so many are explained, and a person can switch between them.
_MOST_OUTPUTS = 4


@dataclass(frozen=True)
class Explained:
    """What is to be explained: a SMILES or a graph as node-link JSON says it, and which of its rows.

    Args:
        given: the molecule or the graph.
        item: the node or edge, of a run that predicts those.
        descriptors: the numbers that the run needs beside it.
    """

    given: str | dict[str, Any]
    item: int = 0
    descriptors: tuple[float, ...] = ()


class Pages:
    """The last pages, by names that nobody can guess."""

    def __init__(self) -> None:
        self._pages: OrderedDict[str, bytes] = OrderedDict()

    def keep(self, page: bytes) -> str:
        """The name of the page from now on; the oldest ones are forgotten."""
        name = secrets.token_urlsafe(16)
        self._pages[name] = page
        while len(self._pages) > _MOST_PAGES or sum(map(len, self._pages.values())) > _MOST_BYTES:
            if len(self._pages) == 1:
                break
            self._pages.popitem(last=False)
        return name

    def get(self, name: str) -> bytes | None:
        return self._pages.get(name)


class _Run:
    """The run in the process that explains, and the attention that its validation part usually has, if known."""

    predictor: Predictor
    usual: Any = 0


def prepare(predictor: Predictor, folder: Path | None, atoms: int) -> None:
    """Get ready to explain predictions of a run; ``folder`` is where its data may lie."""
    from tokengt.explain.page.render import render  # noqa: F401
    from tokengt.workflow.explaining import usual_attention

    spec = predictor.spec
    if spec.molecules is not None:
        limited = replace(spec.molecules, max_atoms=min(atoms, spec.molecules.max_atoms))
        predictor = Predictor(
            replace(spec, molecules=limited), predictor.members, predictor.device, predictor.calibration
        )
    _Run.predictor = predictor
    if folder is not None:
        try:
            _Run.usual = usual_attention(folder)
        except (ValueError, OSError):
            # A run without its data, or without attention: the page says what is missing.
            _Run.usual = 0


def page_of(asked: Explained, draws: int) -> bytes:
    """The page that explains a prediction, as HTML.

    Raises:
        ValueError: one sentence: it cannot be read, or not be explained.
    """
    from tokengt.explain.page.render import render
    from tokengt.workflow.explaining import explain
    from tokengt.workflow.single import single_graph, single_text, with_descriptors

    predictor = _Run.predictor
    if isinstance(asked.given, str):
        single = with_descriptors(predictor, single_text(predictor, asked.given), asked.descriptors or None)
    else:
        single = single_graph(predictor, asked.given)
    names = predictor.task.classes or predictor.task.names
    first = explain(predictor, single, item=asked.item, draws=draws, usual=_Run.usual)
    others = [
        explain(predictor, single, item=asked.item, draws=draws, usual=_Run.usual, target=place)
        for place in range(min(len(names), _MOST_OUTPUTS))
        if place != first.output
    ]
    return render(first, others).encode()
