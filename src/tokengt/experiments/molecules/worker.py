"""One training of the table in a process of its own: ``python -m tokengt.experiments.molecules.worker``."""

import json
import shutil
from pathlib import Path
from typing import Any

from tokengt.experiments.molecules.plan import Job, MoleculesConfig, Plan
from tokengt.experiments.worker import serve
from tokengt.models.pretrained import WEIGHTS


def order_of(plan: Plan, job: Job) -> str:
    """What a worker is told, in one line."""
    config = {name: getattr(plan.config, name) for name in plan.config.__dataclass_fields__}
    recipe = None if job.recipe is None else job.recipe.name
    what = {"system": job.system.name, "recipe": recipe, "chosen": job.chosen, "seed": job.seed, "epochs": job.epochs}
    return json.dumps({"config": {**config, "settings": dict(plan.config.settings)}, "home": str(plan.home), **what})


def train_order(order: dict[str, Any]) -> None:
    """Train what :func:`order_of` asked for; what nobody will read again is removed."""
    config = MoleculesConfig(**{**order["config"], "systems": tuple(order["config"]["systems"])})
    home = Path(order["home"])
    data = None if config.data is None else Path(config.data)
    plan = Plan(config, home, config.benchmark.opened(data, home / "store", quiet=True))
    system = plan.lines[order["system"]]
    recipe = next((each for each in plan.recipes(system) if each.name == order["recipe"]), None)
    job = Job(system, recipe, order["chosen"], order["seed"], order["epochs"])
    plan.train(job)
    run = plan.folder(job)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    if not job.chosen:
        (run / WEIGHTS).unlink(missing_ok=True)


if __name__ == "__main__":
    serve(train_order)
