"""From what trained models say of their validation rows to the calibration of their run, and how it does on the test.

Models that share a split are averaged, as they are when they predict. In a cross-validation every fold has its own
models, neighbours and validation rows; the scores of all folds are taken together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.batching import evaluation_batches, tokens_at_once
from tokengt.models.contract import Model
from tokengt.models.passes import evaluating
from tokengt.structure.facts import with_facts
from tokengt.training.calibration import Calibration, signs_of
from tokengt.training.conformal import Conformal, report
from tokengt.training.difficulty import FEWEST, Signs
from tokengt.training.metrics import Array, to_numpy
from tokengt.training.neighbours import Described, Known, Near, bits_of, sampled
from tokengt.training.probabilities import Curve, ProbabilityMap, ProbabilityReport, curve, mean_error, outcomes
from tokengt.training.reliability import LEVEL, LEVELS, Reliability
from tokengt.training.resolve import Member
from tokengt.training.tasks import Task

# Held-out rows that are looked at, at most.
_MOST_HELD_OUT = 5000


@dataclass(frozen=True, eq=False)
class Told:
    """What one model says of held-out rows, NaN elsewhere; ``variances`` where its loss asks for them."""

    values: Float[Tensor, "rows width"]
    variances: Float[Tensor, "rows width"] | None = None


@dataclass(frozen=True, eq=False)
class Held:
    """The validation or test part of one split, as one model or several say it is.

    ``rows`` are places in the table of labels; ``described`` has one entry for each, None for rows that are no graphs.
    """

    rows: Int[Tensor, " held"]
    told: Sequence[Told]
    described: Described | None

    @cached_property
    def values(self) -> Float[ndarray, "held width"]:
        return np.asarray(np.mean([to_numpy(each.values[self.rows]) for each in self.told], 0))

    def spread(self, between: bool) -> Float[ndarray, "held width"] | None:
        """The deviation that the models tell themselves and, with ``between``, that of their predictions."""
        own = [to_numpy(each.variances[self.rows]) for each in self.told if each.variances is not None]
        square = np.mean(own, 0) if own else 0.0
        if between and len(self.told) > 1:
            square = square + np.var([to_numpy(each.values[self.rows]) for each in self.told], 0, ddof=1)
        return np.asarray(np.sqrt(square)) if isinstance(square, ndarray) else None


@dataclass(frozen=True, eq=False)
class Fold:
    """One split: what is known of its training graphs, and its held-out parts."""

    known: Known | None
    valid: Held
    test: Held

    def near(self, held: Held) -> Near | None:
        return None if self.known is None or held.described is None else self.known.look(held.described)


def calibrated(
    task: Task, folds: Sequence[Fold], targets: Float[Tensor, "rows targets"], known: Known | None, seed: int
) -> Calibration:
    """What the validation parts say; ``known`` is what new rows are compared with."""
    labels = [to_numpy(targets[fold.valid.rows]) for fold in folds]
    together = np.concatenate(labels)
    if (~np.isnan(together)).sum(0).max(initial=0) < FEWEST:
        return Calibration(known=known)
    values = np.concatenate([fold.valid.values for fold in folds])
    if task.kind == "regression":
        signs = _signs(task, folds, [fold.valid for fold in folds])
        return Calibration(conformal=Conformal.fit(signs, _errors(task, together, values), seed), known=known)
    if task.kind == "binary":
        return Calibration(chances=ProbabilityMap.fit_binary(values, together), known=known)
    return Calibration(chances=ProbabilityMap.fit_classes(values, together[:, 0]), known=known)


def reliability(
    task: Task, folds: Sequence[Fold], targets: Float[Tensor, "rows targets"], calibration: Calibration
) -> Reliability:
    """How the calibration does on the test parts, which it has not seen."""
    labels = np.concatenate([to_numpy(targets[fold.test.rows]) for fold in folds])
    if not len(labels):
        return Reliability()
    values = np.concatenate([fold.test.values for fold in folds])
    if calibration.chances is not None:
        after = calibration.probabilities(values)
        told = ProbabilityReport(mean_error(after, labels), mean_error(values, labels))
        return Reliability(chances=told, curves=(_curve(values, labels), _curve(after, labels)))
    if calibration.conformal is None:
        return Reliability()
    signs, conformal = _signs(task, folds, [fold.test for fold in folds]), calibration.conformal
    errors, scale = _errors(task, labels, values), task.scaling.deviations
    reports = [report(conformal.half_widths(signs, level), errors, scale, level) for level in (LEVEL, *LEVELS)]
    half, sizes = conformal.half_widths(signs, LEVEL) / scale, np.abs(errors) / scale
    there = ~np.isnan(half + sizes)
    held = tuple(np.nan if each is None else each.coverage for each in reports[1:])
    return Reliability(reports[0], held, half[there], sizes[there])


def _errors(task: Task, labels: Array, values: Array) -> Array:
    """How far predictions are off, as intervals count it."""
    return np.asarray(task.scaling.comparable(labels) - task.scaling.comparable(values))


def _curve(values: Array, labels: Array) -> Curve:
    """Of all targets together."""
    told, seen = (np.concatenate(part) for part in zip(*outcomes(values, labels), strict=True))
    return curve(told, seen)


def _signs(task: Task, folds: Sequence[Fold], parts: Sequence[Held]) -> Signs:
    """The signs of these parts of all folds, one after another."""
    spreads = [part.spread(between=len(folds) == 1) for part in parts]
    reads_spread = all(spread is not None for spread in spreads)
    tables = [
        signs_of(task, part.values, fold.near(part), spread, reads_spread)
        for fold, part, spread in zip(folds, parts, spreads, strict=True)
    ]
    names = tables[0].columns
    return Signs({name: np.concatenate([table.columns[name] for table in tables]) for name in names})


@dataclass(frozen=True, eq=False)
class Seen:
    """What a trained model makes of the graphs of its split: its training graphs, and those that are held out.

    ``everything`` is what new rows are compared with: in a cross-validation all graphs, since other folds learned from
    those that this one holds out.
    """

    known: Known | None
    everything: Known | None
    valid_rows: Int[Tensor, " valid"]
    test_rows: Int[Tensor, " test"]
    valid: Described | None
    test: Described | None

    @classmethod
    def by(cls, member: Member, model: Model | None, device: torch.device, folds: int) -> "Seen":
        """As ``model`` sees them; None where it cannot be asked, because its weights are in pieces."""
        seed, store, split = member.spec.seed, member.store, member.split
        valid, test = (sampled(part, seed, _MOST_HELD_OUT) for part in (member.valid_rows, member.test_rows))
        if model is None or member.by_row or member.spec.level != "graph":
            return cls(None, None, valid, test, None, None)
        train = sampled(split.train, seed)
        all_of_it = sampled(torch.arange(len(store)), seed) if folds > 1 else train
        places = (train, valid, test, *([all_of_it] if folds > 1 else []))
        described = [describe(model, store.graphs.select(each), device, store.is_molecules) for each in places]
        if described[0].bits is None and described[0].vectors is None:
            return cls(None, None, valid, test, None, None)
        known = Known.of(described[0], to_numpy(store.targets[train]), seed)
        everything = Known.of(described[3], to_numpy(store.targets[all_of_it]), seed) if folds > 1 else known
        return cls(known, everything, valid, test, described[1], described[2])

    def fold(self, valid: Sequence[Told], test: Sequence[Told]) -> Fold:
        """With what one model or several say of the held-out rows."""
        return Fold(self.known, Held(self.valid_rows, valid, self.valid), Held(self.test_rows, test, self.test))


def describe(model: Model, graphs: GraphBatch, device: torch.device, molecules: bool) -> Described:
    """Graphs as they are compared with those of training: fingerprints, and vectors of this model."""
    return Described(bits_of(graphs, molecules), vectors_of(model, graphs, device))


@torch.no_grad()
def vectors_of(model: Model, graphs: GraphBatch, device: torch.device) -> Float[ndarray, "graphs dim"] | None:
    """What a model makes of every graph, before its head; None for a model that gives no vectors."""
    if not len(graphs):
        return None
    out: Array | None = None
    with evaluating(model):
        for places in evaluation_batches(torch.arange(len(graphs)), model.costs(graphs), tokens_at_once(device)):
            batch = with_facts(graphs.select(places), model.config.facts()).to(device)
            try:
                vectors = to_numpy(model.embed(batch))
            except ValueError:
                return None
            out = np.empty((len(graphs), vectors.shape[1])) if out is None else out
            out[places.numpy()] = vectors
    return out
