"""One training of the table in a process of its own: ``python -m tokengt.experiments.molecules.worker``.

The first line of its input says what to train. The input stays open while the process that asked for it lives; when it
ends, however that was, the training writes down where it is and stops.
"""

import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tokengt.experiments.molecules.plan import Job, MoleculesConfig, Plan
from tokengt.models.pretrained import WEIGHTS
from tokengt.workflow.comparing import sentence_of


def order_of(plan: Plan, job: Job) -> str:
    """What a worker is told, in one line."""
    config = {name: getattr(plan.config, name) for name in plan.config.__dataclass_fields__}
    recipe = None if job.recipe is None else job.recipe.name
    what = {"system": job.system.name, "recipe": recipe, "chosen": job.chosen, "seed": job.seed}
    return json.dumps({"config": {**config, "settings": dict(plan.config.settings)}, "home": str(plan.home), **what})


def train_order(order: dict[str, Any]) -> None:
    """Train what :func:`order_of` asked for; what nobody will read again is removed."""
    config = MoleculesConfig(**{**order["config"], "systems": tuple(order["config"]["systems"])})
    home = Path(order["home"])
    data = None if config.data is None else Path(config.data)
    plan = Plan(config, home, config.benchmark.opened(data, home / "store", quiet=True))
    system = plan.lines[order["system"]]
    recipe = next((each for each in plan.recipes(system) if each.name == order["recipe"]), None)
    job = Job(system, recipe, order["chosen"], order["seed"])
    plan.train(job)
    run = plan.folder(job)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    if not job.chosen:
        (run / WEIGHTS).unlink(missing_ok=True)


def _stop_when_alone() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)


def main() -> int:
    # A shell lets its background processes ignore Ctrl-C, which is how a training is told to stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_when_alone, daemon=True).start()
    try:
        train_order(order)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # Whatever a system can raise costs this system alone.
        print(sentence_of(error), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    # The thread that reads the input must not keep the process from ending.
    sys.stdout.flush()
    os._exit(main())
