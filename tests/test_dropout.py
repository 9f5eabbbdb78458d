import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokengt.dropout import Dropout, hashed_dropout, keep_mask


def mask(seed: int, rows: int = 400, columns: int = 300, rate: float = 0.1) -> torch.Tensor:
    return keep_mask(torch.tensor(seed), rows, columns, rate)


@settings(max_examples=25)
@given(st.integers(0, 2**62 - 1), st.sampled_from([0.01, 0.1, 0.5, 0.9]))
def test_as_many_are_dropped_as_asked_for(seed: int, rate: float) -> None:
    """Within six standard deviations: of all, of every row and of every column."""
    dropped = ~mask(seed, rate=rate)
    for share in (dropped.double().mean(), *(dropped.double().mean(axis) for axis in (0, 1))):
        count = dropped.numel() / max(1, share.numel())
        assert float((share - rate).abs().max()) < 6 * (rate * (1 - rate) / count) ** 0.5 + 1 / count


def test_neighbours_and_seeds_are_independent() -> None:
    """Correlations of 120,000 places: below five standard deviations."""
    limit = 5 / 120_000**0.5
    first = mask(7, rate=0.5).double() - 0.5
    pairs = [(first[1:], first[:-1]), (first[:, 1:], first[:, :-1]), (first[2:], first[:-2])]
    pairs.append((first[:, :150], first[:, 150:]))  # two of one word
    pairs += [(first, mask(7 ^ (1 << bit), rate=0.5).double() - 0.5) for bit in range(62)]
    for one, other in pairs:
        assert abs(float((one * other).mean())) * 4 < limit


def test_other_seeds_do_not_move_the_same_mask() -> None:
    """A row of one mask is found nowhere in another."""
    first, second = mask(1, 64, 64, 0.5).flatten().tolist(), mask(2, 64, 64, 0.5).flatten().tolist()
    places = {tuple(second[i : i + 40]) for i in range(len(second) - 40)}
    assert not any(tuple(first[i : i + 40]) in places for i in range(len(first) - 40))


def test_an_uncompiled_layer_is_nn_dropout() -> None:
    x = torch.randn(50, 8)
    layer = Dropout(0.3)
    torch.manual_seed(1)
    dropped = layer(x)
    torch.manual_seed(1)
    assert torch.equal(dropped, torch.nn.functional.dropout(x, 0.3))
    assert torch.equal(layer.eval()(x), x)
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("rate", [0.0, 0.999999, 1 - 2.0**-34])
def test_ends_of_the_range(rate: float) -> None:
    assert mask(3, rate=rate).double().mean() == pytest.approx(1 - rate, abs=1e-4)


def test_what_is_kept_is_rescaled_and_so_is_its_gradient() -> None:
    """Of any shape, rows counted through."""
    x = torch.randn(5, 80, 300, dtype=torch.float64, requires_grad=True)
    out = hashed_dropout(x, 0.25, torch.tensor(9))
    keep = mask(9, rate=0.25).view(5, 80, 300)
    assert torch.equal(out, torch.where(keep, x / 0.75, 0.0))
    assert float(hashed_dropout(torch.ones(400, 300), 0.25, torch.tensor(9)).mean()) == pytest.approx(1, abs=0.01)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, keep.double() / 0.75)
