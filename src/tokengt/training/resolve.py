"""From a request and a store to the models that are to be trained: everything is decided here, once.

A store is a data set that was read, checked and packed (all its graphs in one batch), in memory or in a folder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from tokengt.config import override
from tokengt.data import manifest as manifests
from tokengt.data.datasets import bundled
from tokengt.data.links import read_without, with_negatives
from tokengt.data.manifest import GRAPHS, TaskKind
from tokengt.data.splits import Split
from tokengt.data.splitting import make_splits
from tokengt.data.store import Store
from tokengt.files import checksum
from tokengt.interop.descriptors import feature_names
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.contract import Model, ModelConfig, check_sizes
from tokengt.models.own import OwnConfig, as_model, copy_of
from tokengt.presets import NODE_PRESETS, NODES, NODES_EXACT, PRESETS, PRETRAINED
from tokengt.structure.facts import with_facts
from tokengt.training.auxiliary import auxiliary_numbers
from tokengt.training.classes import guessed_kind, numbered_classes
from tokengt.training.config import TrainingConfig
from tokengt.training.links import learned_labels
from tokengt.training.request import AUTO, DEFAULT_PRESET, TrainRequest, check_undecided
from tokengt.training.results import split_table
from tokengt.training.spec import RUN_FILE, Descriptors, RunSpec, read_run
from tokengt.training.start import Start
from tokengt.training.tasks import Task, hits_at

Say = Callable[[str], None]
_TRAINED = "small-pretrained"
# Up to so many tokens, exact attention costs little.
MOST_EXACT = 2048


@dataclass(frozen=True, eq=False)
class Member:
    """One model of a run, before it is trained: what it is made with, its split and its data.

    A run has one member, or one for every fold and every model of an ensemble; ``name`` tells them apart.
    """

    name: str
    spec: RunSpec
    split: Split
    by_row: bool
    store: Store
    train_targets: Float[Tensor, "rows targets"]
    build: Callable[[], Model]
    auxiliary: Float[Tensor, "graphs auxiliary"] | None = None

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


@dataclass(frozen=True, eq=False)
class Origin:
    """Where the models of a run come from: a config, and weights to begin with or a module that is built already."""

    config: ModelConfig
    start: Start | None = None
    module: Model | None = None

    def fitted(self, store: Store, out_dim: int, settings: Mapping[str, Any]) -> ModelConfig:
        """The config for this data, with what a person sets by hand as the last word.

        A trained model keeps what its weights read, one that is built already all of it. Kinds are switched before the
        fit: what suits the data depends on the kind.
        """
        if self.module is not None:
            return self.config
        check_undecided(self.config, settings)
        kinds = {path: value for path, value in settings.items() if path.rpartition(".")[2] == "kind"}
        config = override(self.config, kinds, "model")
        fitted = config.fit(store, out_dim) if self.start is None else config.refit(store, out_dim)
        return override(fitted, settings, "model")

    def build(self, config: ModelConfig, seed: int, alone: bool) -> Model:
        """A model with its first weights, drawn by ``seed``; a module of one's own keeps its weights if it is alone."""
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            model = self._given(seed, alone) or config.build()
        if self.start is not None:
            self.start.load_into(model)
        return model

    def _given(self, seed: int, alone: bool) -> Model | None:
        """A copy of the module that was handed over; None where the config can build a fresh one and has to."""
        if self.module is None or not (alone or isinstance(self.config, OwnConfig)):
            return None
        return copy_of(self.module, None if alone else seed)


def resolve(request: TrainRequest, store: Store, start: Start | None, out: Path, say: Say) -> list[Member]:
    """The models to train, each with its split, its task and its config, fitted to the data.

    Whatever is wrong with the request is said here, in one sentence, before anything is trained or written.
    """
    wanted = request.recipe.policy.features
    if wanted and not store.is_molecules:
        raise ValueError(f"the features {', '.join(wanted)} are worked out from molecules; this data has none")
    store = with_rows(store, request)
    origin = _origin(request, store, start, out, say)
    request = replace(request, split=request.split.for_store(store))
    splits, by_row = make_splits(store, request.split)
    beside = auxiliary_numbers(store, request.auxiliary, not request.quiet) if request.auxiliary else None
    alone = len(splits) * request.ensemble == 1
    members = []
    for fold, split in enumerate(splits):
        for number in range(request.ensemble):
            names = [f"fold-{fold}"] * (len(splits) > 1) + [f"model-{number}"] * (request.ensemble > 1)
            seed = request.seed + number
            members.append(_member("-".join(names), store, request, origin, split, by_row, seed, alone, beside))
    _check_model(members[0], origin)
    return members


def with_rows(store: Store, request: TrainRequest) -> Store:
    """The store with all its rows: links without negatives get some to validate and test with, by the split's seed."""
    return with_negatives(store, request.split.seed) if store.manifest.level == "link" else store


def _origin(request: TrainRequest, store: Store, start: Start | None, out: Path, say: Say) -> Origin:
    if request.model is not None:
        module = as_model(request.model)
        return Origin(module.config, module=module)
    if start is not None:
        return Origin(start.config, start)
    name = request.preset
    if name == AUTO:
        before = _chosen_before(out, request, store) if request.resume else None
        name = before or chosen_preset(store, request)
        if before is None and name in NODE_PRESETS:
            say(f"all labels are those of the {store.manifest.level}s of one graph: the model is the preset {name}")
        if before is None and name in PRETRAINED:
            say(f"training begins with the weights of {name}, which come with the package; the preset small does not")
    if name in PRETRAINED and not knows_molecules(store):
        raise ValueError(
            f"{name} knows molecules with implicit hydrogens; use the preset {DEFAULT_PRESET} for this data"
        )
    return _of_preset(name)


def _of_preset(name: str) -> Origin:
    return Origin(PRESETS[name](), Start.read(bundled(PRETRAINED[name])) if name in PRETRAINED else None)


def preset_of(spec: RunSpec, request: TrainRequest, store: Store) -> str | None:
    """The preset that, with the settings of this request, gives a run's model; None if there is none."""
    if request.model is not None or request.start is not None:
        return None
    for name in PRESETS:
        origin = _of_preset(name)
        try:
            config = origin.fitted(store, spec.task.out_dim, request.model_settings)
        except ValueError:
            continue  # Some setting is for other presets.
        if (config, None if origin.start is None else origin.start.sha256) == (spec.model, spec.start):
            return name
    return None


def _chosen_before(out: Path, request: TrainRequest, store: Store) -> str | None:
    """What was chosen when the run was begun still stands; None for a run that is not begun."""
    if not (out / RUN_FILE).is_file():
        return None
    spec = read_run(out)
    if spec.start is not None:
        return _TRAINED
    begun = preset_of(spec, request, store)
    return begun if begun in NODE_PRESETS else DEFAULT_PRESET


def chosen_preset(store: Store, request: TrainRequest) -> str:
    """What a person means who names none: a model for nodes or links of one graph, else pre-trained weights.

    Those know molecules without explicit hydrogens, and the model as it is but for its head.
    """
    if _rows_of_one_graph(store):
        tokens = store.graphs.num_nodes + store.graphs.num_edges // 2
        return NODES if tokens > MOST_EXACT else NODES_EXACT
    return _TRAINED if knows_molecules(store) and request.keeps_weights else DEFAULT_PRESET


def _rows_of_one_graph(store: Store) -> bool:
    """Whether all labels are of nodes or links of one graph, which is no molecule."""
    graphs = store.graphs
    plain = graphs.order == 2 and not graphs.hyperedges.total
    return len(store) == 1 and store.manifest.level in ("node", "link") and plain and not store.is_molecules


def knows_molecules(store: Store) -> bool:
    """Whether the trained presets were trained on data of this kind."""
    policy = policy_of(store)
    return policy is not None and policy.hydrogens == "implicit"


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
