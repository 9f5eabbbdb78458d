"""A table small enough for a test: forty molecules, tiny models, two epochs, trainings in the test's own process."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.small import molecules, write_csv
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.experiments.molecules import run
from tokengt.experiments.molecules.plan import Job, MoleculesConfig, Plan
from tokengt.experiments.molecules.processes import Training
from tokengt.experiments.molecules.worker import order_of, train_order
from tokengt.workflow.comparing import sentence_of

TINY = {
    **{f"gin:model.{name}": value for name, value in {"dim": "8", "num_layers": "1"}.items()},
    "tokengt-lap:model.dim": "16",
    "tokengt-lap:model.identifiers.dim": "4",
    **{
        f"tokengt-lap:model.encoder.{name}": value
        for name, value in {"num_layers": "1", "num_heads": "2", "mlp_dim": "16"}.items()
    },
    "training.epochs": "2",
}


def small_store(folder: Path, target: str = "y", *, split: bool = True, count: int = 40) -> Path:
    """The store that ``tokengt prepare`` would make of a data set with its own split: 24, 8 and 8 molecules."""
    smiles, values = molecules(count)
    parts = [("train", "valid", "train", "test", "train")[place % 5] for place in range(count)]
    table = write_csv(folder / "data.csv", ("smiles", target, "part"), zip(smiles, values, parts, strict=True))
    prepare(table, folder / "store", Recipe(targets=(target,), split="part" if split else None), progress=False)
    return folder / "store"


def small_config(store: Path, *systems: str, **more: Any) -> MoleculesConfig:
    wanted = systems or ("gin", "tokengt-lap", "tokengt-performer")
    own = {name: value for name, value in TINY.items() if ":" not in name or name.partition(":")[0] in wanted}
    settings = {**own, **more.pop("settings", {})}
    return MoleculesConfig(
        "zinc12k", wanted, data=str(store), device="cpu", settings=settings, **{"minutes": 1.0, **more}
    )


def opened(config: MoleculesConfig, home: Path) -> Plan:
    assert config.data is not None
    return Plan(config, home, config.benchmark.opened(Path(config.data), home / "store", quiet=True))


class _Ended(Training):
    """A training that has ended, as the table sees it."""

    has_ended, seconds = True, 1.0  # type: ignore[assignment]

    def __init__(self, job: Job, problem: str | None) -> None:
        self.job, self._problem = job, problem

    def problem(self) -> str | None:
        return self._problem


def here(patch: pytest.MonkeyPatch) -> list[str]:
    """Have trainings run in this process instead of their own; their names, as they are begun."""
    begun: list[str] = []

    def started(plan: Plan, job: Job, environment: Mapping[str, str]) -> Any:
        begun.append(job.name)
        problem = None
        try:
            train_order(json.loads(order_of(plan, job)))
        except Exception as error:  # As in the worker.
            problem = sentence_of(error)
        return _Ended(job, problem)

    patch.setattr(run, "begun", started)
    return begun
