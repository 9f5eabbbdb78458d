"""The benchmark of one large graph: its fit, and the promise that a million tokens train on a CPU in 8 GiB."""

import argparse

import pytest

from tests.bench.scripts import script

large = script("large_graphs")


def test_the_line_of_costs_on_a_line_is_that_line() -> None:
    line = large.fitted([10, 100, 1000], [2.5 + 0.25 * tokens for tokens in (10, 100, 1000)])
    assert (line.start, line.slope) == (pytest.approx(2.5), pytest.approx(0.25))
    assert line.off < 1e-12
    # A cost that grows with the square of tokens is off by far, wherever the line lies.
    assert large.fitted([10, 100, 1000], [tokens**2 for tokens in (10, 100, 1000)]).off > 0.5


def test_a_graph_has_so_many_tokens_and_a_step_is_measured() -> None:
    batch = large.random_graph(1000, "cpu")
    assert 1 + batch.num_nodes + batch.num_edges == 1000
    found = large.measured(1000, 16, True, "cpu", 1)
    assert found["seconds"] > 0
    assert found["memory_gib"] >= found["before_gib"] > 0


@pytest.mark.slow
def test_a_million_tokens_take_less_than_8_gib_and_costs_lie_on_a_line() -> None:
    options = argparse.Namespace(width=64, device="cpu", rounds=1, recompute=True)
    rows = [large.apart(tokens, options) for tokens in (10_000, 100_000, 1_000_000)]
    assert rows[-1]["memory_gib"] < 8
    found = large.report(rows, options)
    print(large.told(found))
    assert found["lines"]["memory_gib"]["off"] < 0.15
    assert found["lines"]["seconds"]["off"] < 0.35
