"""Trainings of the table as processes of their own."""

from collections.abc import Mapping

from tokengt.experiments.molecules.plan import Job, Plan
from tokengt.experiments.molecules.worker import order_of
from tokengt.experiments.processes import Work, started

Training = Work[Job]
_MODULE = "tokengt.experiments.molecules.worker"


def begun(plan: Plan, job: Job, environment: Mapping[str, str]) -> Training:
    """A training at work, its log beside its run folder."""
    log = plan.folder(job).with_suffix(".log")
    return started(_MODULE, job, order_of(plan, job), log, environment)
