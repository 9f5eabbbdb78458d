"""Hostile tables: what is prepared, predicted, embedded and compared must be what the file says."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tests.drill.calls import Answer
from tests.drill.case import Case
from tests.drill.oracle import Fault, check_folder, check_predictions, check_store, judged, snapshot
from tests.drill.tables import Table, table
from tests.drill.truth import Asked, predictable

# Seconds of work that no table of the drill needs; its rows are few.
SLOW = 8
# A call, what is wrong with its result, and what it was asked to write.
Called = tuple[Answer, Callable[[], list[Fault]], list[str]]


def play(case: Case) -> list[Fault]:
    made = table(case.rng, case.folder)
    before = snapshot(case.folder)
    (way,) = case.rng.choices((_prepare, _predict, _predict_described, _embed, _evaluate), (10, 5, 2, 1, 1))
    answer, check, outputs = way(case, made)
    if answer.cpu > SLOW:
        return [Fault("hang", f"{made.what or made.path.name} takes {answer.cpu:.0f} s of work", str(answer))]
    return judged(answer) or [*check(), *check_folder(answer, before, outputs)]


def _prepare(case: Case, made: Table) -> Called:
    asked = _asked(case, made)
    options = ["--target", *asked.targets] if asked.targets else []
    options += ["--descriptors", *asked.descriptors] if asked.descriptors else []
    options += ["--split-column", asked.split] if asked.split else []
    options += ["--task", asked.task] if asked.task else []
    if case.rng.random() < 0.2:
        options += ["--salts", "keep", "--stereo", case.rng.choice(("keep", "drop"))]
    answer = case.call("prepare", made.path.name, "--out", "store", *options)
    return answer, lambda: check_store(answer, made, asked, case.folder / "store"), ["store"]


def _asked(case: Case, made: Table) -> Asked:
    """Some of the columns that the file has, in roles that suit them."""
    rng, columns = case.rng, made.columns
    if "y" not in columns or made.what == "columns without a name":
        return Asked()
    if "b" not in columns:
        return Asked(targets=("y",) if rng.random() < 0.8 else ())
    task = rng.choice((None, None, None, "regression", "binary", "multiclass"))
    bits = "y" if rng.random() < 0.3 else "b"
    targets = {"binary": (bits,), "multiclass": ("c",)}.get(task or "", rng.choice((("y",), ("y", "y2"), ())))
    if task == "regression" and not targets:
        task = None
    return Asked(
        targets=targets,
        descriptors=("d",) if rng.random() < 0.3 else (),
        split="part" if rng.random() < 0.3 else None,
        task=task,
    )


def _predict(case: Case, made: Table) -> Called:
    run, draws = case.shop.single, case.rng.choice((1, 1, 1, 2))
    options = () if draws == 1 else ("--draws", str(draws))
    answer = case.call("predict", run.folder, made.path.name, "--out", "out.csv", *options)
    known = case.shop.known if draws == 1 else {}
    out = case.folder / "out.csv"
    return answer, lambda: check_predictions(answer, made, out, run.columns, (), known), ["out.csv"]


def _predict_described(case: Case, made: Table) -> Called:
    run = case.shop.described
    answer = case.call("predict", run.folder, made.path.name, "--out", "out.csv")
    out, lacking = case.folder / "out.csv", answer.refused and "d" not in made.columns
    check = partial(check_predictions, answer, made, out, run.columns, run.descriptors, {})
    return answer, list if lacking else check, ["out.csv"]


def _embed(case: Case, made: Table) -> Called:
    answer = case.call("embed", case.shop.single.folder, made.path.name, "--out", "v.npz")
    return answer, lambda: _check_vectors(answer, case.folder / "v.npz", made), ["v.npz"]


def _check_vectors(answer: Answer, path: Path, made: Table) -> list[Fault]:
    if answer.refused:
        lost = made.verdict == "read" and made.rows
        return [Fault("lost", f"{len(made.rows)} rows do not come back: {made.what}", str(answer))] if lost else []
    wrong = _wrong_vectors(path, made)
    return [Fault("silent", wrong, str(answer))] if wrong else []


def _wrong_vectors(path: Path, made: Table) -> str:
    if made.verdict == "refused":
        return f"{made.what or path.name} was read without a word"
    held = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
    if made.verdict == "doubtful":
        return ""
    if held["lines"].tolist() != [row.line for row in made.rows]:
        return f"vectors of lines {held['lines'].tolist()[:9]}; expected {[row.line for row in made.rows][:9]}"
    if held["valid"].tolist() != [predictable(row, ()) for row in made.rows]:
        return "other rows than the good ones have vectors"
    finite = np.isfinite(held["vectors"]).all(1)
    return "" if (finite == held["valid"]).all() else "a good row has a vector that is not finite"


def _evaluate(case: Case, made: Table) -> Called:
    answer = case.call("evaluate", case.shop.single.folder, made.path.name, "--json")
    return answer, list, []
