"""Our own JSON files, edited field by field: every reader refuses them or gives what it gave before."""

import json
from pathlib import Path

from tests.drill.case import Case
from tests.drill.edits import edited, fields
from tests.drill.oracle import Fault, judged
from tests.drill.using import use_run, use_store
from tests.drill.workshop import Run

_OURS = ("run.json", "config.json", "summary.json")
FIXTURES = Path(__file__).parents[1] / "fixtures"


def play(case: Case) -> list[Fault]:
    shop, rng = case.shop, case.rng
    if rng.random() < 0.06:
        return _led_away(case)
    if rng.random() < 0.15:
        return _old_run(case)
    thing, name, field = _field(case)
    source = getattr(shop, thing)
    folder = shop.copy(source.folder if isinstance(source, Run) else source, case.folder / thing)
    what = _edit(folder / name, case, field)
    use = use_run if isinstance(source, Run) else use_store
    return [_told(fault, f"{name}: {what}") for fault in use(case, source, folder, name)]


# The files whose fields are edited, one field after the other.
FILES = (
    ("single", "run.json"),
    ("single", "config.json"),
    ("single", "summary.json"),
    ("described", "run.json"),
    ("described", "summary.json"),
    ("described", "members/model-0/run.json"),
    ("described", "members/model-1/config.json"),
    ("classes", "run.json"),
    ("on_graphs", "run.json"),
    ("on_graphs", "config.json"),
    ("store", "manifest.json"),
    ("class_store", "manifest.json"),
    ("graph_store", "manifest.json"),
)


def _field(case: Case) -> tuple[str, str, int]:
    """The thing, the file and the number of the field that this case edits."""
    counts = []
    for thing, name in FILES:
        source = getattr(case.shop, thing)
        home = source.folder if isinstance(source, Run) else source
        counts.append(len(fields(json.loads((home / name).read_bytes()))))
    # Neighbouring cases edit files of all kinds, and every field has its turn.
    number = case.number * 37 % sum(counts)
    for (thing, name), count in zip(FILES, counts, strict=True):
        if number < count:
            return thing, name, number
        number -= count
    raise AssertionError("the number is below the sum")


def _led_away(case: Case) -> list[Fault]:
    """The name of a model that leads out of the run, to one that is there: another model must not answer."""
    run, rng = case.shop.described, case.rng
    folder = case.shop.copy(run.folder, case.folder / "run")
    case.shop.copy(run.folder / "members" / "model-1", case.folder / "elsewhere")
    path, away = (
        folder / "run.json",
        rng.choice(("../../elsewhere", str(case.folder / "elsewhere"), "model-0/../model-1")),
    )
    data = json.loads(path.read_bytes())
    data["members"] = rng.choice(([away], [away, "model-1"], ["model-0", away], [data["members"][0]] * 2, ["", "."]))
    path.write_text(json.dumps(data, indent=2))
    answer = case.call("predict", folder.name, run.source, "--out", "out.csv")
    if answer.done:
        return [Fault("silent", f"members are {data['members']}", str(answer))]
    return judged(answer)


def _old_run(case: Case) -> list[Fault]:
    """A run of an older version has no checksum over its settings: it is read, or refused by a sentence."""
    old = case.rng.choice(
        sorted(path.parent for path in FIXTURES.rglob("run.json") if path.parent.parent.name != "members")
    )
    folder = case.shop.copy(old, case.folder / "run")
    what = _edit(case.rng.choice([path for path in sorted(folder.rglob("*.json")) if path.name in _OURS]), case)
    words = case.rng.choice((["info", "run"], ["predict", "run", str(case.shop.molecules), "--out", "out.csv"]))
    return [_told(fault, what) for fault in judged(case.call(*words))]


def _edit(path: Path, case: Case, field: int | None = None) -> str:
    content = path.read_bytes()
    if field is None:
        field = case.rng.randrange(len(fields(json.loads(content))))
    changed, what = edited(content, case.rng, field)
    path.write_bytes(changed)
    return what


def _told(fault: Fault, what: str) -> Fault:
    return Fault(fault.kind, f"{what}: {fault.what}", fault.call)
