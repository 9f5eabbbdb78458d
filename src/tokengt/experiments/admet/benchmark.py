"""The whole benchmark: run what is missing, look for leaks, write the table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokengt.experiments.admet.leak_cells import Looked, leak_report
from tokengt.experiments.admet.plan import CELLS, AdmetConfig, Plan
from tokengt.experiments.admet.report import write_report
from tokengt.experiments.admet.results import Results, results_of
from tokengt.experiments.admet.run import run_cells
from tokengt.experiments.admet.seen import named_corpus
from tokengt.experiments.cells import Say, silent
from tokengt.workflow.comparing_statistics import DRAWS


def run_admet(
    config: AdmetConfig,
    out: Path,
    *,
    seen: Sequence[Path] = (),
    leaks: Looked | None = "all",
    train: bool = True,
    draws: int = DRAWS,
    progress: Say | None = None,
) -> Results:
    """Run the cells that are not kept yet; then write the table of all that are, whichever call made them.

    Args:
        config: what is run.
        out: the folder to make, or to go on in.
        seen: tables of the molecules that weights were trained on, or their hashed keys.
        leaks: where test molecules are looked for, as in :func:`leak_report`; None for nowhere.
        train: run what is missing; otherwise only tell what is there.
        draws: how often test rows are drawn again for an interval.
        progress: is told how far it is.

    Raises:
        ValueError: one sentence about what is wrong with the request or the data.
    """
    say = progress or silent
    corpora = [named_corpus(file) for file in seen]
    plan = Plan(config, out)
    problems = run_cells(config, out, say) if train else {}
    if not (out / CELLS).is_dir():
        reasons = "; ".join(f"{name}: {why}" for name, why in problems.items())
        raise ValueError(
            f"{out} holds no finished cell; there is nothing to tell" + (f" ({reasons})" if reasons else "")
        )
    notes = [f"{name}: {why}" for name, why in problems.items()]
    found: dict[str, dict[str, Any]] = {}
    more: list[str] = []
    if leaks is not None:
        datas = [plan.data(each.name) for each in plan.endpoints]
        found, more = leak_report(datas, corpora, out, say, leaks)
    say("intervals of the test parts are drawn")
    results = results_of(plan, found, (*notes, *more), draws)
    write_report(results, out)
    return results
