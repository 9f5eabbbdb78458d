"""One system on one graph, or the facts of one graph, in a process: ``python -m tokengt.experiments.nodes.worker``."""

import json
from pathlib import Path
from typing import Any

from tokengt.config import from_dict, to_dict
from tokengt.experiments.nodes.datasets import GRAPHS
from tokengt.experiments.nodes.plan import NodesConfig, Pair, Plan
from tokengt.experiments.nodes.systems import SYSTEMS
from tokengt.experiments.worker import serve


def order_of(plan: Plan, graph: str, system: str | None) -> str:
    """What a worker is told, in one line; without a system, to work out what is to be known of a graph."""
    return json.dumps({"config": to_dict(plan.config), "home": str(plan.home), "graph": graph, "system": system})


def act(order: dict[str, Any]) -> None:
    plan = Plan(from_dict(NodesConfig, order["config"]), Path(order["home"]))
    graph, system = GRAPHS[order["graph"]], order["system"]
    if system is None:
        plan.facts(graph)
    else:
        plan.work(Pair(graph, SYSTEMS[system]))


if __name__ == "__main__":
    serve(act)
