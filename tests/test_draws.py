import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.draws import KeyedDraws, chain, chain_of, mix, seed_generators
from tokengt.ragged import Segments


def test_mix_is_splitmix64() -> None:
    """Known outputs of the splitmix64 generator seeded with 0: mix(step), mix(2 step)."""
    step = 0x9E3779B97F4A7C15
    states = [(i * step) % 2**64 for i in (1, 2)]
    signed = torch.tensor([s - 2**64 if s >= 2**63 else s for s in states])
    mixed = [int(x) % 2**64 for x in mix(signed)]
    assert mixed == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_keyed_normals_are_standard_and_independent() -> None:
    segments = Segments.from_lengths(torch.tensor([20_000]))
    x = KeyedDraws(torch.tensor([7])).normal(segments, 4)
    assert x.mean(0).abs().max() < 0.03
    assert (x.T @ x / len(x) - torch.eye(4, dtype=x.dtype)).abs().max() < 0.04
    assert abs(float((x**4).mean()) - 3) < 0.1


def test_keyed_draws_know_only_their_own_segment() -> None:
    keys = torch.tensor([3, 5])
    both = KeyedDraws(keys).normal(Segments.from_lengths(torch.tensor([4, 6])), 3)
    alone = KeyedDraws(keys[1:]).normal(Segments.from_lengths(torch.tensor([6])), 3)
    assert torch.equal(both[4:], alone)
    assert not torch.allclose(both[:4], both[4:8])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_a_chain_of_numbers_is_that_of_a_column(numbers: list[int]) -> None:
    assert chain_of(*numbers) == int(chain(torch.tensor([[number] for number in numbers])))


def test_seeding_for_a_cpu_is_torchs_own() -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(2**63 - 25)
        expected = torch.rand(3)
        seed_generators(2**63 - 25, torch.device("cpu"))
        assert torch.equal(torch.rand(3), expected)
