"""A whole run and a file with labels as one page: how good it is, where it is wrong, what its heads do."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.data.datasets import find_run
from tokengt.data.named import dataset_named, named_store, say_if_hidden
from tokengt.data.progress import progress_bar
from tokengt.data.store import Store
from tokengt.explain.explanation import AttentionSummary, attempt
from tokengt.explain.page.render import render_summary
from tokengt.explain.run_summary import Curve, RunSummary, Substructure
from tokengt.files import scratch_folder, write_whole
from tokengt.inference import Predictor
from tokengt.interop.molecules import DEFAULT_POLICY
from tokengt.models.passes import Over, check_passes
from tokengt.training.metrics import describe
from tokengt.training.processes import Device
from tokengt.training.results import METRICS, SUMMARY, read_summary
from tokengt.training.spec import MEMBERS, RunSpec
from tokengt.workflow.explaining import usual_attention
from tokengt.workflow.inputs import open_data
from tokengt.workflow.labelled import label_recipe, present_targets, store_labels
from tokengt.workflow.reporting import check_page
from tokengt.workflow.stores import cuts_for, graphs_at
from tokengt.workflow.substructures import MOLECULES, find_substructures
from tokengt.workflow.target_summaries import Labelled, target_summaries

# Over how many graphs of the validation part attention is measured: twenty seconds for the largest preset.
_ATTENTION_GRAPHS = 256


@dataclass(frozen=True, eq=False)
class SummaryReport:
    """A page that was written, and what it shows."""

    file: Path
    size: int
    summary: RunSummary

    def __str__(self) -> str:
        first = self.summary.targets[0]
        return f"{first.name}: {describe(first.measures)} over {first.rows:,} rows ({self.size / 1e6:.1f} MB)"


def summary_file(
    run: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    smiles: str | None = None,
    draws: int = 1,
    over: Over = "identifiers",
    store: Path | None = None,
    device: Device = "auto",
    max_atoms: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> SummaryReport:
    """Write ``out``, one self-contained HTML file on a run and a file with labels; as :func:`summarise_run`."""
    out = Path(out)
    check_page(out, overwrite)
    summary = summarise_run(
        run, data, smiles=smiles, draws=draws, over=over, store=store, device=device, max_atoms=max_atoms, quiet=quiet
    )
    page = render_summary(summary).encode()
    write_whole(out, page)
    return SummaryReport(out, len(page), summary)


def summarise_run(
    run: str | Path,
    data: str | Path,
    *,
    smiles: str | None = None,
    draws: int = 1,
    over: Over = "identifiers",
    store: Path | None = None,
    device: Device = "auto",
    max_atoms: int | None = None,
    molecules: int = MOLECULES,
    quiet: bool = False,
) -> RunSummary:
    """How good a run is on data with labels, and what can be said about why.

    Args:
        run: the folder of a run, or one that comes with the package.
        data: a file like the one trained on, a store, or the name of a data set.
        smiles: the column of SMILES.
        draws: how many draws are averaged; several of them show whether their spread is calibrated.
        over: what differs between draws.
        store: the store that the run was trained with, where it does not lie in its folder.
        device: where the model runs.
        max_atoms: how large a molecule may be, instead of the run's own limit.
        molecules: in how many molecules of the data substructures are looked for.
        quiet: say nothing on stderr.

    Raises:
        ValueError: one sentence: what cannot be read, or has no label to compare with.
    """
    predictor, folder = Predictor.load(run, device, max_atoms=max_atoms), find_run(run)
    predictor.refuse_links("explain")
    for member in predictor.members:
        check_passes(member.model, draws, over)
    say_if_hidden(data, not quiet)
    missing: dict[str, str] = {}
    with scratch_folder() as scratch:
        opened = _opened(predictor, data, smiles, scratch, quiet)
        labels, strange = store_labels(predictor, opened)
        mean, std = _predicted(predictor, opened, draws, over, quiet)
        labelled = Labelled(opened, labels, mean, std)
        targets = target_summaries(predictor, labelled, str(data))
        found = attempt(partial(find_substructures, predictor, opened, molecules), "substructures", missing)
    attention: AttentionSummary | None = attempt(
        lambda: usual_attention(run, _ATTENTION_GRAPHS, data=store), "attention", missing
    )
    curves = attempt(lambda: _curves(folder, predictor.spec), "curves", missing)
    task = predictor.task
    substructures: Sequence[Substructure] = () if found is None else found.best
    return RunSummary(
        run=str(run),
        data=str(data),
        model=predictor.spec.model.describe().summary,
        task=task.kind,
        metric=task.metric,
        outputs=tuple(task.classes or task.names),
        classes=task.classes,
        targets=targets,
        facts=tuple(_facts(folder, predictor, opened, strange, labelled)),
        curves=curves or (),
        attention=attention,
        substructures=tuple(substructures),
        looked_at=0 if found is None else found.looked_at,
        molecules=opened.is_molecules,
        missing=missing,
    )


def _opened(predictor: Predictor, data: str | Path, smiles: str | None, scratch: Path, quiet: bool) -> Store:
    """The data with its labels, as a store."""
    dataset = dataset_named(data)
    given: Any = data
    if dataset is not None:
        given = named_store(dataset, predictor.spec.molecules or DEFAULT_POLICY, progress=not quiet)
    elif not Path(data).exists():
        raise ValueError(f"{data} does not exist; expected a file with labels, a store or the name of a data set")
    present = present_targets(given, predictor.task.names)
    recipe = label_recipe(predictor, given, smiles, present)
    return open_data(given, recipe, scratch / "store", quiet=quiet, kept=False, max_rejected=1.0)


def _predicted(
    predictor: Predictor, store: Store, draws: int, over: Over, quiet: bool
) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows out"] | None]:
    means, deviations = [], []
    with progress_bar(len(store), "graphs", "predicting", shown=not quiet) as advance:
        for cut in cuts_for(predictor, store):
            graphs = graphs_at(store, cut, predictor.spec)
            mean, std = predictor.predict_graphs(graphs, draws, over)
            means.append(mean)
            if std is not None:
                deviations.append(std)
            advance(len(graphs))
    return torch.cat(means), torch.cat(deviations) if deviations else None


def _curves(folder: Path, spec: RunSpec) -> tuple[Curve, ...]:
    """How each model was trained.

    Raises:
        ValueError: the run does not say.
    """
    homes = [(name, folder / MEMBERS / name) for name in spec.members] or [("", folder)]
    found = []
    for name, home in homes:
        file = home / METRICS
        if not file.is_file():
            raise ValueError(f"{home} does not say how it was trained: {METRICS} is missing")
        records = [json.loads(line) for line in file.read_text().splitlines()]
        metric = [(record.get("valid") or {}).get(spec.task.metric) for record in records]
        found.append(
            Curve(
                name,
                tuple(record["epoch"] for record in records),
                tuple(record.get("train_loss") for record in records),
                tuple(record.get("valid_loss") for record in records),
                tuple(metric),
            )
        )
    return tuple(found)


def _facts(folder: Path, predictor: Predictor, store: Store, strange: int, labelled: "Labelled") -> list[str]:
    """What else a reader should know of the numbers."""
    facts = [f"{len(store):,} graphs of {store.manifest.source.name}"]
    if store.manifest.rejected:
        facts.append(f"rows that could not be read and are left out: {store.manifest.rejected:,}")
    if strange:
        facts.append(f"labels of classes that the run does not know: {strange:,}")
    lost = int(torch.isnan(labelled.mean).any(1).sum())
    if lost:
        facts.append(f"rows for which the model gives no finite number: {lost:,}")
    if (folder / SUMMARY).is_file():
        own = read_summary(folder)
        if own.test:
            known = {name: value for name, value in own.test.items() if value is not None}
            facts.append(f"on its own test part the run had {describe(known)} ({own.test_rows:,} rows)")
    if predictor.spec.source.name == store.manifest.source.name:
        facts.append("this is the file that the run was trained on: most of its rows were seen in training")
    return facts
