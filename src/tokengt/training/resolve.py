"""From a store and a person's wishes to configs: the model that reads this data, the split, the task."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.config import override
from tokengt.data.packed import PackedGraphs
from tokengt.data.splits import Fractions, Split, column_split, fold_splits, random_split, scaffold_split
from tokengt.data.store import Store
from tokengt.interop.molecules import MoleculePolicy, scaffolds
from tokengt.models.features import FeatureSpec
from tokengt.models.tokengt.identifiers import LaplacianIds
from tokengt.models.tokengt.model import TokenGTConfig
from tokengt.models.tokengt.tokens import TokensConfig
from tokengt.structure.tuples import merge_directions
from tokengt.training.config import TrainingConfig
from tokengt.training.parts import level_rows
from tokengt.training.tasks import Task, TaskKind, guessed_kind, numbered_classes


@dataclass(frozen=True)
class SplitRequest:
    """How to split.

    Args:
        kind: "random", "scaffold", "given" or the name of the column (what the data came with), or "auto": what the
            data came with, else random.
        seed: of the shuffle; scaffolds are always dealt out in the same way.
        fractions: of train, valid and test.
        folds: 0, or the number of parts of a cross-validation.
    """

    kind: str = "auto"
    seed: int = 0
    fractions: Fractions = (0.8, 0.1, 0.1)
    folds: int = 0

    def __str__(self) -> str:
        shares = " / ".join(f"{100 * share:g}%" for share in self.fractions)
        how = {"random": f"random, seed {self.seed}", "scaffold": "whole scaffolds"}.get(self.kind)
        if how is None:
            return "as the data gives it" if self.kind == "given" else f"by the column {self.kind!r}"
        return f"{self.folds} folds, {how}" if self.folds else f"{how}, {shares}"

    def for_store(self, store: Store) -> "SplitRequest":
        """The same with "auto" decided."""
        if self.kind != "auto":
            return self
        given = store.split is not None and not self.folds
        return replace(self, kind=(store.manifest.columns.get("split") or "given") if given else "random")


def make_splits(store: Store, request: SplitRequest) -> tuple[list[Split], bool]:
    """The split, or one a fold; and whether it numbers rows of the label table instead of graphs."""
    level = store.manifest.level
    request = request.for_store(store)
    by_row = level != "graph" and (
        len(store) == 1 or (store.split is not None and len(store.split) != len(store) and request.kind != "random")
    )
    count = len(store.targets) if by_row else len(store)
    if request.kind not in ("random", "scaffold"):
        return [_column(store, request, count)], by_row
    texts = None
    if request.kind == "scaffold":
        texts = store.texts()
        if texts is None or by_row:
            raise ValueError("a scaffold split needs molecules with their SMILES; use --split random or a column")
    if request.folds:
        groups = None if texts is None else scaffolds(texts)
        units = _units(store, count, by_row)
        folds = fold_splits(_count(units), request.folds, request.seed, groups)
        return [_rows_of(fold, units) for fold in folds], by_row
    if texts is not None:
        return [scaffold_split(texts, request.fractions)], by_row
    units = _units(store, count, by_row)
    return [_rows_of(random_split(_count(units), request.seed, request.fractions), units)], by_row


def _units(store: Store, count: int, by_row: bool) -> Int[Tensor, " rows"]:
    """What must not be torn apart, numbered: every row by itself, but both directions of an edge together."""
    if not by_row or store.manifest.level != "edge":
        return torch.arange(count)
    graphs = store.graphs
    ends = graphs.edge_index.long() + graphs.nodes.starts.index_select(0, graphs.edges.ids)
    keys = ends.amin(0) * graphs.nodes.total + ends.amax(0)
    inverse: Tensor = torch.unique(keys, return_inverse=True)[1]
    return inverse


def _count(units: Int[Tensor, " rows"]) -> int:
    return int(units.max()) + 1 if len(units) else 0


def _rows_of(split: Split, units: Int[Tensor, " rows"]) -> Split:
    """A split of units as one of their rows."""
    codes = split.codes(_count(units)).index_select(0, units)
    return Split(*(torch.nonzero(codes == code).flatten() for code in range(3)))


def _column(store: Store, request: SplitRequest, count: int) -> Split:
    if request.folds:
        raise ValueError("--folds makes its own splits; leave out --split or use random or scaffold")
    column = store.manifest.columns.get("split")
    words = ("given", column) if column else ("given", "mask", "masks")
    if store.split is None or request.kind not in words:
        there = f"given ({column})" if column else "given" if store.split is not None else "the data came with none"
        raise ValueError(f"--split is {request.kind!r}; expected random, scaffold, or the split of the data: {there}")
    if len(store.split) != count:
        raise ValueError(f"the split column has {len(store.split)} entries; expected {count}")
    return column_split(store.split, request.seed)


def fit_task(kind: TaskKind | None, store: Store, shown: Float[Tensor, "rows targets"]) -> Task:
    """The task, with the scaling of the training labels (``shown``; NaN elsewhere)."""
    manifest = store.manifest
    if not manifest.targets:
        raise ValueError("there is no target to learn; name one with --target")
    named = [target.name for target in manifest.targets if target.classes is not None]
    wanted = kind or manifest.task
    if named and wanted not in (None, "multiclass"):
        raise ValueError(f"target {named[0]!r} holds text; expected numbers for --task {wanted}, or use multiclass")
    classes = manifest.targets[0].classes
    if wanted == "multiclass" and classes is None:
        classes = numbered_classes(store.targets, manifest.targets[0].name)
    # The kind follows from all labels: a part may happen to hold only zeros and ones.
    task = Task.fit(wanted or guessed_kind(store.targets, classes), shown, manifest.target_names, classes)
    task.check(store.targets)
    return task


def fit_tokens(store: Store, wanted: TokensConfig) -> TokensConfig:
    """The preset's tokens, with the features of this data in place of its own.

    Molecules keep the fixed vocabularies, so that an element seen later has its row. Other graphs get one token for
    both directions of an edge only when every edge has its reverse with the same features.
    """
    graphs = store.graphs
    known = FeatureSpec.of(graphs.graph_features)
    if store.is_molecules:
        return replace(wanted, graph_features=known)
    merge = graphs.order == 2 and wanted.layout == "undirected" and is_symmetric(graphs)
    return replace(
        wanted,
        node_features=FeatureSpec.of(graphs.node_features),
        edge_features=FeatureSpec.of(graphs.edge_features),
        hyperedge_features=FeatureSpec.of(graphs.hyperedge_features),
        graph_features=known,
        order=graphs.order,
        hyperedges=graphs.hyperedges.total > 0,
        layout="undirected" if merge else "directed",
    )


def is_symmetric(graphs: PackedGraphs, chunk: int = 4096) -> bool:
    """Whether every edge has its reverse, with the same features."""
    for first in range(0, len(graphs), chunk):
        batch = graphs.gather(torch.arange(first, min(first + chunk, len(graphs))))
        try:
            merged = merge_directions(batch)
        except ValueError:
            return False
        loops = int((batch.edge_index[0] == batch.edge_index[1]).sum())
        if 2 * merged.segments.total - loops != batch.num_edges:
            return False
    return True


def apply_settings(
    model: TokenGTConfig, training: TrainingConfig, settings: Mapping[str, str]
) -> tuple[TokenGTConfig, TrainingConfig]:
    """``model.*`` and ``training.*`` settings, read from text by their fields' types."""
    for path in settings:
        room, _, rest = path.partition(".")
        if room not in ("model", "training") or not rest:
            raise ValueError(f"setting {path!r} is unknown; expected model.FIELD=VALUE or training.FIELD=VALUE")
        if rest in ("head.out_dim", "head.level"):
            raise ValueError(f"setting {path!r} follows from the targets; choose it by --target, --task and --level")
    return override(model, _inside("model", settings), "model"), apply_training(training, settings)


def apply_training(training: TrainingConfig, settings: Mapping[str, str]) -> TrainingConfig:
    """The ``training.*`` settings alone: they are needed before there is data to make a model for."""
    return override(training, _inside("training", settings), "training")


def _inside(room: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of one room, by their paths inside it."""
    start = f"{room}."
    return {path.removeprefix(start): text for path, text in settings.items() if path.startswith(start)}


def resolve_model(preset: TokenGTConfig, store: Store, task: Task, *, keep_tokens: bool = False) -> TokenGTConfig:
    """The preset, made to read this store and to predict this task; a trained model keeps its own tokens."""
    level = store.manifest.level
    identifiers = preset.identifiers
    if isinstance(identifiers, LaplacianIds) and len(store) == 1 and level != "graph":
        # Signs that change at every step would hide the one graph's nodes from a model that must know them apart.
        identifiers = replace(identifiers, sign_flip=False)
    known = FeatureSpec.of(store.graphs.graph_features)
    tokens = replace(preset.tokens, graph_features=known) if keep_tokens else fit_tokens(store, preset.tokens)
    head = replace(preset.head, level=level, out_dim=task.out_dim)
    return replace(preset, tokens=tokens, identifiers=identifiers, head=head)


def policy_of(store: Store) -> MoleculePolicy | None:
    return MoleculePolicy(**store.manifest.featurisation["policy"]) if store.is_molecules else None


def shown_targets(store: Store, split: Split, by_row: bool) -> Float[Tensor, "rows targets"]:
    """The training rows' labels."""
    if by_row:
        return store.targets[split.train]
    rows, _ = level_rows(store.graphs, store.manifest.level).take(split.train)
    return store.targets[rows]
