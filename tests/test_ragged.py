from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.ragged import (
    Bucket,
    Segments,
    _TakeRows,
    interleave,
    into_buckets,
    out_of_buckets,
    searched_ids,
    segment_sum,
    take_rows,
)

lengths = st.lists(st.integers(0, 30), min_size=1, max_size=40)


def segments_of(values: list[int]) -> Segments:
    return Segments.from_lengths(torch.tensor(values))


def test_offsets_ids_and_positions_by_hand() -> None:
    segments = segments_of([2, 0, 3])
    assert segments.host.tolist() == [0, 2, 2, 5]
    assert segments.ids.tolist() == [0, 0, 2, 2, 2]
    assert segments.positions.tolist() == [0, 1, 0, 1, 2]
    assert (segments.count, segments.total, segments.max_length) == (3, 5, 3)


def test_take_repeats_and_reorders() -> None:
    rows, taken = segments_of([2, 1, 3]).take(torch.tensor([2, 0, 2]))
    assert rows.tolist() == [3, 4, 5, 0, 1, 3, 4, 5]
    assert taken.host.tolist() == [0, 3, 5, 8]


def test_interleave_by_hand() -> None:
    together, (first, second) = interleave([segments_of([1, 2]), segments_of([2, 0])])
    assert together.host.tolist() == [0, 3, 5]
    assert first.tolist() == [0, 3, 4]
    assert second.tolist() == [1, 2]


@given(lengths)
def test_buckets_hold_every_row_once_and_little_padding(values: list[int]) -> None:
    segments = segments_of(values)
    flat = []
    for bucket in segments.buckets:
        mask = torch.ones_like(bucket.rows, dtype=torch.bool) if bucket.mask is None else bucket.mask
        assert mask.float().mean() >= 0.8 or bucket.rows.shape[1] < 8
        flat.append(bucket.rows.flatten())
    if flat:
        assert torch.equal(torch.cat(flat)[segments.from_buckets], torch.arange(segments.total))
    shapes = [tuple(bucket.rows.shape) for bucket in segments.buckets]
    assert sum(count for count, _ in shapes) == sum(length > 0 for length in values) or shapes == [(1, 0)]


@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=20))
def test_taken_rows_have_the_gradient_of_a_gather(count: int, places: list[int]) -> None:
    """Sorted and added up segment by segment, as on a GPU, where index_select has other last bits every time."""
    values = torch.randn(count, 3, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([place % count for place in places], dtype=torch.int64)
    weights = torch.randn(len(index), 3, dtype=torch.float64)
    taken = _TakeRows.apply(values, index)  # type: ignore[no-untyped-call]
    assert torch.equal(taken, take_rows(values, index))
    (found,) = torch.autograd.grad(taken, values, weights)
    (expected,) = torch.autograd.grad(values.index_select(0, index), values, weights)
    assert torch.allclose(found, expected, atol=1e-14)


@given(lengths)
def test_segment_sum_is_a_loop(values: list[int]) -> None:
    segments = segments_of(values)
    rows = torch.randn(segments.total, 3, dtype=torch.float64)
    parts = [part.sum(0) for part in rows.split(values)]
    assert torch.allclose(segment_sum(rows, segments), torch.stack(parts), atol=1e-14)


@given(lengths, st.booleans(), st.integers(1, 20))
def test_rows_go_into_buckets_and_come_back(values: list[int], ordered: bool, repeats: int) -> None:
    values = sorted(values * repeats) if ordered else values * repeats
    segments = Segments.from_lengths(torch.tensor(values, dtype=torch.int64))
    rows = torch.randn(segments.total, 2, 3, dtype=torch.float64, requires_grad=True)
    parts = into_buckets(rows, segments)
    for part, bucket in zip(parts, segments.buckets, strict=True):
        assert part.shape[:2] == bucket.rows.shape
        assert torch.equal(part[bucket.mask] if bucket.mask is not None else part.flatten(0, 1), rows[_real(bucket)])
    back = out_of_buckets(parts, segments)
    assert torch.equal(back, rows)
    (gradient,) = torch.autograd.grad((back * rows.detach()).sum(), rows)
    assert torch.equal(gradient, rows)


def _real(bucket: Bucket) -> torch.Tensor:
    return bucket.rows.flatten() if bucket.mask is None else bucket.rows[bucket.mask]


def test_neighbours_of_equal_length_stay_where_they_are() -> None:
    segments = Segments.from_lengths(torch.tensor([2] * 9 + [0] + [5] * 7))
    rows = torch.randn(segments.total, 3)
    parts = into_buckets(rows, segments)
    assert [tuple(part.shape) for part in parts] == [(9, 2, 3), (7, 5, 3)]
    assert parts[1].data_ptr() == rows[18].data_ptr()
    assert all(bucket.mask is None for bucket in segments.buckets)
    assert not Segments.from_lengths(torch.tensor([44, 44, 30, 30] * 8)).in_order
    shuffled = Segments.from_lengths(torch.tensor([2, 5] * 8))
    assert not shuffled.in_order
    assert into_buckets(torch.randn(shuffled.total, 3), shuffled)[0].shape == (8, 2, 3)


@given(st.lists(st.integers(0, 5), max_size=20))
def test_ids_by_search_are_the_same(lengths: list[int]) -> None:
    segments = Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64))
    assert torch.equal(searched_ids(segments.offsets, segments.total), segments.ids)


@given(st.lists(st.integers(0, 5), max_size=20), st.randoms())
def test_rows_go_where_their_segment_begins(lengths: list[int], random: Random) -> None:
    segments = Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64))
    starts = [random.randrange(1000) for _ in lengths]
    expected = [start + place for start, length in zip(starts, lengths, strict=True) for place in range(length)]
    assert segments.placed(torch.tensor(starts, dtype=torch.int64)).tolist() == expected
