"""One training run from a store to a folder: split, task, model, loop, results; folds and ensembles too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from tokengt.data.datasets import bundled
from tokengt.data.leaks import leaks, unseen_elements
from tokengt.data.manifest import GRAPHS
from tokengt.data.splits import Split
from tokengt.data.store import Store
from tokengt.files import checksum, file_checksum, write_whole
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.tokengt.model import TokenGT, TokenGTConfig
from tokengt.presets import PRETRAINED
from tokengt.structure.facts import LaplacianVectors
from tokengt.training.config import TrainingConfig
from tokengt.training.loop import State, Trainer
from tokengt.training.parts import Parts, cut, level_rows
from tokengt.training.progress import Progress
from tokengt.training.resolve import (
    SplitRequest,
    apply_settings,
    fit_task,
    make_splits,
    policy_of,
    resolve_model,
    shown_targets,
)
from tokengt.training.results import SPLIT, Findings, split_table, write_metrics, write_results
from tokengt.training.spec import RUN_FILE, Descriptors, RunSpec, read_run, write_run
from tokengt.training.start import Start
from tokengt.training.tasks import TaskKind

Say = Callable[[str], None]
# What a run folder may hold before the run itself begins: the data made ready for it.
BEFORE_A_RUN = ("store", "data.csv")


@dataclass(frozen=True)
class RunRequest:
    """What a person asked for.

    Args:
        preset: the model before it was made to fit the data.
        training: the recipe before ``settings``.
        settings: ``model.FIELD`` and ``training.FIELD`` as text.
        task: None to guess it from the labels.
        split: how to split.
        ensemble: models that differ in their seed, to be averaged.
        seed: of the first model.
        start: weights to begin with, when this is a fine-tuning.
    """

    preset: TokenGTConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)
    settings: Mapping[str, str] = field(default_factory=dict)
    task: TaskKind | None = None
    split: SplitRequest = field(default_factory=SplitRequest)
    ensemble: int = 1
    seed: int = 0
    start: Start | None = None

    def __post_init__(self) -> None:
        if self.ensemble < 1:
            raise ValueError(f"ensemble is {self.ensemble}; expected at least 1")
        if not 0 <= self.seed < 2**62:
            raise ValueError(f"seed is {self.seed}; expected a whole number from 0, below 2^62")


@dataclass(frozen=True, eq=False)
class _Plan:
    """One model of a run: its spec, its split, its data."""

    name: str
    spec: RunSpec
    split: Split
    by_row: bool
    store: Store
    train_targets: Float[Tensor, "rows targets"]

    @property
    def codes(self) -> Int8[Tensor, " places"]:
        """0 train, 1 valid, 2 test, -1 none of them, for every graph (or row)."""
        return self.split.codes(_places(self.store, self.by_row))

    @property
    def test_rows(self) -> Int[Tensor, " test"]:
        """Rows of the label table that belong to the test part."""
        if self.by_row:
            return self.split.test
        return level_rows(self.store.graphs, self.spec.level).take(self.split.test)[0]


def train_run(
    fabric: Any, store: Store, request: RunRequest, folder: Path, *, resume: bool, quiet: bool, say: Say
) -> dict[str, Any]:
    """Train all models of a run and write its folder; returns the summary of the test part."""
    first = fabric.is_global_zero
    store = _with_identifiers(fabric, store, request, quiet)
    request = replace(request, split=request.split.for_store(store))
    plans = _plans(store, request)
    together = _joined(plans)
    _check_model(plans[0].spec, request.start)
    _check_same(folder, together)
    fabric.barrier()
    if first:
        write_run(folder, together)
        if len(plans) > 1:
            write_whole(folder / SPLIT, split_table(store, {plan.name: plan.codes for plan in plans}))
    notes = _notes(store, plans, say) if first else {}
    found, summaries, records, parameters = [], [], [], 0
    for plan in plans:
        home = folder if len(plans) == 1 else folder / "members" / plan.name
        table, state, parameters = _train_one(fabric, plan, request.start, home, resume, quiet, say)
        found.append(_findings(plan, table, notes if len(plans) == 1 else {}))
        records = state.records if len(plans) == 1 else []
        if first and len(plans) > 1:
            summaries.append(write_results(home, plan.spec, plan.store, found[-1], state.records, parameters))
    if not first:
        return {}
    whole = found[0] if len(found) == 1 else _together(found, notes)
    return write_results(folder, together, store, whole, records, parameters, summaries)


def _with_identifiers(fabric: Any, store: Store, request: RunRequest, quiet: bool) -> Store:
    """The store with the eigenvectors that its model will ask for, so that no step decomposes a matrix."""
    ids = apply_settings(request.preset, request.training, request.settings)[0].identifiers
    if ids.kind != "laplacian":
        return store
    if store.folder is not None and not fabric.is_global_zero:
        fabric.barrier()  # the first process computes and keeps them; the others read
    found = store.with_facts([LaplacianVectors(ids.dim, ids.which)], progress=not quiet and fabric.is_global_zero)
    if store.folder is not None and fabric.is_global_zero:
        fabric.barrier()
    return found


def _plans(store: Store, request: RunRequest) -> list[_Plan]:
    splits, by_row = make_splits(store, request.split)
    plans = []
    for fold, split in enumerate(splits):
        for member in range(request.ensemble):
            names = [f"fold-{fold}"] * (len(splits) > 1) + [f"model-{member}"] * (request.ensemble > 1)
            plans.append(_plan("-".join(names), store, request, split, by_row, request.seed + member))
    return plans


def _plan(name: str, store: Store, request: RunRequest, split: Split, by_row: bool, seed: int) -> _Plan:
    shown = shown_targets(store, split, by_row)
    task = fit_task(request.task, store, shown)
    model = resolve_model(request.preset, store, task, keep_tokens=request.start is not None)
    model, training = apply_settings(model, request.training, request.settings)
    begun = request.start is not None and not request.start.frozen
    training = training.for_graphs(len(store) if by_row else len(split.train), begun=begun)
    descriptors = Descriptors()
    if store.graphs.graph_features is not None:
        rows = store.graphs.graph_features if by_row else store.graphs.graph_features[split.train]
        descriptors = Descriptors.fit(store.manifest.descriptors, rows)
        scaled = descriptors.scaled(store.graphs.graph_features)
        store = replace(store, graphs=store.graphs.with_graph_features(scaled))
    spec = RunSpec(
        model=model,
        training=training,
        task=task,
        level=store.manifest.level,
        seed=seed,
        split=str(request.split),
        split_sha256=checksum(split_table(store, {"part": split.codes(_places(store, by_row))})),
        source=store.manifest.source,
        store_sha256=store.manifest.files.get(GRAPHS, ""),
        molecules=policy_of(store),
        text_column=store.manifest.columns.get("smiles"),
        descriptors=descriptors,
        start=None if request.start is None else request.start.sha256,
        frozen=request.start is not None and request.start.frozen,
    )
    return _Plan(name, spec, split, by_row, store, shown)


def _places(store: Store, by_row: bool) -> int:
    return len(store.targets) if by_row else len(store)


def _joined(plans: list[_Plan]) -> RunSpec:
    if len(plans) == 1:
        return plans[0].spec
    return replace(plans[0].spec, members=tuple(plan.name for plan in plans))


def refuse_to_overwrite(folder: Path, resume: bool) -> None:
    """A folder with a run in it is touched only to go on with that run, one with other files never."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file; expected a folder for the run: choose another --out")
    if (folder / RUN_FILE).exists():
        if not resume:
            raise ValueError(f"{folder} already holds a run; go on with it by --resume, or choose another --out")
    elif folder.exists() and any(not _is_ours(inside.name) for inside in folder.iterdir()):
        raise ValueError(f"{folder} exists and holds other files; choose another --out")


def _is_ours(name: str) -> bool:
    """What a run that was killed before it was written down leaves: its data, and files under temporary names."""
    return name in BEFORE_A_RUN or name.startswith((".run.json.", ".data.csv."))


def _check_same(folder: Path, spec: RunSpec) -> None:
    """Refuse to go on with another run than this one."""
    changed = spec.differences(read_run(folder)) if (folder / RUN_FILE).exists() else []
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ValueError(f"{folder} was begun with other settings: {'; '.join(changed[:3])}{more}")


def _notes(store: Store, plans: list[_Plan], say: Say) -> dict[str, Any]:
    """What the split hides: molecules in two parts, elements never trained on. Folds: of the first."""
    plan = plans[0]
    if plan.spec.task.kind == "regression" and _looks_like_classes(plan.train_targets):
        say("the labels are a few whole numbers, learned as numbers; if they name classes, use --task multiclass")
    for sentence in plan.split.sentences():
        say(f"split: {sentence}")
    blank = int(torch.isnan(plan.train_targets).all(1).sum())
    if blank:
        say(f"{blank:,} of {len(plan.train_targets):,} training rows have no label and teach nothing")
    begun = (f"Training began with the weights of {_start_name(plan.spec.start)}.",) if plan.spec.start else ()
    if plan.by_row:
        return {"notes": begun}
    try:
        found = leaks(store.graphs, plan.split, store.each_text, policy=policy_of(store) or MoleculePolicy())
    except ImportError:
        # A machine that only trains may have the store and no RDKit: colour refinement then has the last word.
        found = leaks(store.graphs, plan.split)
    for sentence in found.sentences(store.lines, "line" if store.is_molecules else "graph"):
        say(sentence)
    unseen = unseen_elements(store.graphs, plan.split) if store.is_molecules else {}
    if unseen:
        listed = ", ".join(f"{symbol} ({count})" for symbol, count in unseen.items())
        say(f"elements that no training molecule has (molecules that do): {listed}")
    return {"shared": sum(found.counts.values()), "unseen": unseen, "notes": begun}


def _start_name(sha256: str) -> str:
    """Weights that come with the package by their preset, others by their checksum."""
    for name, folder in PRETRAINED.items():
        if file_checksum(bundled(folder) / "model.safetensors") == sha256:
            return f"the preset {name}, which comes with tokengt"
    return f"another model (SHA-256 {sha256[:12]}...)"


def _looks_like_classes(targets: Float[Tensor, "rows targets"]) -> bool:
    labels = targets[~torch.isnan(targets)]
    return bool((labels == labels.round()).all()) and len(torch.unique(labels)) <= 20 < len(labels)


def _findings(plan: _Plan, table: Float[Tensor, "rows out"], notes: Mapping[str, Any]) -> Findings:
    rows = plan.test_rows
    floor = torch.full_like(table, torch.nan)
    floor[rows] = plan.spec.task.floor(plan.train_targets, len(rows))
    labels = tuple((~torch.isnan(plan.train_targets)).sum(0).tolist())
    return Findings(rows, table, floor, plan.codes, labels, **notes)


def _together(found: list[Findings], notes: Mapping[str, Any]) -> Findings:
    """Every row as the mean of the models that did not learn from it; of folds, every row is some model's test row."""
    predictions = torch.nanmean(torch.stack([each.predictions for each in found]), 0)
    floor = torch.nanmean(torch.stack([each.floor for each in found]), 0)
    rows = torch.unique(torch.cat([each.rows for each in found]))
    return replace(found[0], rows=rows, predictions=predictions, floor=floor, **notes)


def _check_model(spec: RunSpec, start: Start | None) -> None:
    """Whatever is wrong with the settings is said before anything is written."""
    with torch.device("meta"):
        TokenGT(spec.model)
    if start is not None:
        start.check(spec.model)


def _train_one(
    fabric: Any, plan: _Plan, start: Start | None, folder: Path, resume: bool, quiet: bool, say: Say
) -> tuple[Float[Tensor, "rows out"], State, int]:
    """Train one model; the folder then holds its weights. Returns its predictions of the test rows, NaN elsewhere."""
    spec, first = plan.spec, fabric.is_global_zero
    if first:
        write_run(folder, spec)
        write_whole(folder / SPLIT, split_table(plan.store, {"part": plan.codes}))
    graphs = plan.store.graphs
    undirected = spec.model.tokens.layout == "undirected"
    parts = cut(graphs, plan.store.targets, spec.level, plan.split, by_row=plan.by_row, undirected=undirected)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(spec.seed)
        model = TokenGT(spec.model)
    if start is not None:
        start.load_into(model)
    trainer = Trainer(
        fabric,
        model,
        parts,
        spec.task,
        spec.training,
        seed=spec.seed,
        folder=folder,
        fingerprint=spec.fingerprint,
        progress=Progress(spec.training.epochs, quiet or not first, plan.name or "training"),
        on_epoch=(lambda records: write_metrics(folder, records)) if first else (lambda records: None),
        warn=say if first else (lambda sentence: None),
    )
    state = trainer.run(resume)
    table = _test_table(trainer, parts, plan)
    if first:
        saved = TokenGT(spec.model).to(next(iter(trainer.best.values())).dtype)
        saved.load_state_dict(trainer.best)
        saved.save_pretrained(folder)
    fabric.barrier()
    return table, state, sum(parameter.numel() for parameter in model.parameters())


def _test_table(trainer: Trainer, parts: Parts, plan: _Plan) -> Float[Tensor, "rows out"]:
    out = torch.full((len(plan.store.targets), plan.spec.task.out_dim), torch.nan, dtype=torch.float64)
    if not len(parts.test.places):
        return out
    index, _ = level_rows(parts.graphs, parts.level).take(parts.test.places)
    values = torch.empty_like(out)
    values[index] = plan.spec.task.predictions(trainer.outputs(parts.test))
    out[plan.test_rows] = values[plan.test_rows]
    return out
