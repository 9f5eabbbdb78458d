"""What a training step on links reads and asks: no step reads the edge of a pair that it asks about.

The pairs of the training part lie in a few *folds*. In epoch e those of fold e mod folds are asked about, and their
edges are in no token, message or fact of the step; the edges of all other folds are read. So every link teaches, every
link is read, and never at once. Where no training pair is an edge (PyG's ``disjoint_train_ratio``), all are asked
about in every epoch.

Where the training part lists positives alone, every step draws pairs that are not joined as its negatives. They are a
function of seed, epoch and graph, and know nothing of the pairs that validate and test: one of them may be drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.draws import chain
from tokengt.links import NonLinks, joined, non_links, without_edges_of
from tokengt.ragged import Segments, interleave

Ready = Callable[[GraphBatch], GraphBatch]


@dataclass(frozen=True)
class LinkTraining:
    """How links are learned.

    Args:
        folds: parts that the training pairs lie in: one of them is asked about in each epoch, the others are read.
        negatives: pairs that are not joined which a step draws for each link, where the source lists none.
    """

    folds: int = 5
    negatives: float = 1.0

    def __post_init__(self) -> None:
        if not 2 <= self.folds <= 1000:
            raise ValueError(f"training.links.folds is {self.folds}; expected 2 to 1,000: one is asked about, one read")
        if not 0 < self.negatives <= 1000:
            raise ValueError(f"training.links.negatives is {self.negatives}; expected above 0 and at most 1,000")


@dataclass(frozen=True, eq=False)
class Asked:
    """What a step reads, graphs that are asked about their links, and the label of every link."""

    graphs: GraphBatch
    targets: Float[Tensor, "links 1"]


@dataclass(frozen=True, eq=False)
class _Fold:
    """The pairs of a fold, and the graphs without their edges.

    ``negatives`` and ``labels`` count, on the CPU, how many negatives every graph gets in an epoch, and how many labels
    it has then.
    """

    graphs: GraphBatch
    targets: Float[Tensor, "links 1"]
    negatives: Int[Tensor, " graphs"]
    labels: Int[Tensor, " graphs"]


@dataclass(frozen=True, eq=False)
class LinkSteps:
    """The training part of a data set of links.

    Args:
        graphs: all graphs on the CPU, without the edges of pairs that validate or test, asked about the training pairs.
        targets: the label of each of them.
        draws: whether negatives are drawn, because the training part lists none.
        config: folds and negatives.
        seed: of the folds and of all draws.
        ready: what is worked out of the graphs of a fold once, such as the facts that the model asks for.
        device: where the folds are kept.
    """

    graphs: GraphBatch
    targets: Float[Tensor, "links 1"]
    draws: bool
    config: LinkTraining = field(default_factory=LinkTraining)
    seed: int = 0
    ready: Ready = lambda graphs: graphs
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def folds(self) -> int:
        """In how many folds the pairs lie: one, where none of them is an edge."""
        if not bool(joined(self.graphs, self.graphs.link_index).any()):
            return 1
        return min(self.config.folds, max(2, self.graphs.links.total))

    @cached_property
    def fold_of(self) -> Int[Tensor, " links"]:
        """The fold of every training pair: those of each graph in an order of their own, dealt out one by one."""
        links = self.graphs.links
        row = torch.arange(links.total)
        shuffled = torch.argsort(chain(torch.stack([torch.full_like(row, self.seed), row])), stable=True)
        order = shuffled[torch.argsort(links.ids[shuffled], stable=True)]
        fold = torch.empty_like(row)
        # Each graph begins with another fold, or a data set of small graphs would ask little in the last one.
        fold[order] = (links.positions + links.ids) % self.folds
        return fold

    def labels(self, epoch: int) -> Int[Tensor, " graphs"]:
        """How many labels every graph has in an epoch, those of its negatives among them; on the CPU."""
        return self._fold(epoch).labels

    def asked(self, places: Int[Tensor, " graphs"], epoch: int) -> Asked:
        """What the graphs at these places are asked in an epoch, with the negatives of that epoch."""
        fold = self._fold(epoch)
        graphs, targets = fold.graphs.select(places), fold.targets[fold.graphs.links.take(places)[0]]
        if not self.draws:
            return Asked(graphs, targets)
        drawn = self._non_links.drawn(places, fold.negatives[places], self.seed, epoch)
        # The pairs are numbered among all graphs, and have to be among the chosen ones.
        moved = graphs.nodes.starts - self._non_links.nodes.starts[places.to(self.device)]
        together, (own, more) = interleave([graphs.links, drawn.segments])
        index = drawn.index.new_empty(2, together.total)
        index[:, own], index[:, more] = graphs.link_index, drawn.index + moved[drawn.segments.ids]
        labels = targets.new_zeros(together.total, 1)
        labels[own] = targets
        return Asked(graphs.with_links(together, index), labels)

    @cached_property
    def _non_links(self) -> NonLinks:
        """The pairs that training may take for no links: those that it does not know to be joined."""
        linked = self.graphs.link_index[:, self.targets[:, 0] != 0]
        return non_links(self.graphs, linked).to(self.device)

    @cached_property
    def _made(self) -> dict[int, _Fold]:
        return {}

    def _fold(self, epoch: int) -> _Fold:
        number = epoch % self.folds
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def _make(self, number: int) -> _Fold:
        graphs, rows = self.graphs, torch.nonzero(self.fold_of == number).flatten()
        owner, targets = graphs.links.ids[rows], self.targets[rows]
        lengths = torch.bincount(owner, minlength=len(graphs))
        asked = graphs.with_links(Segments.from_lengths(lengths), graphs.link_index[:, rows])
        positives = torch.bincount(owner[targets[:, 0] == 1], minlength=len(graphs))
        wanted = (positives * self.config.negatives).ceil().long() if self.draws else torch.zeros_like(positives)
        negatives = torch.where(self._non_links.room.cpu() > 0, wanted, 0)
        labels = torch.bincount(owner[~targets[:, 0].isnan()], minlength=len(graphs)) + negatives
        left = self.ready(without_edges_of(asked)).to(self.device)
        return _Fold(left, targets.to(self.device), negatives, labels)


def draws_negatives(labels: Float[Tensor, "links 1"]) -> bool:
    """Whether training draws negatives, because these labels of its part list none."""
    return not bool((labels == 0).any())


def learned_labels(labels: Float[Tensor, "links 1"], config: LinkTraining) -> Float[Tensor, "more 1"]:
    """The labels of the training part and, where it lists no negatives, as many of them as its epochs draw."""
    if not draws_negatives(labels):
        return labels
    drawn = max(1, round(config.negatives * int((labels == 1).sum())))
    return torch.cat([labels, labels.new_zeros(drawn, 1)])


def link_steps(
    graphs: GraphBatch,
    targets: Float[Tensor, "rows 1"],
    rows: Int[Tensor, " train"],
    drawn: Int[Tensor, " rows"] | None,
    config: LinkTraining,
    seed: int,
) -> LinkSteps:
    """The training part of a table of links; pairs that were drawn to test with are not learned from.

    Raises:
        ValueError: one sentence: hiding the links of a fold would leave no edge to read.
    """
    own = rows if drawn is None else rows[drawn[rows] < 0]
    lengths = torch.bincount(graphs.links.ids[own], minlength=len(graphs))
    asked = graphs.with_links(Segments.from_lengths(lengths), graphs.link_index[:, own])
    steps = LinkSteps(asked, targets[own], draws_negatives(targets[own]), config, seed)
    for number in range(steps.folds):
        hidden = asked.link_index[:, steps.fold_of == number]
        if not without_edges_of(asked, hidden).num_edges:
            raise ValueError(
                f"the graphs have {asked.num_edges:,} edges to learn from, and hiding those that a step asks about "
                "would leave none to read; expected more links, or edges beside them"
            )
    return steps
