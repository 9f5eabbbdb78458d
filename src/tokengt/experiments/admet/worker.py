"""One system on one endpoint, all its seeds, in a process: ``python -m tokengt.experiments.admet.worker``."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokengt.config import from_dict, to_dict
from tokengt.experiments.admet.chemprop import chemprop
from tokengt.experiments.admet.plan import BOOSTING, FOREST, OUTSIDE, TREES, WORK, AdmetConfig, Job, Plan, cell_of
from tokengt.experiments.admet.reading import EndpointData
from tokengt.experiments.admet.trained import forget, trained
from tokengt.experiments.admet.trees import Features, boosting, forest, kept_features
from tokengt.experiments.cells import kept_cell
from tokengt.experiments.worker import serve
from tokengt.training.metrics import Array

Answer = tuple[Array, dict[str, Any]]
_FITS: dict[str, Callable[[EndpointData, Features, int], Answer]] = {FOREST: forest, BOOSTING: boosting}


def order_of(plan: Plan, job: Job) -> str:
    """What a worker is told, in one line."""
    config = to_dict(plan.config)
    return json.dumps({"config": config, "home": str(plan.home), "endpoint": job.endpoint, "system": job.system})


def act(order: dict[str, Any]) -> None:
    plan = Plan(from_dict(AdmetConfig, order["config"]), Path(order["home"]))
    run_job(plan, Job(order["endpoint"], order["system"]))


def run_job(plan: Plan, job: Job) -> None:
    """Run the seeds of a job that are not kept yet, and keep each as it is finished."""
    data = plan.data(job.endpoint)
    checksum = data.checksum
    for seed in range(plan.config.seeds):
        kept_cell(plan.file(job, seed), plan.asked(job, seed, checksum), lambda seed=seed: _run(plan, job, data, seed))  # type: ignore[misc]


def _run(plan: Plan, job: Job, data: EndpointData, seed: int) -> dict[str, Any]:
    work = plan.work(job, seed)
    began, cpu = time.monotonic(), _cpu_seconds()
    if job.system in TREES:
        known = kept_features(data, plan.home / WORK / job.endpoint)
        predicted, facts = _FITS[job.system](data, known, seed)
    else:
        work.mkdir(parents=True, exist_ok=True)
        made = chemprop if job.system in OUTSIDE else trained
        predicted, facts = made(plan.config, job.system, data, seed, work)
    facts |= {"seconds": time.monotonic() - began, "cpu_seconds": _cpu_seconds() - cpu}
    found = cell_of(data, predicted, facts)
    forget(work)
    return found


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for, such as chemprop's."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    serve(act)
