"""The training, validation and test part of a data set, as the loop sees them.

A part is a list of graphs and a table of labels that is blank outside the part. So graphs can be split; and where all
nodes or edges are in one graph, its rows can be split instead: the graph then stands in every part, and each part
shows other labels of it. Links are always split by rows, and what a step on them reads is another matter
(:mod:`tokengt.training.links`).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.splits import Split
from tokengt.level import Level
from tokengt.ragged import Segments
from tokengt.training.labels import LabelTable
from tokengt.training.links import LinkSteps


@dataclass(frozen=True, eq=False)
class Part:
    """Graphs to read, and the labels to use, NaN where missing or not of this part.

    ``targets`` is a table of labels as :mod:`tokengt.training.labels` describes it: one row for each of the data set.
    """

    places: Int[Tensor, " graphs"]
    targets: Float[Tensor, "rows columns"]


@dataclass(eq=False)
class Parts:
    """A data set ready for training: all its graphs, what each costs its model, where its rows lie, its three parts.

    ``links``: of links, what training steps read and ask; ``graphs`` are then those that are evaluated.
    """

    graphs: GraphBatch
    level: Level
    costs: Int[Tensor, " all_graphs"]
    train: Part
    valid: Part
    test: Part
    links: LinkSteps | None = None

    @cached_property
    def rows(self) -> Segments:
        """Where the rows of every graph lie; cached, because a large data set has many and every step asks."""
        return self.graphs.level_rows(self.level)

    def batch(self, places: Int[Tensor, " chosen"], device: torch.device) -> GraphBatch:
        """The graphs at these places, on the device."""
        batch = self.graphs.select(places)
        return batch if batch.device == device else batch.to(device)

    def targets(self, part: Part, places: Int[Tensor, " chosen"]) -> Float[Tensor, "_ targets"]:
        """The labels of a part in the rows of the graphs at these places."""
        index, _ = self.rows.take(places)
        return part.targets.index_select(0, index)

    def asked(
        self, places: Int[Tensor, " chosen"], epoch: int, device: torch.device
    ) -> tuple[GraphBatch, Float[Tensor, "_ columns"]]:
        """What a training step on these graphs reads, and the labels that it learns from."""
        if self.links is None:
            return self.batch(places, device), self.targets(self.train, places).to(device)
        asked = self.links.asked(places, epoch)
        return asked.graphs.to(device), asked.targets.to(device)

    def labels_per_graph(self, part: Part, table: LabelTable) -> Int[Tensor, " all_graphs"]:
        """How many labels of a part every graph holds, on the CPU."""
        labels = table.counts(part.targets).cpu()
        rows = self.rows
        ids = torch.repeat_interleave(torch.arange(rows.count), rows.host_lengths)
        return torch.zeros(rows.count, dtype=torch.int64).index_add(0, ids, labels)


def cut(
    graphs: GraphBatch,
    targets: Float[Tensor, "rows columns"],
    level: Level,
    split: Split,
    *,
    by_row: bool,
    costs: Int[Tensor, " all_graphs"],
    links: LinkSteps | None = None,
) -> Parts:
    """The parts of a split, which numbers graphs, or with ``by_row`` rows of the label table; ``links`` come along."""
    rows = graphs.level_rows(level)
    parts = [
        _rows_shown(targets, rows, places) if by_row else Part(places, targets)
        for places in (split.train, split.valid, split.test)
    ]
    train, valid, test = parts
    return Parts(graphs, level, costs, train, valid, test, links)


def _rows_shown(targets: Float[Tensor, "rows columns"], rows: Segments, places: Int[Tensor, " chosen"]) -> Part:
    """These rows' labels, and the graphs that hold them."""
    shown = torch.zeros(len(targets), 1, dtype=torch.bool)
    shown[places] = True
    blank = torch.where(shown.to(targets.device), targets, torch.nan)
    return Part(torch.unique(torch.searchsorted(rows.host, places, right=True) - 1), blank)
