"""Batches that are filled up to a frame: what they hold of their own graphs, and which frame a step gets."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.graphs import graphs, hypergraph, odd_graphs, random_graph, small_model, tokens_config
from tokengt import Graph, GraphBatch, HeadConfig, StructureConfig
from tokengt.data.frames import Frames, Placement, can_be_framed, framed, row_kinds
from tokengt.level import Level
from tokengt.structure.facts import with_facts
from tokengt.structure.tuples import with_merged_edges


def symmetric_graphs() -> list[Graph]:
    """Odd graphs whose edges can be merged: one node, no edges, self-loops, repeated and one-way edges, two parts."""
    simple = [random_graph(nodes, edges, nodes, undirected=True) for nodes, edges in ((1, 0), (6, 0), (5, 6), (9, 12))]
    return [
        *simple,
        with_edges(2, [[0, 1], [0, 1]]),
        with_edges(3, [[0, 0, 1, 1], [1, 1, 0, 0]]),
        with_edges(6, [[0, 1, 3, 4], [1, 0, 4, 3]]),
        with_edges(4, [[0, 2], [1, 3]]),
    ]


def with_edges(nodes: int, index: list[list[int]]) -> Graph:
    return Graph(random_graph(nodes, 0, nodes).node_features, torch.tensor(index), torch.ones(len(index[0]), 3))


def collated(listed: list[Graph], *, merged: bool) -> GraphBatch:
    """The graphs with a fact of every graph, node and edge, and with that of their undirected edges."""
    batch = GraphBatch.collate(listed)
    for per in ("graph", "node", "edge"):
        batch = batch.with_fact(per, torch.randn(batch.fact_rows(per), 3, dtype=torch.float64), per)  # type: ignore[arg-type]
    return with_merged_edges(batch) if merged else batch


def cut_up(places: list[int], sizes: list[int]) -> list[Tensor]:
    """Steps of these sizes, over and over, until all places are used."""
    steps, begin = [], 0
    while begin < len(places):
        size = sizes[len(steps) % len(sizes)]
        steps.append(torch.tensor(places[begin : begin + size]))
        begin += size
    return steps


def place(frames: Frames, step: Tensor, seen: Tensor | None = None) -> Placement:
    """The step in its frame. The host has the numbers of the step that was ``seen`` first, as a recording has."""
    frame = frames.frame(frames.levels([step])[0])
    row, example = (frames.fill(frame, [of]).numbers[0] for of in (step, step if seen is None else seen))
    return Placement(frame, torch.from_numpy(row), torch.from_numpy(example))


def begins_with(found: Tensor | None, expected: Tensor | None) -> bool:
    if found is None or expected is None:
        return found is expected
    return torch.equal(found[: len(expected)], expected)


def assert_begins_with(batch: GraphBatch, expected: GraphBatch) -> None:
    """The graphs that come first are those of ``expected``, with all that is known of them."""
    nodes, edges = expected.num_nodes, expected.num_edges
    assert begins_with(batch.nodes.lengths, expected.nodes.lengths)
    assert begins_with(batch.edges.lengths, expected.edges.lengths)
    for name in ("node_features", "edge_features", "graph_features"):
        assert begins_with(getattr(batch, name), getattr(expected, name))
    assert begins_with(batch.edge_index.T, expected.edge_index.T)
    for per, count in (("graph", batch.num_graphs), ("node", batch.num_nodes), ("edge", batch.num_edges)):
        fact = batch.fact(per)
        assert fact is not None
        assert len(fact) == count
        assert begins_with(fact, expected.fact(per))
    # What fills points at rows that exist; at the last one where no row of that kind fills.
    filling = batch.edge_index[:, edges:].flatten().tolist()
    assert all(min(nodes, batch.num_nodes - 1) <= node < batch.num_nodes for node in filling)
    assert (batch.merged is None) == (expected.merged is None)
    if batch.merged is not None and expected.merged is not None:
        assert begins_with(batch.merged.segments.lengths, expected.merged.segments.lengths)
        assert begins_with(batch.merged.first, expected.merged.first)
        assert begins_with(batch.merged.of_edge, expected.merged.of_edge)
        undirected = batch.merged.segments.total
        filling = batch.merged.first[expected.merged.segments.total :].tolist()
        assert all(min(edges, batch.num_edges - 1) <= edge < batch.num_edges for edge in filling)
        assert all(0 <= owner < undirected for owner in batch.merged.of_edge.tolist())


def assert_holds_its_steps(batch: GraphBatch, steps: list[Tensor]) -> None:
    frames = Frames(row_kinds(batch), steps)
    for step in steps:
        placed = place(frames, step)
        found, rows, own = framed(batch, placed, "graph")
        assert (found.num_graphs, found.num_nodes, found.num_edges) == (placed.frame.graphs, *placed.frame.rows[:2])
        assert_begins_with(found, batch.select(step))
        assert torch.equal(rows[own], step)
        assert torch.equal(own.nonzero().flatten(), torch.arange(len(step)))
        for level, segments in (("node", batch.nodes), ("edge", batch.edges)):
            _, rows, own = framed(batch, placed, level)  # type: ignore[arg-type]
            assert torch.equal(rows[own], segments.take(step)[0])
            assert torch.equal(own.nonzero().flatten(), torch.arange(int(own.sum())))


ORDERS = st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 2**16))


@given(st.lists(graphs(), max_size=8), ORDERS)
def test_a_framed_batch_holds_what_select_gives(more: list[Graph], order: tuple[list[int], int]) -> None:
    """Odd graphs, some others, and one that is far larger than the rest."""
    batch = collated([*odd_graphs(), *more, random_graph(70, 200, 99)], merged=False)
    assert_holds_its_steps(batch, steps_of(len(batch), *order))


@given(st.lists(st.tuples(st.integers(2, 9), st.integers(0, 12)), max_size=8), ORDERS)
def test_merged_edges_are_framed_too(more: list[tuple[int, int]], order: tuple[list[int], int]) -> None:
    others = [random_graph(*size, seed, undirected=True) for seed, size in enumerate(more)]
    batch = collated([*symmetric_graphs(), *others, random_graph(70, 100, 99, undirected=True)], merged=True)
    assert_holds_its_steps(batch, steps_of(len(batch), *order))


def steps_of(count: int, sizes: list[int], seed: int) -> list[Tensor]:
    return cut_up(torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist(), sizes)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    "listed",
    [
        [random_graph(1, 0, 1)],
        [random_graph(3, 0, seed) for seed in range(9)],
        [random_graph(1, 0, 0), *[random_graph(2, 1, seed, undirected=True) for seed in range(8)]],
        [random_graph(30, 40, 0, undirected=True)],
    ],
    ids=["a node", "no edges", "few edges", "one graph"],
)
@pytest.mark.parametrize("size", [1, 4, 100])
def test_data_with_next_to_nothing(listed: list[Graph], merged: bool, size: int) -> None:
    batch = collated(listed, merged=merged)
    assert_holds_its_steps(batch, cut_up(list(range(len(batch))), [size]))


def test_extras_stay_behind_and_descriptors_come_along() -> None:
    listed = [random_graph(3, 2, seed) for seed in range(6)]
    batch = collated(listed, merged=False).with_graph_features(torch.randn(6, 2))
    assert_holds_its_steps(batch, cut_up([4, 1, 0, 5, 2, 3], [4]))
    noted = GraphBatch.collate([Graph(g.node_features, g.edge_index, g.edge_features, extras={"y": 1}) for g in listed])
    assert noted.extras
    assert can_be_framed(noted)
    found, _, _ = framed(noted, place(Frames(row_kinds(noted), [torch.arange(6)]), torch.arange(6)), "graph")
    assert found.extras == ()


def test_the_host_reads_only_the_sizes_of_its_example() -> None:
    """A recording was made when the host saw another step of the frame: none of that one's numbers may be in it."""
    batch = collated(symmetric_graphs() * 4, merged=True)
    steps = steps_of(len(batch), [8], 5)
    frames = Frames(row_kinds(batch), steps)
    assert len(set(frames.levels(steps))) < len(steps)
    for step in steps:
        for other in steps:
            if frames.levels([step]) != frames.levels([other]):
                continue
            for level in ("graph", "node", "edge"):
                one, two = (framed(batch, place(frames, step, seen), level) for seen in (None, other))  # type: ignore[arg-type]
                assert torch.equal(one[1], two[1])
                assert torch.equal(one[2], two[2])
                assert_begins_with(two[0], batch.select(step))
                assert torch.equal(one[0].edge_index, two[0].edge_index)


@pytest.mark.parametrize("layout", ["directed", "undirected"])
@pytest.mark.parametrize("level", ["graph", "node", "edge"])
@pytest.mark.parametrize("size", [1, 4, 9])
@pytest.mark.parametrize("structure", [StructureConfig(), StructureConfig(walks=4, eigenpairs=3, degree=True)], ids=str)
def test_a_model_computes_the_same_for_framed_graphs(
    layout: Any, level: Level, size: int, structure: StructureConfig
) -> None:
    """In float64, with eigenvectors and other facts that are known; whatever fills the frame up."""
    tokens, head = tokens_config(layout=layout), HeadConfig(level=level, out_dim=2)
    model = small_model(tokens=tokens, head=head, structure=structure, dtype=torch.float64)
    batch = GraphBatch.collate([*symmetric_graphs(), random_graph(40, 60, 98, undirected=True)])
    batch = model.prepared(with_facts(batch, model.config.facts()))
    steps = cut_up([*range(len(batch)), *range(0, len(batch), 2)], [size])
    frames = Frames(row_kinds(batch), steps)
    for step in steps:
        found, rows, own = framed(batch, place(frames, step), level)
        output, expected = model(found), model(batch.select(step))
        assert bool(torch.isfinite(output).all())
        assert len(output) == len(rows)
        torch.testing.assert_close(output[own], expected, rtol=1e-9, atol=1e-9)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 6), st.integers(0, 100))
def test_a_step_has_its_frame_whatever_steps_it_comes_with(sizes: list[int], each: int, seed: int) -> None:
    """So that a resumed run, which works out other steps at once, computes with the same frames."""
    batch = GraphBatch.collate([random_graph(size, 2 * size, size) for size in sizes])
    steps = steps_of(len(batch), [each], seed)
    frames = Frames(row_kinds(batch), steps)
    levels = frames.levels(steps)
    assert levels == [frames.levels([step])[0] for step in steps]
    assert frames.levels(steps[::-1]) == levels[::-1]
    by_level: dict[int, list[Tensor]] = {}
    for step, level in zip(steps, levels, strict=True):
        by_level.setdefault(level, []).append(step)
    for level, some in by_level.items():
        frame = frames.frame(level)
        together = frames.fill(frame, some)
        alone = [frames.fill(frame, [step]).numbers for step in some]
        assert np.array_equal(together.numbers, np.concatenate(alone))
        # Every row of the frame is given to a graph, and every graph has as many rows as it is long.
        assert (together.offsets[:, :, -1] == np.array(frame.rows)[:, None]).all()
        assert (np.diff(together.offsets, axis=2) >= 0).all()
        for number, step in enumerate(some):
            assert together.totals[number].tolist() == [
                len(step),
                int(batch.nodes.host_lengths[step].sum()),
                int(batch.edges.host_lengths[step].sum()),
            ]


def test_frames_are_few_and_close() -> None:
    """Of 200 steps of 64 graphs, which vary by a few percent, most share a handful of frames."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(10, 31, (12_800,), generator=generator).tolist()
    nodes = [Graph(num_nodes=size) for size in sizes]
    batch = GraphBatch.collate(nodes)
    steps = steps_of(len(batch), [64], 1)
    frames = Frames(row_kinds(batch), steps)
    levels = frames.levels(steps)
    assert len(set(levels)) <= 8
    filled = [frames.frame(level).rows[0] for level in levels]
    own = [int(batch.nodes.host_lengths[step].sum()) for step in steps]
    assert sum(filled) / sum(own) < 1.06
    # A step that is far smaller than usual, such as the last of an epoch, shares the frame of small ones.
    assert frames.levels([torch.tensor([3]), torch.arange(5)]) == [0, 0]
    assert frames.frame(0).rows[1] == 0  # There is no edge anywhere.


def test_graphs_that_fill_are_like_the_others() -> None:
    """None is much longer than the rest, for which attention would need another tile, or a loop."""
    batch = GraphBatch.collate([random_graph(20, 40, seed) for seed in range(256)])
    steps = steps_of(256, [64], 0)
    frames = Frames(row_kinds(batch), steps)
    filled = frames.fill(frames.frame(frames.levels(steps)[0]), steps)
    lengths = np.diff(filled.offsets.sum(0), axis=1)
    assert lengths[:, 64:].max() <= 2 * 60


def test_what_cannot_be_framed() -> None:
    plain = GraphBatch.collate([random_graph(3, 2)])
    assert can_be_framed(plain)
    assert can_be_framed(plain.with_fact("rows", torch.zeros(3, 1)))
    assert can_be_framed(plain.with_fact("rows", torch.zeros(2, 1), per="edge"))
    assert not can_be_framed(plain.with_fact("pairs", torch.zeros(9, 1), per="pair"))
    assert not can_be_framed(GraphBatch.collate([hypergraph()]))
