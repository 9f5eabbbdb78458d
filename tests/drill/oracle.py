"""Judges calls: what a refusal looks like, what a store, a table of predictions and a folder must hold afterwards."""

import csv
import hashlib
import io
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load

from tests.drill.calls import UNEXPECTED, Answer
from tests.drill.tables import Table
from tests.drill.truth import MOLECULES, Asked, Meaning, Row, meaning, overflows, predictable

# "silent": status 0 and a wrong result. "lost": a file or row that was there is gone. "manners": a refusal that is no
# single sentence, or another program's noise. "litter": temporary files left behind.
Kind = Literal["traceback", "hang", "crash", "silent", "lost", "manners", "litter"]
KINDS: tuple[Kind, ...] = ("traceback", "hang", "crash", "silent", "lost", "manners", "litter")
_LONGEST_SENTENCE = 3000
# Other programs' words that a user of ours should not have to read.
_NOISE = re.compile(r"^.*(\w+Warning: |Exception ignored|\[W\d+|terminate called|\bERROR:|\[rank0\]).*$", re.MULTILINE)
# Cells of any length are read back.
csv.field_size_limit(1 << 28)
# More rejected rows than this share, and the whole is refused.
MOST_REJECTED = 0.5


@dataclass(frozen=True)
class Fault:
    kind: Kind
    what: str
    call: str = ""

    def __str__(self) -> str:
        return f"[{self.kind}] {self.what}\n    {self.call.strip()}"


def judged(answer: Answer, *, may_fail: bool = False) -> list[Fault]:
    """What is wrong with the way a call ended, whatever it was about. ``may_fail``: status 1 is an answer (verify)."""
    text = answer.stdout + answer.stderr
    if answer.hang:
        return [Fault("hang", f"still at work after {answer.seconds:.0f} s", str(answer))]
    if answer.status < 0:
        return [Fault("crash", f"ended by signal {-answer.status}", str(answer))]
    if "Traceback (most recent call last)" in text or answer.status == UNEXPECTED:
        return [Fault("traceback", _last_line(answer.stderr), str(answer))]
    if answer.status not in ((0, 1, 2) if may_fail else (0, 2)):
        return [Fault("traceback", f"status {answer.status}", str(answer))]
    faults = []
    noise = _NOISE.search(answer.stderr)
    if noise:
        faults.append(Fault("manners", f"noise: {noise[0][:200]}", str(answer)))
    if answer.refused:
        faults += _manners(answer)
    return faults


def _manners(answer: Answer) -> list[Fault]:
    """A refusal is one sentence after the name of the command; argparse prints how it is used before it."""
    lines = answer.stderr.rstrip("\n").split("\n")
    sentences = [line for line in lines if re.match(r"tokengt( [\w-]+)*: ", line)]
    if len(sentences) != 1 or sentences[0] != lines[-1]:
        return [Fault("manners", "a refusal that is not one sentence", str(answer))]
    if len(sentences[0].split(": ", 1)[1].strip()) < 8:
        return [Fault("manners", "a refusal that says nothing", str(answer))]
    if len(sentences[0]) > _LONGEST_SENTENCE:
        return [Fault("manners", f"a refusal of {len(sentences[0])} characters", str(answer)[:400])]
    return []


def _last_line(text: str) -> str:
    return text.strip().split("\n")[-1][:300] if text.strip() else "status without a word"


# ---- stores of tables


def check_store(answer: Answer, table: Table, asked: Asked, store: Path) -> list[Fault]:
    """``prepare`` of a table whose truth is known."""
    expected = [meaning(row, asked) for row in table.rows]
    good = [each for each in expected if each is not None]
    if answer.refused:
        return _wrongly_refused(answer, table, len(good), store)
    if table.verdict == "refused":
        return [Fault("silent", f"{table.what or table.path.name} was read without a word", str(answer))]
    if table.rows and len(good) < (1 - MOST_REJECTED) * len(table.rows):
        return [Fault("silent", f"only {len(good)} of {len(table.rows)} rows are good, and it goes on", str(answer))]
    try:
        held = _held(store, asked)
    except (OSError, ValueError, KeyError) as error:
        return [Fault("silent", f"status 0 and no whole store: {error!r}", str(answer))]
    wrong = list(_differences(table.rows, asked, held))
    said = f"{len(held.good):,} graphs"
    if not wrong and said not in answer.stdout:
        wrong.append(f"it says {answer.stdout.strip()!r}; the store holds {said}")
    kind: Kind = "lost" if wrong and len(held.good) + len(held.rejected) < len(table.rows) else "silent"
    return [Fault(kind, f"{table.what}: {'; '.join(wrong[:3])}", str(answer))] if wrong else []


def _wrongly_refused(answer: Answer, table: Table, good: int, store: Path) -> list[Fault]:
    if (store / "manifest.json").exists():
        return [Fault("silent", "refused, and a store is there", str(answer))]
    if table.verdict == "read" and good and good > (1 - MOST_REJECTED) * len(table.rows):
        return [Fault("lost", f"{good} good rows of {len(table.rows)} are refused", str(answer))]
    if table.mentions and table.mentions not in answer.stderr:
        return [Fault("manners", f"{table.what}: the refusal does not name {table.mentions!r}", str(answer))]
    return []


@dataclass(frozen=True)
class _Held:
    good: dict[int, Meaning]
    order: list[int]
    rejected: dict[int, str]
    rows: int


def _held(store: Path, asked: Asked) -> _Held:
    manifest = json.loads((store / "manifest.json").read_bytes())
    content = (store / "graphs.safetensors").read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["files"]["graphs.safetensors"]:
        raise ValueError("the checksum of graphs.safetensors is wrong")
    tensors = load(content)
    lines = tensors["lines"].tolist()
    atoms, edges = (np.diff(tensors[f"{name}_offsets"]).tolist() for name in ("node", "edge"))
    classes = [column["classes"] for column in manifest["targets"]]
    good = {}
    for place, line in enumerate(lines):
        targets = tuple(
            _label(value, names) for value, names in zip(tensors["targets"][place].tolist(), classes, strict=True)
        )
        part = int(tensors["split"][place]) if asked.split is not None else None
        good[line] = Meaning(line, targets, atoms[place], edges[place] / 2, part)
    return _Held(good, lines, _rejected(store / "rejected.csv", manifest["rejected"]), manifest["source"]["rows"])


def _label(value: float, classes: Sequence[str] | None) -> float | str | None:
    if classes is None:
        return value
    return None if math.isnan(value) else classes[int(value)]


def _rejected(path: Path, count: int) -> dict[int, str]:
    rows = rejected_rows(path)
    found = dict(rows)
    if len(rows) != count or len(found) != count:
        raise ValueError(f"rejected.csv has {len(rows)} rows, the manifest says {count}")
    return found


def rejected_rows(path: Path) -> list[tuple[int, str]]:
    """Line (or number of the graph) and reason of every rejected row, read as strictly as CSV can be."""
    if not path.exists():
        return []
    _, *rows = csv.reader(io.StringIO(path.read_bytes().decode(), newline=""), strict=True)
    return [(int(line), reason) for line, reason, *_ in rows]


def _differences(rows: Sequence[Row], asked: Asked, held: _Held) -> Iterator[str]:
    if held.rows != len(rows):
        yield f"{held.rows} rows were counted; the file has {len(rows)}"
    if held.order != sorted(held.order):
        yield "rows are out of order"
    known = {row.line for row in rows}
    for line in sorted((set(held.good) | set(held.rejected)) - known):
        yield f"line {line} has no row"
    for row in rows:
        expected, found = meaning(row, asked), held.good.get(row.line)
        if found is None and row.line not in held.rejected:
            yield f"line {row.line} is gone"
        elif found is not None and row.line in held.rejected:
            yield f"line {row.line} is kept and rejected"
        elif found is None and expected is not None and not row.doubtful:
            yield f"line {row.line} is good and was rejected: {held.rejected[row.line]}"
        elif found is None and not held.rejected[row.line].strip():
            yield f"line {row.line} was rejected without a reason"
        elif found is not None and expected is None and not row.doubtful:
            yield f"line {row.line} must be rejected: {dict(list(row.cells.items())[:8])}"
        elif found is not None and expected is not None and not _same(found, expected):
            yield f"line {row.line} is {found}; expected {expected}"


def _same(found: Meaning, expected: Meaning) -> bool:
    alike = len(found.targets) == len(expected.targets) and all(map(_equal, found.targets, expected.targets))
    return alike and (found.atoms, found.bonds, found.part) == (expected.atoms, expected.bonds, expected.part)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


# ---- tables of predictions


def check_predictions(
    answer: Answer,
    table: Table,
    out: Path,
    columns: Sequence[str],
    descriptors: Sequence[str],
    known: Mapping[str, float],
) -> list[Fault]:
    """``predict``: every row in order, with its cells and a finite prediction or a reason.

    ``columns`` are those of the predictions, ``known`` the prediction of each molecule where that is all it depends on.
    """
    if answer.refused:
        if out.exists():
            return [Fault("silent", "refused, and a table is there", str(answer))]
        if table.verdict == "read" and table.rows:
            return [Fault("lost", f"{len(table.rows)} rows do not come back: {table.what}", str(answer))]
        return []
    if table.verdict == "refused" and table.what != "a header and no row":
        return [Fault("silent", f"{table.what or table.path.name} was read without a word", str(answer))]
    wrong = list(_wrong_predictions(table, out, columns, descriptors, known))
    kind: Kind = "lost" if wrong and "rows come back" in wrong[0] else "silent"
    return [Fault(kind, f"{table.what}: {'; '.join(wrong[:3])}", str(answer))] if wrong else []


def _wrong_predictions(
    table: Table, out: Path, columns: Sequence[str], descriptors: Sequence[str], known: Mapping[str, float]
) -> Iterator[str]:
    try:
        head, *body = csv.reader(io.StringIO(out.read_bytes().decode(), newline=""), strict=True)
    except (OSError, ValueError, csv.Error) as error:
        yield f"no table of predictions: {error!r}"
        return
    if len(body) != len(table.rows):
        yield f"{len(body)} rows come back for {len(table.rows)}"
        return
    width = len(table.columns)
    places = [head.index(name) for name in columns if name in head]
    if len(places) != len(columns) or head[-1] != "reason":
        yield f"the columns are {head[-4:]}; expected {list(columns)} and reason"
        return
    for row, cells in zip(table.rows, body, strict=True):
        if len(cells) != len(head):
            yield f"line {row.line} has {len(cells)} cells; expected {len(head)}"
            continue
        given = [row.cells[name] for name in table.columns] if table.exact else cells[:width]
        if cells[:width] != given and not row.broken and not row.doubtful:
            changed = next(i for i in range(width) if cells[i] != given[i])
            yield f"line {row.line}: the cell {given[changed]!r} came back as {cells[changed]!r}"
        yield from _wrong_prediction(row, [cells[place] for place in places], cells[-1], descriptors, known)


def _wrong_prediction(
    row: Row, values: Sequence[str], reason: str, descriptors: Sequence[str], known: Mapping[str, float]
) -> Iterator[str]:
    numbers = [_finite(value) for value in values]
    if row.doubtful and row.cells["smiles"] not in MOLECULES:
        return
    if not predictable(row, descriptors):
        if not reason.strip() or any(values):
            yield f"line {row.line} cannot be predicted, and has {list(values)} and the reason {reason!r}"
        return
    if reason.strip() and (row.doubtful or (overflows(row, descriptors) and not any(values))):
        return
    if reason.strip() or None in numbers:
        yield f"line {row.line} is good and has {list(values)} and the reason {reason!r}"
    elif known and numbers[0] is not None:
        right = known[row.cells["smiles"]]
        if abs(numbers[0] - right) > 1e-4 * max(1.0, abs(right)):
            yield f"line {row.line} has {numbers[0]}; alone, {row.cells['smiles']} has {right}"


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# ---- folders

# A file by what it holds, anything else by what it is.
Snapshot = dict[str, str]


def snapshot(folder: Path) -> Snapshot:
    """Everything under a folder; symbolic links are not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode):
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(mode):
            found[str(path.relative_to(folder))] = f"-> {os.readlink(path)}"
        elif not stat.S_ISDIR(mode):
            found[str(path.relative_to(folder))] = f"kind {stat.S_IFMT(mode):o}"
    return found


def check_folder(answer: Answer, before: Snapshot, outputs: Sequence[str]) -> list[Fault]:
    """Nothing that was there is gone or changed, and nothing is there but what was asked for.

    ``outputs`` are what the call was asked to write: names of files, or of folders, relative to its own.
    """
    after = snapshot(answer.folder)

    def is_output(name: str) -> bool:
        return any(name == out or name.startswith(f"{out}/") for out in outputs)

    faults = []
    changed = [name for name, value in before.items() if after.get(name) != value]
    gone = [name for name in changed if not (answer.done and is_output(name))]
    if gone:
        faults.append(Fault("lost", f"{gone[0]} was {'changed' if gone[0] in after else 'removed'}", str(answer)))
    litter = [name for name in after if name not in before and not is_output(name)]
    litter += [name for name in after if name not in before and is_output(name) and _is_temporary(name, answer)]
    if litter:
        faults.append(Fault("litter", f"{litter[0]} is left behind", str(answer)))
    return faults


def _is_temporary(name: str, answer: Answer) -> bool:
    return any(part.startswith(".") and part != ".shards" for part in Path(name).parts)
