"""What a folder is: a store, a run or a saved model, in a few lines."""

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

from tokengt.data.manifest import MANIFEST, read_manifest
from tokengt.models.contract import ModelConfig
from tokengt.models.kinds import load_model
from tokengt.models.pretrained import CONFIG
from tokengt.training.card import LINEAR
from tokengt.training.metrics import describe
from tokengt.training.results import CARD, METRICS, SUMMARY
from tokengt.training.spec import RUN_FILE, RunSpec, read_run


def info(path: Path) -> list[str]:
    """Lines that describe a folder of ours.

    Raises:
        ValueError: it is none of ours.
    """
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
    yield f"{path}: a store of {counts['graphs']:,} graphs, {counts['nodes']:,} nodes, {counts['edges']:,} edges"
    yield f"source     {manifest.source.name} ({manifest.source.rows:,} rows, {manifest.rejected:,} rejected)"
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
    summary = path / SUMMARY
    if summary.is_file():
        numbers = json.loads(summary.read_bytes())
        if numbers.get("test"):
            yield f"test       {describe(_numbers(numbers['test']))} ({numbers['test_rows']:,} rows)"
    else:
        done = len((path / METRICS).read_bytes().splitlines()) if (path / METRICS).is_file() else 0
        yield f"unfinished {done} of {spec.training.epochs} epochs are done; go on with the same command and --resume"


def outcome(path: Path) -> list[str]:
    """What a finished run has to show: numbers, and the files to open; nothing in all processes but the first."""
    if int(os.environ.get("RANK", "0")) or int(os.environ.get("LOCAL_RANK", "0")):
        return []
    numbers = json.loads((path / SUMMARY).read_bytes())
    lines = []
    for name, label in (("test", "test"), ("linear", LINEAR), ("floor", "knowing only the training labels")):
        if numbers.get(name):
            lines.append(f"{label}: {describe(_numbers(numbers[name]))}")
    each = [value for value in numbers.get("members", []) if value is not None]
    if len(each) > 1:
        lines.append(f"each model alone: {numbers['metric']} {mean(each):.4g} ± {stdev(each):.2g}")
    shown = ", ".join(str(file) for file in (*sorted(path.glob("*.png")), path / CARD))
    return [*lines, f"open {shown}", f"predict with: tokengt predict {shlex.quote(str(path))} NEW.csv --out OUT.csv"]


def _numbers(values: dict[str, float | None]) -> dict[str, float]:
    return {name: float("nan") if value is None else value for name, value in values.items()}


def _model(config: ModelConfig, parameters: int | None = None) -> Iterator[str]:
    size = "" if parameters is None else f", {parameters:,} parameters"
    yield f"model      {config.describe().summary}{size}"
