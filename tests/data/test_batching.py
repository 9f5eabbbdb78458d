import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.data.batching import BatchingConfig, epoch_steps, evaluation_batches, permutation

STEPS = st.tuples(
    st.lists(st.integers(1, 60), min_size=1, max_size=80),  # tokens of every graph of the data set
    st.integers(1, 9),  # batch_size
    st.sampled_from([0, 1, 40, 200]),  # batch_tokens
    st.integers(1, 5),  # pieces
)


def _train(count: int) -> torch.Tensor:
    """Every other graph trains, so that places and positions differ."""
    return torch.arange(0, count, 2)


@given(STEPS)
def test_an_epoch_is_the_training_set_each_once(case: tuple[list[int], int, int, int]) -> None:
    lengths, size, budget, pieces = case
    tokens, train = torch.tensor(lengths), _train(len(lengths))
    steps = epoch_steps(train, tokens, BatchingConfig(size, budget), seed=1, epoch=2, pieces=pieces)
    assert torch.equal(torch.cat([torch.cat(step) for step in steps]).sort().values, train)
    assert all(len(step) == pieces for step in steps)
    for step in steps:
        places = torch.cat(step)
        if budget:
            assert len(places) == 1 or int(tokens[places].sum()) <= budget
        else:
            assert len(places) == size or step is steps[-1]


@given(STEPS)
def test_pieces_share_a_step_evenly_and_never_change_it(case: tuple[list[int], int, int, int]) -> None:
    lengths, size, budget, pieces = case
    tokens, train, config = torch.tensor(lengths), _train(len(lengths)), BatchingConfig(size, budget)
    one = epoch_steps(train, tokens, config, seed=5, epoch=0, pieces=1)
    many = epoch_steps(train, tokens, config, seed=5, epoch=0, pieces=pieces)
    for (whole,), step in zip(one, many, strict=True):
        assert torch.equal(whole.sort().values, torch.cat(step).sort().values)
        counts = [len(piece) for piece in step]
        weights = [int(tokens[piece].sum()) for piece in step]
        assert max(counts) - min(counts) <= 1
        assert max(weights) - min(weights) <= int(tokens[whole].max())


def test_a_budget_takes_the_longest_run_that_fits() -> None:
    """Worked by hand: runs of 4 + 4, 9 alone (over the budget), 3 + 5, 8."""
    tokens = torch.tensor([4, 4, 9, 3, 5, 8])
    shuffle = permutation(6, 0, 0)
    train = torch.empty(6, dtype=torch.int64)
    train[shuffle] = torch.arange(6)  # undoes the shuffle of this seed and epoch
    steps = epoch_steps(train, tokens, BatchingConfig(64, batch_tokens=8), seed=0, epoch=0, pieces=1)
    assert [step[0].tolist() for step in steps] == [[0, 1], [2], [4, 3], [5]]


def test_pieces_are_dealt_to_and_fro() -> None:
    tokens = torch.tensor([10, 20, 30, 40, 50])
    steps = epoch_steps(torch.arange(5), tokens, BatchingConfig(64), seed=0, epoch=0, pieces=2)
    assert [[piece.tolist() for piece in step] for step in steps] == [[[4, 1, 0], [3, 2]]]


def test_seed_and_epoch_each_change_the_order_and_repeat_it() -> None:
    train, tokens = torch.arange(100), torch.ones(100, dtype=torch.int64)

    def first_step(seed: int, epoch: int) -> list[int]:
        return epoch_steps(train, tokens, BatchingConfig(10), seed=seed, epoch=epoch, pieces=1)[0][0].tolist()

    assert first_step(0, 0) == first_step(0, 0)
    assert len({tuple(first_step(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_an_empty_piece_when_a_step_is_short() -> None:
    (step,) = epoch_steps(
        torch.tensor([7]), torch.ones(8, dtype=torch.int64), BatchingConfig(64), seed=0, epoch=0, pieces=3
    )
    assert [piece.tolist() for piece in step] == [[7], [], []]
    assert all(piece.dtype == torch.int64 for piece in step)


def test_a_million_graphs_take_no_loop() -> None:
    tokens = torch.randint(20, 90, (1_000_000,))
    train = torch.arange(1_000_000)
    for config in (BatchingConfig(batch_size=64), BatchingConfig(64, batch_tokens=4096)):
        best = min(
            _seconds(lambda config=config: epoch_steps(train, tokens, config, seed=0, epoch=1, pieces=2))
            for _ in range(2)
        )
        assert best < 2.5  # 0.4 s alone on one core; a Python loop over the graphs is above 4 s


def _seconds(call: object) -> float:
    assert callable(call)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_permutation_is_fair_and_takes_any_seed() -> None:
    for seed in (0, -1, 2**64 - 1):
        assert torch.equal(permutation(50, seed).sort().values, torch.arange(50))
    assert torch.equal(permutation(50, -1), permutation(50, 2**64 - 1))
    firsts = torch.tensor([int(permutation(5, seed)[0]) for seed in range(2000)])
    assert (torch.bincount(firsts, minlength=5) - 400).abs().max() < 80  # four standard deviations are 72


def test_evaluation_batches_are_sorted_and_within_budget() -> None:
    tokens = torch.tensor([5, 1, 9, 2, 2, 100])
    batches = evaluation_batches(torch.tensor([0, 2, 3, 4, 5]), tokens, max_tokens=9)
    assert [batch.tolist() for batch in batches] == [[3, 4, 0], [2], [5]]
    assert evaluation_batches(torch.tensor([], dtype=torch.int64), tokens) == []


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"batch_tokens": -1}, {"accumulate": 0}])
def test_a_bad_setting_is_named(bad: dict[str, int]) -> None:
    (name,) = bad
    with pytest.raises(ValueError, match=f"{name} is"):
        BatchingConfig(**{"batch_size": 64, **bad})
