"""From a request and a store to the models that are to be trained: everything is decided here, once.

A store is a data set that was read, checked and packed (all its graphs in one batch), in memory or in a folder.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from tokengt.data import manifest as manifests
from tokengt.data.links import read_without, with_negatives
from tokengt.data.manifest import GRAPHS, TaskKind
from tokengt.data.splits import Split
from tokengt.data.splitting import make_splits
from tokengt.data.store import Store
from tokengt.files import checksum
from tokengt.interop.descriptors import feature_names
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.contract import Model, check_sizes
from tokengt.structure.facts import with_facts
from tokengt.training.auxiliary import auxiliary_numbers
from tokengt.training.classes import guessed_kind, numbered_classes
from tokengt.training.config import TrainingConfig
from tokengt.training.forest import is_wanted, trees_beside
from tokengt.training.links import learned_labels
from tokengt.training.origin import Origin, origin_of
from tokengt.training.request import TrainRequest
from tokengt.training.results import split_table
from tokengt.training.spec import RUN_FILE, Descriptors, RunSpec, read_run
from tokengt.training.start import Start
from tokengt.training.tasks import Task, hits_at

Say = Callable[[str], None]
# How far the seeds of an ensemble's models are apart: runs whose own seeds are near each other have no model in common.
_APART = 1000


@dataclass(frozen=True, eq=False)
class Member:
    """One model of a run, before it is trained: what it is made with, its split and its data.

    A run has one member, or one for every fold and every model of an ensemble; ``name`` tells them apart, and
    ``models`` of them share a split.
    """

    name: str
    spec: RunSpec
    split: Split
    by_row: bool
    store: Store
    train_targets: Float[Tensor, "rows targets"]
    build: Callable[[], Model]
    auxiliary: Float[Tensor, "graphs auxiliary"] | None = None
    models: int = 1

    @property
    def labels(self) -> Float[Tensor, "rows columns"]:
        """The table of labels that training reads: all targets, bounds of them, weights scaled to 1 on average."""
        store = self.store
        weights = store.weights
        if weights is not None:
            train = weights[self._rows(self.split.train)]
            weights = weights / train.mean() if float(train.sum()) > 0 else weights
        return self.spec.task.table.made(store.targets, store.bounds, weights, self.auxiliary)

    @property
    def codes(self) -> Int8[Tensor, " places"]:
        """The part of every graph (or row), as :meth:`Split.codes` numbers parts."""
        return self.split.codes(_places(self.store, self.by_row))

    @property
    def valid_rows(self) -> Int[Tensor, " valid"]:
        """Rows of the label table that belong to the validation part."""
        return self._rows(self.split.valid)

    @property
    def test_rows(self) -> Int[Tensor, " test"]:
        """Rows of the label table that belong to the test part."""
        return self._rows(self.split.test)

    def _rows(self, places: Int[Tensor, " places"]) -> Int[Tensor, " rows"]:
        return places if self.by_row else self.store.graphs.level_rows(self.spec.level).take(places)[0]


def resolve(request: TrainRequest, store: Store, start: Start | None, out: Path, say: Say) -> list[Member]:
    """The models to train, each with its split, its task and its config, fitted to the data.

    Whatever is wrong with the request is said here, in one sentence, before anything is trained or written.
    """
    wanted = request.recipe.policy.features
    if wanted and not store.is_molecules:
        raise ValueError(f"the features {', '.join(wanted)} are worked out from molecules; this data has none")
    store = with_rows(store, request)
    origin = origin_of(request, store, start, out, say)
    request = replace(request, split=request.split.for_store(store))
    splits, by_row = make_splits(store, request.split)
    beside = auxiliary_numbers(store, request.auxiliary, not request.quiet) if request.auxiliary else None
    models = request.ensemble or 1
    alone = len(splits) * models == 1
    shared = _shared(request, models, out)
    members = []
    for fold, split in enumerate(splits):
        for number in range(models):
            names = [f"fold-{fold}"] * (len(splits) > 1) + [f"model-{number}"] * (models > 1)
            seed = request.seed + number * shared.apart
            member = _member("-".join(names), store, request, origin, split, by_row, seed, alone, beside)
            members.append(replace(member, spec=shared.told(member.spec), models=models))
    _check_model(members[0], origin)
    return members


class _Shared(NamedTuple):
    """What the models of an ensemble share out among them."""

    trees: int
    apart: int

    def told(self, spec: RunSpec) -> RunSpec:
        """The spec of one of them; a run of single models, or without a forest, is described as it always was."""
        return replace(spec, apart=self.apart, trees=self.trees if spec.forest else RunSpec.trees)


def _shared(request: TrainRequest, models: int, out: Path) -> _Shared:
    """What older versions chose otherwise stays as it is in a run that is gone on with."""
    if request.resume and (out / RUN_FILE).is_file():
        begun = read_run(out)
        return _Shared(begun.trees if begun.forest else trees_beside(models), begun.apart)
    return _Shared(trees_beside(models), _APART if models > 1 else RunSpec.apart)


def with_rows(store: Store, request: TrainRequest) -> Store:
    """The store with all its rows: links without negatives get some to validate and test with, by the split's seed."""
    return with_negatives(store, request.split.seed) if store.manifest.level == "link" else store


def _member(
    name: str,
    store: Store,
    request: TrainRequest,
    origin: Origin,
    split: Split,
    by_row: bool,
    seed: int,
    alone: bool,
    beside: Float[Tensor, "rows auxiliary"] | None,
) -> Member:
    shown = shown_targets(store, split, by_row)
    asked = request.training
    task = fit_task(request.recipe.task, store, shown).with_logs(shown, asked.log_targets)
    start = origin.start
    task = task if start is None else start.kept_task(task)
    task = _as_asked(task, asked, store, shown)
    if beside is not None:
        task = replace(task, auxiliary=beside.shape[1], auxiliary_weight=asked.auxiliary_weight)
        beside = Descriptors.fit(feature_names(request.auxiliary), beside[split.train]).scaled(beside).double()
    config = origin.fitted(store, task.out_dim, request.model_settings)
    if task.links:
        _check_hits(asked.metric, store, split)
        # From here on nothing knows of the edges that validate and test.
        store = read_without(store, split)
    # A model that begins with trained weights needs fewer passes, unless only its new head learns.
    begun = start is not None and not start.frozen
    training = asked.for_graphs(len(store) if by_row else len(split.train), begun=begun)
    store, descriptors = _scaled(store, split, by_row)
    spec = RunSpec(
        model=config,
        training=training,
        task=task,
        level=store.manifest.level,
        seed=seed,
        split=str(request.split),
        split_sha256=checksum(split_table(store, {"part": split.codes(_places(store, by_row))})),
        source=store.manifest.source,
        store_sha256=store.manifest.files.get(GRAPHS) or store.data_checksum(),
        molecules=policy_of(store),
        text_column=store.manifest.columns.get("smiles"),
        descriptors=descriptors,
        start=None if start is None else start.sha256,
        frozen=start is not None and start.frozen,
        attributes=store.manifest.attributes,
        kept_head=start is not None and start.keeps_head,
        tables=store.manifest.tables,
        auxiliary=request.auxiliary,
        forest=is_wanted(training, task, store, config),
    )
    if start is not None:
        start.check_split(spec.store_sha256, spec.split_sha256)
    return Member(name, spec, split, by_row, store, shown, lambda: origin.build(config, seed, alone), beside)


def _as_asked(task: Task, asked: TrainingConfig, store: Store, shown: Float[Tensor, "rows targets"]) -> Task:
    """The task with what training asks for: its metric and loss, and what each label counts in that."""
    # Of links the source may list positives alone: what they are balanced with is drawn.
    learned = learned_labels(shown, asked.links) if task.links else shown
    return replace(
        task,
        metric=asked.metric or "",
        loss=asked.loss or "",
        quantile=asked.quantile,
        target_weights=asked.target_weights,
        class_weights=task.balanced(learned) if asked.balance else (),
        bounded=store.bounds is not None,
        weighted=store.weights is not None,
    )


def _check_hits(metric: str | None, store: Store, split: Split) -> None:
    """Refuse to choose by hits@k where every positive would be a hit."""
    k = None if metric is None else hits_at(metric)
    for name, rows in (("validation", split.valid), ("test", split.test)):
        negatives = int((store.targets[rows, 0] == 0).sum())
        if k is not None and len(rows) and k > negatives:
            raise ValueError(
                f"the metric is {metric}, and the {name} part has {negatives:,} negatives to rank links among; "
                "expected a smaller k"
            )


def _scaled(store: Store, split: Split, by_row: bool) -> tuple[Store, Descriptors]:
    """Descriptors as their training rows are scaled; rows of one graph share its descriptors."""
    values = store.graphs.graph_features
    if values is None:
        return store, Descriptors()
    shown = values if by_row else values[split.train]
    descriptors = Descriptors.fit(store.manifest.descriptors, shown).with_own_scale()
    return replace(store, graphs=store.graphs.with_graph_features(descriptors.scaled(values))), descriptors


def _check_model(member: Member, origin: Origin) -> None:
    """Whatever is wrong with the settings is said before anything is written."""
    config = member.spec.model
    if origin.module is None:
        check_sizes(config)
    # The package's own configs keep their word; what others build is tried out.
    if origin.module is not None or not type(config).__module__.startswith("tokengt."):
        _check_rows(member, member.build().cpu().eval())
    if origin.start is not None:
        origin.start.check(config)


@torch.no_grad()
def _check_rows(member: Member, model: Model) -> None:
    """A model has to give one row per graph, node or edge, and one column per target or class."""
    graphs = model.prepared(member.store.graphs)
    batch = with_facts(graphs.select(_two_unlike(member)), model.config.facts())
    name = model.config.describe().name
    try:
        output = model(batch)
    except Exception as error:  # Whatever a stranger's code may raise.
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{name} cannot read a batch of {len(batch)} graphs ({reason}); expected a forward that takes a GraphBatch"
        ) from error
    wanted = [batch.level_rows(member.spec.level).total, member.spec.task.out_dim]
    given = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if given != wanted:
        raise ValueError(
            f"{name} gives {given} for a batch of {len(batch)} graphs; expected {wanted}: "
            f"one row per {member.spec.level} and one column per target or class"
        )


def _two_unlike(member: Member) -> Int[Tensor, " places"]:
    """Two graphs of different sizes where there are such: rows that only happen to be right for one would show."""
    places = torch.zeros(1, dtype=torch.int64) if member.by_row else member.split.train
    sizes = member.store.graphs.nodes.host_lengths[places]
    unlike = torch.nonzero(sizes != sizes[0]).flatten()
    return places[torch.cat([torch.zeros(1, dtype=torch.int64), unlike[:1]])]


def _places(store: Store, by_row: bool) -> int:
    return len(store.targets) if by_row else len(store)


def fit_task(kind: TaskKind | None, store: Store, shown: Float[Tensor, "rows targets"]) -> Task:
    """The task, with the scaling of the training labels (``shown``; NaN elsewhere)."""
    manifest = store.manifest
    if not manifest.targets:
        raise ValueError("there is no target to learn; name one, or prepare the data with one")
    named = [target.name for target in manifest.targets if target.classes is not None]
    wanted = kind or manifest.task
    if named and wanted not in (None, "multiclass"):
        raise ValueError(
            f"target {named[0]!r} holds text; expected numbers for the task {wanted}, or choose the task multiclass"
        )
    classes = manifest.targets[0].classes
    if wanted == "multiclass" and classes is None:
        classes = numbered_classes(store.targets, manifest.targets[0].name)
    # The kind is guessed from all labels, because the training part alone may happen to hold only zeros and ones. A
    # bound is one of a number.
    guessed = "regression" if store.bounds is not None else guessed_kind(store.targets, classes)
    task = Task.fit(wanted or guessed, shown, manifest.target_names, classes)
    task.check(store.targets)
    return replace(task, links=manifest.level == "link")


def policy_of(store: Store) -> MoleculePolicy | None:
    """How the molecules of a store became graphs; None for other graphs."""
    return manifests.policy_of(store.manifest.featurisation)


def shown_targets(store: Store, split: Split, by_row: bool) -> Float[Tensor, "rows targets"]:
    """The training rows' labels; of links, those of the source."""
    if store.drawn is not None:
        return store.targets[split.train[store.drawn[split.train] < 0]]
    if by_row:
        return store.targets[split.train]
    rows, _ = store.graphs.level_rows(store.manifest.level).take(split.train)
    return store.targets[rows]
