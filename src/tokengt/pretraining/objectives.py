"""What is learned of a molecule without a target: several losses of one table of codes, each a mean over its labels.

A row of the table holds all that is known of a molecule, in bytes: fingerprint bits (eight to a byte), descriptors and
quantities as codes (:mod:`tokengt.pretraining.quantise`), answers of yes/no assays, and slots for the measurements of
thousands of others (:mod:`tokengt.pretraining.assays`). No cell is NaN, but for rows that only fill a step up: they
count nothing. So a step has the same shapes whatever is missing, and a GPU can record it.

The loss is the mean over molecules of sum_o w_o / E_o sum_labels l, where E_o is how many labels objective o has of a
molecule in the mean: every objective counts as the mean over its labels, whichever molecules those are of.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from tokengt.models.tokengt.masking import HIDING
from tokengt.pretraining.assays import CENTRE, FIELDS, LEVELS, PER_DEVIATION, SLOTS
from tokengt.pretraining.quantise import MISSING
from tokengt.pretraining.sources import ABOVE, BELOW, UNKNOWN
from tokengt.training.labels import LabelTable

TARGETS = ("masked", "descriptors", "fingerprints", "assays")
# What graphs of any kind say of their nodes (:mod:`tokengt.pretraining.structure`): learned alone, without molecules.
STRUCTURE = "structure"


@dataclass(frozen=True)
class Layout:
    """How many labels of each kind a molecule can have; 0 for an objective that is left out.

    ``masked`` adds one output of the model, its own loss of guessing atoms that were hidden from it.
    """

    bits: int = 0
    descriptors: int = 0
    numbers: int = 0
    answers: int = 0
    assays: int = 0
    masked: bool = False

    @property
    def head(self) -> int:
        """Outputs of the model's head."""
        return max(self.bits + self.descriptors + self.numbers + self.answers + 2 * self.assays, 1)

    @property
    def columns(self) -> int:
        """Cells in a row of the table; the first is always 0, so that even a row without labels has one."""
        slots = SLOTS * FIELDS if self.assays else 0
        return 1 + self.bits // 8 + self.descriptors + self.numbers + self.answers + slots

    def outputs(self, output: Float[Tensor, "rows out"]) -> dict[str, Float[Tensor, "rows _"]]:
        sizes = (self.bits, self.descriptors, self.numbers, self.answers, self.assays, self.assays)
        parts = torch.split(output[:, : sum(sizes)], list(sizes), 1)
        return dict(zip(("bits", "descriptors", "numbers", "answers", "active", "values"), parts, strict=True))

    def cells(self, codes: Float[Tensor, "rows columns"]) -> dict[str, Float[Tensor, "rows _"]]:
        slots = SLOTS * FIELDS if self.assays else 0
        sizes = [1, self.bits // 8, self.descriptors, self.numbers, self.answers, slots]
        names = ("blank", "bits", "descriptors", "numbers", "answers", "slots")
        return dict(zip(names, torch.split(codes, sizes, 1), strict=True))

    def label_counts(self, table: Float[Tensor, "rows columns"]) -> dict[str, int]:
        """How many labels of each kind a table holds, but for kinds that it has none of."""
        cells = self.cells(table)
        counts = {
            "bits": self.bits * len(table),
            **{name: int((cells[name] != MISSING).sum()) for name in ("descriptors", "numbers", "answers")},
        }
        if self.assays:
            slots = cells["slots"].reshape(len(table), SLOTS, FIELDS)
            counts |= {
                "active": int((slots[:, :, 2] != UNKNOWN).sum()),
                "values": int((slots[:, :, 3] != MISSING).sum()),
            }
        return {name: count for name, count in counts.items() if count}


@dataclass(frozen=True)
class Objectives:
    """The objective of a pre-training, as :class:`tokengt.training.objective.Objective` wants it.

    Args:
        layout: which labels there are.
        mean: of the codes of descriptors and quantities in the training part.
        scale: their standard deviation, 1 where all are equal.
        expected: E_o: labels of each objective per molecule, by name.
        weights: w_o by name; 1 for one that is not named.
    """

    layout: Layout
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    expected: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    metric: str = field(default="loss", init=False)

    @classmethod
    def fit(
        cls,
        layout: Layout,
        table: Float[Tensor, "rows columns"],
        hidden: float = 0.0,
        weights: Mapping[str, float] | None = None,
    ) -> "Objectives":
        """``table``: the training part; ``hidden``: how many atoms of a molecule are hidden in the mean."""
        cells = layout.cells(table.float())
        codes = torch.cat([cells["descriptors"], cells["numbers"]], 1).double()
        known = codes != MISSING
        count = known.sum(0).clamp(min=1)
        mean = torch.where(known, codes, 0).sum(0) / count
        spread = (torch.where(known, codes - mean, 0).square().sum(0) / count).sqrt()
        scale = torch.where(spread > 0, spread, 1.0)
        expected = {name: labels / max(len(table), 1) for name, labels in layout.label_counts(table).items()}
        if layout.masked and hidden:
            expected["masked"] = hidden
        return cls(layout, tuple(mean.tolist()), tuple(scale.tolist()), expected, dict(weights or {}))

    @property
    def out_dim(self) -> int:
        return self.layout.head + self.layout.masked

    @property
    def table(self) -> LabelTable:
        """To the loop the first cell of a row is its one label, so that a loss is a mean over molecules."""
        return LabelTable(targets=1)

    def loss_sum(self, output: Float[Tensor, "rows out"], targets: Float[Tensor, "rows columns"]) -> Float[Tensor, ""]:
        """The loss summed over all rows but those that only fill up."""
        terms = self.terms(output, targets)
        return sum(
            (self.weights.get(name, 1.0) / self.expected[name] * term.sum() for name, term in terms.items()),
            torch.zeros((), device=output.device),
        )

    def terms(
        self, output: Float[Tensor, "rows out"], targets: Float[Tensor, "rows columns"]
    ) -> dict[str, Float[Tensor, " rows"]]:
        """The summed loss of each objective for every row; 0 where a label is missing, and for rows that fill up."""
        # A sum over many labels needs more digits than half precision has.
        output = output.float() if output.dtype in (torch.bfloat16, torch.float16) else output
        own = ~torch.isnan(targets[:, :1])
        # For rows that fill up, codes of missing labels.
        cells = self.layout.cells(torch.where(own, targets, float(MISSING)).float())
        outputs = self.layout.outputs(output)
        found = {"bits": _yes_no(outputs["bits"], _unpacked(cells["bits"]), own.expand(-1, self.layout.bits))}
        middle, width = (_row(values, output.device) for values in (self.mean, self.scale))
        first = self.layout.descriptors
        for name, part in (("descriptors", slice(0, first)), ("numbers", slice(first, None))):
            scaled = (cells[name] - middle[part]) / width[part]
            found[name] = _error(outputs[name] - scaled, cells[name] != MISSING)
        found["answers"] = _yes_no(outputs["answers"], cells["answers"], cells["answers"] != UNKNOWN)
        if self.layout.assays:
            found |= self._measured(outputs, cells["slots"])
        if self.layout.masked:
            found["masked"] = torch.where(own, output[:, -1:], 0)
        return {name: found[name].sum(1) for name in self.expected}

    def _measured(
        self, outputs: Mapping[str, Tensor], slots: Float[Tensor, "rows slots"]
    ) -> dict[str, Float[Tensor, "rows assays"]]:
        """Slots are spread out over all assays, so that no gradient has to be gathered.

        A bound costs nothing on the side that it allows: where the true value is at most x, a prediction below x.
        """
        count = self.layout.assays
        low, high, active, code = slots.view(len(slots), SLOTS, FIELDS).long().unbind(2)
        # Slots that no label takes name the assay 65,535; they all go to a column that is cut off.
        assay = (low + 256 * high).clamp(max=count)
        active, code = (_spread(assay, each, count) for each in (active, code))
        relation, step = code // LEVELS, code % LEVELS
        error = outputs["values"] - (step - CENTRE).float() / PER_DEVIATION
        error = torch.where(relation == BELOW, error.clamp(min=0), error)
        error = torch.where(relation == ABOVE, error.clamp(max=0), error)
        return {
            "active": _yes_no(outputs["active"], active, active != UNKNOWN),
            "values": _error(error, code != MISSING),
        }

    def is_better(self, value: float, best: float | None) -> bool:
        return value == value and (best is None or best != best or value < best)

    def validated(self, output: Float[Tensor, "rows out"], targets: Float[Tensor, "rows columns"]) -> dict[str, Any]:
        """The mean loss of each objective over its labels here, and their weighted sum.

        The mean loss of hidden atoms is taken over as many as are hidden in evaluation, where no molecule is whole.
        """
        counts: dict[str, float] = dict(self.layout.label_counts(targets))
        if "masked" in self.expected:
            counts["masked"] = self.expected["masked"] / HIDING * len(targets)
        terms = self.terms(output, targets)
        means = {name: float(terms[name].sum()) / counts[name] for name in terms if name in counts}
        loss = sum(self.weights.get(name, 1.0) * value for name, value in means.items())
        return {"valid_loss": loss, "valid": {"loss": loss, **means}}


def _yes_no(logits: Tensor, labels: Tensor, known: Bool[Tensor, "rows labels"]) -> Float[Tensor, "rows labels"]:
    """Cross entropy in nats, 0 where no label is known."""
    logits, labels = torch.where(known, logits, 0), torch.where(known, labels, 0).to(logits.dtype)
    return torch.where(known, F.binary_cross_entropy_with_logits(logits, labels, reduction="none"), 0)


def _error(error: Tensor, known: Bool[Tensor, "rows labels"]) -> Float[Tensor, "rows labels"]:
    """Half the square up to one standard deviation and then a line: a few molecules are far off, and must not lead."""
    error = torch.where(known, error, 0)
    return F.huber_loss(error, torch.zeros_like(error), reduction="none")


def _unpacked(packed: Float[Tensor, "rows bytes"]) -> Float[Tensor, "rows bits"]:
    """Bits of bytes, the highest first, as NumPy packs them."""
    shifts = torch.arange(7, -1, -1, device=packed.device)
    return (packed.long()[:, :, None].bitwise_right_shift(shifts) & 1).flatten(1).float()


def _spread(
    places: Int[Tensor, "rows slots"], values: Int[Tensor, "rows slots"], count: int
) -> Int[Tensor, "rows {count}"]:
    """[rows, count] the values at their places, MISSING elsewhere; the place ``count`` is outside."""
    table = torch.full((len(places), count + 1), MISSING, device=places.device, dtype=torch.int64)
    return table.scatter(1, places, values)[:, :count]


@lru_cache(maxsize=16)
def _row(values: tuple[float, ...], device: torch.device) -> Float[Tensor, " columns"]:
    """Kept on the device: a copy at every step would wait for all work queued before it."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device)
