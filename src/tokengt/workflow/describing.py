"""What a folder is: a store, a run or a saved model, in a few lines."""

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev

from tokengt.data.datasets import find_run
from tokengt.data.manifest import MANIFEST, read_manifest
from tokengt.models.contract import ModelConfig
from tokengt.models.kinds import load_model
from tokengt.models.pretrained import CONFIG
from tokengt.training.card import LINEAR, MODEL, counted, new_tables
from tokengt.training.metrics import describe
from tokengt.training.results import CARD, METRICS, SUMMARY, read_summary
from tokengt.training.spec import MEMBERS, RUN_FILE, RunSpec, read_run


def info(path: Path) -> list[str]:
    """Lines that describe a folder of ours.

    Raises:
        ValueError: it is none of ours.
    """
    path = find_run(path)
    if (path / MANIFEST).is_file():
        return list(_store(path))
    if (path / RUN_FILE).is_file():
        return list(_run(path, read_run(path)))
    if (path / CONFIG).is_file():
        model = load_model(path)
        return [f"{path}: a saved model", *_model(model.config, sum(p.numel() for p in model.parameters()))]
    if not path.exists():
        raise ValueError(f"{path} does not exist; expected a store, a run or a saved model")
    raise ValueError(f"{path} is no store, run or saved model: it has no {MANIFEST}, {RUN_FILE} or {CONFIG}")


def _store(path: Path) -> Iterator[str]:
    manifest = read_manifest(path)
    counts = manifest.counts
    held = ", ".join(counted(counts[f"{what}s"], what) for what in ("graph", "node", "edge"))
    yield f"{path}: a store of {held}"
    rows = counted(manifest.source.rows, "row" if manifest.by_line else "graph")
    yield f"source     {manifest.source.name} ({rows}, {manifest.rejected:,} rejected)"
    targets = [
        target.name if target.classes is None else f"{target.name} ({len(target.classes)} classes)"
        for target in manifest.targets
    ]
    yield f"targets    {', '.join(targets) or 'none'} (a {manifest.level})"
    if manifest.descriptors:
        yield f"given      {', '.join(manifest.descriptors)}"
    made = ", ".join(f"{key} {value}" for key, value in manifest.featurisation.items() if not isinstance(value, dict))
    policy = ", ".join(f"{key} {value}" for key, value in manifest.featurisation.get("policy", {}).items())
    yield f"features   {made}" + (f" ({policy})" if policy else "")


def _run(path: Path, spec: RunSpec) -> Iterator[str]:
    count = f"{len(spec.members)} models" if spec.members else "one model"
    yield f"{path}: a run of {count} on {spec.source.name}, {spec.task.kind} of {', '.join(spec.task.names)}"
    yield f"split      {spec.split}; seed {spec.seed}"
    yield from _model(spec.model)
    if (path / SUMMARY).is_file():
        summary = read_summary(path)
        if summary.test:
            yield f"test       {describe(_numbers(summary.test))} ({summary.test_rows:,} rows)"
    else:
        yield f"unfinished {_progress(path, spec)}; go on from the last checkpoint with the same command and --resume"


def _progress(path: Path, spec: RunSpec) -> str:
    """How far a run that is not finished has come; of several models, which are trained one after the other."""
    if not spec.members:
        return f"{_epochs(path)} of {spec.training.epochs} epochs are done"
    homes = {name: path / MEMBERS / name for name in spec.members}
    finished = [name for name, home in homes.items() if (home / SUMMARY).is_file()]
    begun = {name: _epochs(home) for name, home in homes.items() if name not in finished}
    epochs = [f"{count} of {spec.training.epochs} epochs of {name}" for name, count in begun.items() if count]
    return ", ".join([f"{len(finished)} of {len(homes)} models are trained", *epochs])


def _epochs(folder: Path) -> int:
    file = folder / METRICS
    return len(file.read_bytes().splitlines()) if file.is_file() else 0


def outcome(path: Path) -> list[str]:
    """What a finished run has to show: numbers, and the files to open; nothing in all processes but the first."""
    if int(os.environ.get("RANK", "0")) or int(os.environ.get("LOCAL_RANK", "0")):
        return []
    summary = read_summary(path)
    lines = []
    known = "knowing only the training labels"
    several = "s" if summary.members else ""
    apart = [(values, f"the {name}{several * (name == MODEL)} alone") for name, values in (summary.apart or {}).items()]
    for values, label in ((summary.test, "test"), *apart, (summary.linear, LINEAR), (summary.floor, known)):
        if values:
            lines.append(f"{label}: {describe(_numbers(values))}")
    each = [value for value in summary.members if value is not None]
    if len(each) > 1:
        lines.append(f"a single model: {summary.metric} {mean(each):.4g} ± {stdev(each):.2g}")
    shown = ", ".join(str(file) for file in (*sorted(path.glob("*.png")), path / CARD))
    new = _new_input(read_run(path))
    return [*lines, f"open {shown}", f"predict with: tokengt predict {shlex.quote(str(path))} {new} --out OUT.csv"]


def _new_input(spec: RunSpec) -> str:
    """A name for a file to predict, of a kind that the run takes."""
    if spec.tables is not None:
        return new_tables(spec.level)
    if spec.molecules is not None:
        return "NEW.csv"
    return f"NEW{Path(spec.source.name).suffix}" if Path(spec.source.name).suffix else "NEW_FOLDER"


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float("nan") if value is None else value for name, value in values.items()}


def _model(config: ModelConfig, parameters: int | None = None) -> Iterator[str]:
    size = "" if parameters is None else f", {parameters:,} parameters"
    yield f"model      {config.describe().summary}{size}"
