"""A TokenGT that guesses atoms which are hidden from it: what it learns of molecules without any label.

In training every second molecule, at random, has a fifth of its atoms hidden: their features become the last category
of every column, which for atomic numbers means an element that no molecule has. The others stay whole, because a model
that is fine-tuned will see whole molecules. In evaluation a fifth of all atoms is hidden, always the same ones.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from tokengt.batch import GraphBatch
from tokengt.draws import chain
from tokengt.models.contract import Model, SequenceRule
from tokengt.models.tokengt.model import TokenGT
from tokengt.ragged import Segments, segment_sum

HIDDEN, HIDING = 0.2, 0.5
_BITS = 20


class MaskedAtoms(Model):
    """The model's own outputs, and one more column: the summed loss of guessing each graph's hidden atoms.

    The loss of an atom is the mean cross entropy over its columns, in nats.

    Shapes: a batch -> [graphs, out + 1].
    """

    blank: Tensor

    def __init__(self, model: TokenGT) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        categories = model.config.tokens.node_features.categories
        if not categories or model.config.head.level != "graph":
            raise ValueError(
                "hidden nodes are guessed by their categories and beside a graph head; this model has none"
            )
        self.categories = categories
        self.guess = nn.Linear(model.config.dim, sum(categories))
        nn.init.normal_(self.guess.weight, std=0.02)
        nn.init.zeros_(self.guess.bias)
        self.register_buffer("blank", torch.tensor(categories) - 1, persistent=False)

    def forward(
        self, batch: GraphBatch, node_ids: Tensor | None = None, *, draw: int = 0
    ) -> Float[Tensor, "graphs out"]:
        features = batch.node_features
        assert isinstance(features, Tensor)
        hidden = self.hidden(batch, draw)
        shown = batch.with_node_features(torch.where(hidden[:, None], self.blank.to(features.dtype), features))
        tokens = self.model.encode(shown, node_ids, draw=draw)
        head = self.model.head
        rows = head.rows(tokens)
        read = tokens.values.index_select(0, rows) if rows is not None else head.read(tokens)
        guesses = torch.split(self.guess(tokens.nodes), list(self.categories), 1)
        losses = [
            F.cross_entropy(guess, truth, reduction="none")
            for guess, truth in zip(guesses, features.long().unbind(1), strict=True)
        ]
        lost = torch.where(hidden, torch.stack(losses).mean(0), 0)
        return torch.cat([head(read, shown), segment_sum(lost[:, None], batch.nodes)], 1)

    def hidden(self, batch: GraphBatch, draw: int = 0) -> Bool[Tensor, " nodes"]:
        """Which nodes are hidden: drawn from torch's generator in training, else by their place in their graph."""
        if self.training:
            atoms = torch.rand(batch.num_nodes, device=batch.device) < HIDDEN
            graphs = torch.rand(batch.num_graphs, device=batch.device) < HIDING
            return atoms & graphs.index_select(0, batch.nodes.ids)
        places = batch.nodes.positions
        keys = chain(torch.stack([places, torch.full_like(places, draw)]))
        return (keys & ((1 << _BITS) - 1)) < int(HIDDEN * (1 << _BITS))

    def embed(self, batch: GraphBatch) -> Float[Tensor, "graphs width"]:
        return self.model.embed(batch)

    @property
    def embedding_width(self) -> int:
        return self.model.embedding_width

    @property
    def has_draws(self) -> bool:
        return True

    @property
    def takes_node_ids(self) -> bool:
        return True

    def costs(self, graphs: GraphBatch) -> Int[Tensor, " graphs"]:
        return self.model.costs(graphs)

    def prepared(self, graphs: GraphBatch) -> GraphBatch:
        return self.model.prepared(graphs)

    def sequence_rule(self) -> SequenceRule | None:
        return self.model.sequence_rule()

    def drawn_node_ids(self, nodes: Segments) -> Float[Tensor, "nodes width"] | None:
        return self.model.drawn_node_ids(nodes)

    def set_recompute(self, on: bool) -> bool:
        return self.model.set_recompute(on)

    def pieces(self) -> Sequence[nn.Module]:
        return self.model.pieces()

    def sometimes_unused(self) -> Iterable[nn.Parameter]:
        return self.model.sometimes_unused()
