"""Several losses of one table of codes, worked out by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tokengt.pretraining.assays import CENTRE, FIELDS, SLOTS
from tokengt.pretraining.objectives import Layout, Objectives
from tokengt.pretraining.quantise import MISSING
from tokengt.training.objective import Objective


def _row(*cells: float) -> Tensor:
    return torch.tensor([cells], dtype=torch.float16)


def test_it_is_what_the_loop_asks_for() -> None:
    assert isinstance(Objectives(Layout(bits=8)), Objective)


def test_bits_are_read_as_numpy_packs_them() -> None:
    """Byte 0b10000001: the first and the last bit. Confident and right costs nearly nothing."""
    layout = Layout(bits=8)
    objectives = Objectives.fit(layout, _row(0, 0b10000001))
    truth = torch.tensor(np.unpackbits(np.array([0b10000001], np.uint8)), dtype=torch.float32)[None]
    assert float(objectives.loss_sum(50 * (2 * truth - 1), _row(0, 0b10000001))) < 1e-6
    # Undecided: ln 2 for each of eight bits, in the mean ln 2.
    assert float(objectives.loss_sum(torch.zeros(1, 8), _row(0, 0b10000001))) == pytest.approx(math.log(2))


def test_codes_are_learned_in_deviations_and_missing_ones_cost_nothing() -> None:
    """Codes 10 and 30: mean 20, deviation 10, so that they are -1 and 1; a missing one is not among them."""
    layout = Layout(descriptors=1)
    table = torch.cat([_row(0, 10), _row(0, 30), _row(0, MISSING)])
    objectives = Objectives.fit(layout, table)
    assert objectives.mean == (20.0,)
    assert objectives.scale == (10.0,)
    assert objectives.expected == {"descriptors": pytest.approx(2 / 3)}
    terms = objectives.terms(torch.zeros(3, 1), table)["descriptors"]
    # Half the square of one deviation.
    assert terms.tolist() == [0.5, 0.5, 0.0]
    assert objectives.validated(torch.zeros(3, 1), table)["valid"]["descriptors"] == pytest.approx(0.5)
    # The mean over labels is 0.5, whichever rows have them: divided as the loop does, by what it counts as labels.
    counted = objectives.table.counts(table).sum()
    assert counted == 3
    assert float(objectives.loss_sum(torch.zeros(3, 1), table)) / counted == pytest.approx(0.5)


def _slots(*labels: tuple[int, int, int]) -> Tensor:
    """A row of slots: (assay, active, code) each."""
    cells = torch.full((SLOTS, FIELDS), float(MISSING), dtype=torch.float16)
    for place, (assay, active, code) in enumerate(labels):
        cells[place] = torch.tensor([assay % 256, assay // 256, active, code], dtype=torch.float16)
    return torch.cat([torch.zeros(1, dtype=torch.float16), cells.flatten()])[None]


def test_a_bound_costs_nothing_on_the_side_that_it_allows() -> None:
    """Assay 300 measured the mean: as a value, as an upper bound (64 more) and as a lower bound (128 more)."""
    layout = Layout(assays=301)
    for relation, below, above in ((0, 0.5, 0.5), (1, 0.0, 0.5), (2, 0.5, 0.0)):
        table = _slots((300, 1, CENTRE + 64 * relation))
        objectives = Objectives.fit(layout, table)
        for prediction, cost in ((-1.0, below), (1.0, above)):
            output = torch.zeros(1, 602)
            output[0, 601] = prediction
            assert float(objectives.terms(output, table)["values"]) == cost
        # The labels are of assay 300 alone; the output before the values is whether it is active.
        assert float(objectives.terms(output, table)["active"]) == pytest.approx(math.log(2))


def test_rows_that_fill_up_count_nothing_and_get_no_gradient() -> None:
    layout = Layout(bits=8, descriptors=2, answers=1, assays=3, masked=True)
    labels = torch.cat([torch.tensor([0, 129, 7, 200, 1]), _slots((1, 0, CENTRE + 8))[0, 1:]]).half()
    own = torch.stack([labels, labels])
    own[1, 2] = 9.0
    objectives = Objectives.fit(layout, own, hidden=2.0)
    output = torch.randn(3, objectives.out_dim, requires_grad=True)
    filled = torch.cat([own, torch.full((1, layout.columns), torch.nan, dtype=torch.float16)])
    loss = objectives.loss_sum(output, filled)
    assert torch.allclose(loss, objectives.loss_sum(output[:2], own))
    (gradient,) = torch.autograd.grad(loss, output)
    assert (gradient[2] == 0).all()
    assert gradient[0].abs().sum() > 0
    # The model's own loss, its last column, is divided by the two atoms that are hidden in the mean.
    assert float(gradient[0, -1]) == pytest.approx(1 / 2)


def test_weights_and_the_best_epoch() -> None:
    layout, table = Layout(descriptors=1), torch.cat([_row(0, 10), _row(0, 30)])
    plain, double = (Objectives.fit(layout, table, weights={"descriptors": weight}) for weight in (1.0, 2.0))
    output = torch.zeros(2, 1)
    assert float(double.loss_sum(output, table)) == 2 * float(plain.loss_sum(output, table))
    assert plain.is_better(1.0, None)
    assert plain.is_better(1.0, 2.0)
    assert not plain.is_better(2.0, 1.0)
    assert not plain.is_better(math.nan, 1.0)
