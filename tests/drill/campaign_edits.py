"""Our own JSON files, edited field by field: every reader refuses them or gives what it gave before."""

from pathlib import Path

from tests.drill.case import Case
from tests.drill.edits import edited
from tests.drill.oracle import Fault
from tests.drill.using import use_run, use_store


def play(case: Case) -> list[Fault]:
    shop, rng = case.shop, case.rng
    if rng.random() < 0.65:
        run = getattr(shop, rng.choice(("single", "described", "described", "on_graphs", "classes")))
        folder = shop.copy(run.folder, case.folder / "run")
        names = [path for path in _json_files(folder) if path.name != "manifest.json" and "cache" not in path.parts]
        damaged, what = _edit(case, folder, names)
        return [_told(fault, what) for fault in use_run(case, run, folder, damaged)]
    store = getattr(shop, rng.choice(("store", "class_store", "graph_store")))
    folder = shop.copy(store, case.folder / "store")
    damaged, what = _edit(case, folder, _json_files(folder))
    return [_told(fault, what) for fault in use_store(case, store, folder, damaged)]


def _json_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.json"))


def _edit(case: Case, folder: Path, names: list[Path]) -> tuple[str, str]:
    path = case.rng.choice(names)
    content, what = edited(path.read_bytes(), case.rng)
    path.write_bytes(content)
    name = str(path.relative_to(folder))
    return name, f"{name}: {what}"


def _told(fault: Fault, what: str) -> Fault:
    return Fault(fault.kind, f"{what}: {fault.what}", fault.call)
