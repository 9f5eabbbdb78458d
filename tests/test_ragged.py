import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.ragged import Segments, interleave, segment_sum

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
    assert sum(len(bucket.rows) for bucket in segments.buckets) == sum(length > 0 for length in values)


@given(lengths)
def test_segment_sum_is_a_loop(values: list[int]) -> None:
    segments = segments_of(values)
    rows = torch.randn(segments.total, 3, dtype=torch.float64)
    parts = [part.sum(0) for part in rows.split(values)]
    assert torch.allclose(segment_sum(rows, segments), torch.stack(parts), atol=1e-14)
