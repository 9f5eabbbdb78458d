"""Uses a run or a store that something was done to: it is refused, or it gives what it gave before."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.drill.calls import Answer
from tests.drill.case import Case
from tests.drill.oracle import Fault, judged
from tests.drill.workshop import TINY, Run

# What a training leaves that somebody goes on with; pictures and the card are for people.
RESULTS = (
    "model.safetensors",
    "predictions.csv",
    "summary.json",
    "config.json",
    "run.json",
    "metrics.jsonl",
    "split.csv",
)
Checked = tuple[Answer, list[Fault]]


def use_run(case: Case, run: Run, folder: Path, damaged: str, *, unfinished: bool = False) -> list[Fault]:
    """``folder`` is a damaged copy of ``run``; ``damaged`` the file that was changed, relative to it."""
    ways: tuple[tuple[int, Callable[[Case, Run, Path, str], Checked]], ...] = (
        (10, _predict),
        (3, _info),
        (3, _evaluate),
        (1, _embed),
        (2, _resume),
    )
    weights, plays = [weight for weight, _ in ways], [play for _, play in ways]
    (way,) = [_resume] if unfinished else case.rng.choices(plays, weights)
    answer, faults = way(case, run, folder, damaged)
    return judged(answer) or faults


def _predict(case: Case, run: Run, folder: Path, damaged: str) -> Checked:
    answer = case.call("predict", folder.name, run.source, "--out", "out.csv")
    right = case.shop.predicted(run)
    out = case.folder / "out.csv"
    return answer, _differs(answer, lambda: out.read_bytes() == right, "the predictions differ")


def _info(case: Case, run: Run, folder: Path, damaged: str) -> Checked:
    return case.call("info", folder.name), []


def _evaluate(case: Case, run: Run, folder: Path, damaged: str) -> Checked:
    answer = case.call("evaluate", folder.name, run.source, "--json")
    right = case.shop.evaluated(run)
    return answer, _differs(answer, lambda: answer.stdout == right, "the evaluation differs")


def _embed(case: Case, run: Run, folder: Path, damaged: str) -> Checked:
    return case.call("embed", folder.name, run.source, "--out", "v.npz"), []


def _resume(case: Case, run: Run, folder: Path, damaged: str) -> Checked:
    answer = case.call(*run.arguments, "--out", folder.name, "--resume")
    return answer, _differs(answer, lambda: same_results(folder, run.folder, damaged), "the results differ")


def same_results(folder: Path, right: Path, damaged: str) -> bool:
    """Whether the results of two runs are the same bytes, but for the file that was damaged."""
    names = [path.relative_to(right) for path in right.rglob("*") if path.name in RESULTS]
    return all(
        str(name) == damaged
        or ((folder / name).is_file() and (folder / name).read_bytes() == (right / name).read_bytes())
        for name in names
    )


def _differs(answer: Answer, same: Callable[[], bool], what: str) -> list[Fault]:
    return [] if not answer.done or same() else [Fault("silent", what, str(answer))]


STORE_OPTIONS = {
    "store": ("--target", "y", *TINY),
    "class_store": TINY,
    "graph_store": TINY,
}
PREPARE_OPTIONS = {
    "store": ("--target", "y", "b", "--descriptors", "d", "--split-column", "part"),
    "class_store": ("--target", "c", "--task", "multiclass"),
    "graph_store": ("--target", "y"),
}


def use_store(case: Case, store: Path, folder: Path, damaged: str) -> list[Fault]:
    """``folder`` is a damaged copy of ``store``."""
    (way,) = case.rng.choices((_store_info, _train_on, _prepare_again), (3, 4, 3))
    answer, faults = way(case, store, folder, damaged)
    return judged(answer) or faults


def _store_info(case: Case, store: Path, folder: Path, damaged: str) -> Checked:
    return case.call("info", folder.name), []


def _train_on(case: Case, store: Path, folder: Path, damaged: str) -> Checked:
    options = STORE_OPTIONS[store.name]
    case.shop.trained_on(store, options)
    answer = case.call("train", folder.name, *options, "--out", "run")
    right, made = case.shop.home / f"on_{store.name}", case.folder / "run"
    return answer, _differs(answer, lambda: _same_run(made, right), "the training differs")


def _same_run(made: Path, right: Path) -> bool:
    """The same weights and predictions, and the same meaning of them."""
    same = all(
        (made / name).read_bytes() == (right / name).read_bytes() for name in ("model.safetensors", "predictions.csv")
    )
    one, other = (json.loads((run / "run.json").read_bytes()) for run in (made, right))
    return same and all(
        one[name] == other[name] for name in ("task", "molecules", "descriptors", "level", "text_column")
    )


def _prepare_again(case: Case, store: Path, folder: Path, damaged: str) -> Checked:
    source = case.shop.graphs if store.name == "graph_store" else case.shop.molecules
    answer = case.call("prepare", source, *PREPARE_OPTIONS[store.name], "--out", folder.name)
    file = "graphs.safetensors"
    same = lambda: (folder / file).read_bytes() == (store / file).read_bytes()  # noqa: E731
    return answer, _differs(answer, same, "a damaged store is opened as it is")
