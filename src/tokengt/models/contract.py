"""The contract: what every model answers, so that one loop trains, resumes, predicts with and describes all of them.

A model comes in two halves. Its config (:class:`ModelConfig`) is a frozen dataclass that says which model it is, adapts
itself to a data set and builds the model. The model (:class:`Model`) turns a batch of graphs into rows of numbers. The
rooms above (training, inference, workflow) ask for what is written here and know no model by name.

A *store* is a prepared data set (:mod:`tokengt.data.store`). A *fact* is something that is computed once from the
structure of its graphs and kept with them (:mod:`tokengt.structure.facts`). A *draw* is one set of the random choices
that a model makes at evaluation (:mod:`tokengt.models.passes`).

Only ``fit``, ``build`` and ``describe`` of the config and ``forward`` of the model have to be written; every other
answer has a default that is right for a plain module, if not the fastest.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.config import BadSetting, to_dict
from tokengt.data.store import Store
from tokengt.models.planned import planned
from tokengt.models.pretrained import CONFIG, WEIGHTS, belongs_to_run, write_model
from tokengt.ragged import Segments
from tokengt.structure.facts import StructureFact


@dataclass(frozen=True)
class Description:
    """A model in words, for the model card and for ``tokengt info``.

    Args:
        name: what people call it, such as "TokenGT".
        summary: one line about its size and its parts.
        details: rows of the card's table of settings, such as ``{"identifiers": "laplacian, 16 dimensions"}``.
        tags: words by which the card can be searched.
        own_class: for a module of a user's own: its class, which a reader of the card has to bring to load the run.
    """

    name: str
    summary: str
    details: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    own_class: str | None = None


@dataclass(frozen=True)
class SequenceRule:
    """The sequence that a graph becomes: so many tokens for the graph itself, for each of its nodes, for each listed
    edge, and for each undirected edge, where two listed ones are the two directions of it.
    """

    graph: int
    node: int
    edge: int
    undirected: int


class ModelConfig(ABC):
    """Everything that makes a model. Subclasses are frozen dataclasses whose first field is ``kind``.

    The kind is written into ``config.json``, and :mod:`tokengt.models.kinds` finds the class by it:
    ``kind: Literal["gin"] = field(default="gin", init=False)``.
    """

    kind: str

    @abstractmethod
    def fit(self, data: Store, out_dim: int) -> "ModelConfig":
        """This config adapted to read these graphs and to give ``out_dim`` numbers for each row of their targets."""

    @abstractmethod
    def build(self) -> "Model":
        """A model with fresh weights, drawn from torch's global generator.

        Raises:
            ValueError: one sentence: parts of the config do not go together.
        """

    @abstractmethod
    def describe(self) -> Description:
        """The model in words."""

    def refit(self, data: Store, out_dim: int) -> "ModelConfig":
        """A trained model's config for other data: it keeps all that its weights read, and gets a new head."""
        return self.fit(data, out_dim)

    @property
    def num_descriptors(self) -> int:
        """How many descriptors, numbers about a graph as a whole, the model is given with each graph."""
        return 0

    @property
    def kept_descriptors(self) -> int:
        """How many of them are read by weights that fine-tuning keeps: all but what the head alone reads."""
        return self.num_descriptors

    @property
    def float_features(self) -> Sequence[str]:
        """Which of ``node_features`` and ``edge_features`` are read as floats, even if a file has whole numbers."""
        return ()

    def facts(self) -> Sequence[StructureFact]:
        """What the model needs to know about graphs besides their features: computed once, kept with the store."""
        return ()

    @property
    def decided(self) -> Sequence[str]:
        """Paths of fields that follow from the targets, so that no setting may change them."""
        return ()

    def meanings(self) -> Mapping[str, Any]:
        """Settings that the shapes of weights do not show, but without which trained weights mean nothing."""
        return {}

    def step_bytes(self, graphs: GraphBatch, places: Int[Tensor, " graphs"], itemsize: int) -> int | None:
        """About how many bytes a training step on the graphs at these places keeps; None where nobody worked it out.

        ``itemsize`` is how many bytes a number has in products: 4, or 2 in mixed precision. ``graphs`` need not carry
        facts: whether a step fits is asked before they are worked out.
        """
        return None

    @property
    def recomputes(self) -> bool:
        """Whether the model can compute activations again for the gradient (:meth:`Model.set_recompute`)."""
        return False

    def attention_settings(self, kind: str) -> Mapping[str, Any]:
        """Settings of this config that switch a trained model to another kind of attention, to be fine-tuned with it.

        Raises:
            ValueError: one sentence: the model has no attention that can be switched under its weights.
        """
        raise ValueError(
            f"{self.describe().name} has no attention that can be switched under its weights; expected a TokenGT"
        )


# No field of a config may be larger. Real models are far below: these numbers only keep a slip of the pen, or a config
# from elsewhere, from taking all memory or all day.
_LARGEST = 1 << 20
_LARGEST_OF = {"num_layers": 1000, "order": 10}
_MOST_PARAMETERS = 100_000_000_000


def check_sizes(config: ModelConfig, *, counted: bool = True) -> None:
    """Refuse a config whose model could not be built, or not in a reasonable time, before anything is built.

    It is quick for any numbers. With ``counted`` the parameters are counted too, on a device that holds no numbers. A
    field that says nothing about the size of what is built has the metadata ``{"size": False}``.

    Raises:
        BadSetting: one sentence: the field, or the number of parameters, and what was expected at most.
        ValueError: parts of the config do not go together, as ``build`` says it.
    """
    for path, value in _numbers(config):
        most = _LARGEST_OF.get(path.rpartition(".")[2], _LARGEST)
        if value > most:
            raise BadSetting(f"model.{path} is {value}; expected at most {most:,}")
    if not counted:
        return
    try:
        with planned():
            count = sum(parameter.numel() for parameter in config.build().parameters())
    except RuntimeError:
        # A tensor of more numbers than can be counted.
        count = 1 << 62
    most = min(_MOST_PARAMETERS, _memory() // 4)
    if count > most:
        shown = f"{count:,}" if count < 1 << 62 else "more"
        raise BadSetting(
            f"the model would have {shown} parameters; expected at most {most:,}, which fit into memory here"
        )


def _numbers(config: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """All whole numbers of a config with their dotted paths."""
    for each in fields(config):
        value, path = getattr(config, each.name), f"{prefix}{each.name}"
        if not each.metadata.get("size", True) or isinstance(value, bool):
            continue
        if is_dataclass(value):
            yield from _numbers(value, f"{path}.")
        elif isinstance(value, tuple):
            yield from ((path, part) for part in value if isinstance(part, int))
        elif isinstance(value, int):
            yield path, value


def _memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Model(nn.Module, ABC):
    """A network that reads packed graphs.

    ``config`` is what it was built from. A model that can be fine-tuned keeps its last layers in ``head``: fine-tuning
    starts those anew and keeps everything else.
    """

    config: ModelConfig
    # Folders that hold this model, with the content of their config.
    _saved: Mapping[Path, bytes | None] = MappingProxyType({})

    @abstractmethod
    def forward(self, batch: GraphBatch, *, draw: int = 0) -> Float[Tensor, "rows out"]:
        """One row per graph, node or edge, whichever the model was made to predict.

        ``draw`` numbers the random choices that a model makes at evaluation: the same number gives the same output. A
        model without such choices ignores it.
        """

    def embed(self, batch: GraphBatch) -> Float[Tensor, "graphs width"]:
        """One vector per graph: what the model knows of it before its head."""
        raise ValueError(f"{type(self).__name__} gives no embeddings: it has no method embed")

    @property
    def embedding_width(self) -> int:
        """The length of a vector of :meth:`embed`."""
        raise ValueError(f"{type(self).__name__} gives no embeddings: it has no embedding_width")

    @property
    def has_draws(self) -> bool:
        """Whether ``draw`` changes what :meth:`forward` gives at evaluation."""
        return False

    @property
    def takes_node_ids(self) -> bool:
        """Whether :meth:`forward` has a parameter ``node_ids``: identifiers to use instead of the model's own."""
        return False

    def costs(self, graphs: GraphBatch) -> Int[Tensor, " graphs"]:
        """About how much work each graph is, counted in nodes and edges, on the CPU: batches are cut by it."""
        return 1 + graphs.nodes.host_lengths + graphs.edges.host_lengths + graphs.hyperedges.host_lengths

    def prepared(self, graphs: GraphBatch) -> GraphBatch:
        """The data set with all facts that every batch would otherwise have to find out again."""
        return graphs

    def sequence_rule(self) -> SequenceRule | None:
        """How graphs become sequences, where a GPU can record whole training steps; None where it cannot.

        Steps on batches of equal sizes must then launch the same kernels, wait for nothing and copy nothing from the
        host; and graphs that only fill a batch up must change nothing for the others (as batch norm would).
        """
        return None

    def drawn_node_ids(self, nodes: Segments) -> Float[Tensor, "nodes width"] | None:
        """Identifiers for one training step, where the model's way of drawing them cannot be recorded; else None."""
        return None

    def set_recompute(self, on: bool) -> bool:
        """Compute activations again for the gradient instead of keeping them; whether the model can, and now does."""
        return False

    def pieces(self) -> Sequence[nn.Module]:
        """Parts that FSDP shards one at a time, such as the blocks of a Transformer; whatever is left is one more."""
        return ()

    def sometimes_unused(self) -> Iterable[nn.Parameter]:
        """Weights that some batches leave without a gradient, for which several processes would wait in vain."""
        return self.parameters()

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write ``model.safetensors`` and ``config.json`` (with the weights' checksum).

        A folder that this very model was saved to, or read from, before is written anew, as in a training loop that
        saves after every epoch. Another model that lies there, or another program's files of these names, are replaced
        only with ``overwrite``. Files of other names are left alone.

        Raises:
            ValueError: one sentence: what lies in the folder.
        """
        home = Path(folder).resolve()
        if home.exists() and not home.is_dir():
            raise ValueError(f"{folder} is a file; expected a folder to save the model to")
        if belongs_to_run(home):
            raise ValueError(f"{folder} is the folder of a run, whose files belong together; choose another folder")
        there = [name for name in (CONFIG, WEIGHTS) if (home / name).exists()]
        if there and not overwrite and self._saved.get(home) != _content(home / CONFIG):
            raise ValueError(
                f"{folder} already holds {' and '.join(there)} of another model; choose another folder, or replace it "
                "with overwrite=True"
            )
        write_model(home, to_dict(self.config), self.state_dict())
        self.remember_folder(home)

    def remember_folder(self, folder: Path) -> None:
        """Note that this folder holds this model, so that it may be saved there again."""
        # Assigned and not changed in place: a copy of the model has a memory of its own.
        self._saved = {**self._saved, folder.resolve(): _content(folder / CONFIG)}


def _content(file: Path) -> bytes | None:
    """What a file holds; the config of a saved model names the checksum of its weights."""
    return file.read_bytes() if file.is_file() else None
