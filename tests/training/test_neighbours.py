"""Similarities and distances by hand and against loops; who is unlike anything trained on."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.interop.molecules import pack_molecules
from tokengt.interop.smiles import batch_of_molecules
from tokengt.training import neighbours
from tokengt.training.neighbours import BITS, Described, Known, bits_of, sampled


def packed(*rows: list[int]) -> np.ndarray:
    bits = np.zeros((len(rows), BITS), dtype=np.uint8)
    for place, row in enumerate(rows):
        bits[place, row] = 1
    return np.packbits(bits, axis=1)


def known(bits: np.ndarray | None, vectors: np.ndarray | None, labels: np.ndarray) -> Known:
    return Known.of(Described(bits, vectors), labels, seed=0)


def test_similarity_by_hand() -> None:
    training = known(packed([0, 1, 2, 3], [4, 5]), None, np.array([[1.0], [3.0]]))
    near = training.look(Described(packed([2, 3, 4], [9], [4, 5]), None))
    # 2 of 5, 1 of 4; nothing in common; the same.
    assert near.similarity.tolist() == [2 / 5, 0.0, 1.0]
    assert near.similar.tolist() == [(2 / 5 + 1 / 4) / 2, 0.0, 0.5]
    assert near.by_bits.mean.tolist() == [[2.0]] * 3
    assert near.by_bits.std.tolist() == [[1.0]] * 3
    assert np.isnan(near.distance).all()
    assert np.isnan(near.by_vectors.mean).all()


def test_distance_by_hand() -> None:
    # Deviations of the two numbers are 1 and 2: a step of one deviation in one of them is a distance of sqrt(1/2).
    vectors = np.array([[-1.0, -2.0], [1.0, -2.0], [-1.0, 2.0], [1.0, 2.0]])
    training = known(None, vectors, np.zeros((4, 1)))
    assert training.scale.tolist() == [1.0, 2.0]
    near = training.look(Described(None, vectors[:1]))
    to_all = [0.0, np.sqrt(4 / 2), np.sqrt(4 / 2), np.sqrt(8 / 2)]
    assert near.distance[0] * training.usual.unit == pytest.approx(np.mean(to_all))
    # Each without itself: the three others, for all four of them.
    assert training.usual.unit == pytest.approx(np.mean(to_all[1:]))


@given(st.integers(1, 30), st.integers(0, 9), st.integers(0, 2**31))
def test_neighbours_are_those_of_a_loop(rows: int, asked: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    bits, more = (draw.random((count, 64)) < 0.3 for count in (rows, asked))
    labels = np.where(draw.random((rows, 2)) < 0.3, np.nan, draw.normal(size=(rows, 2)))
    training = known(np.packbits(bits, axis=1), None, labels)
    near = training.look(Described(np.packbits(more, axis=1), None))
    for place, row in enumerate(more):
        similar = np.array([(row & own).sum() / max((row | own).sum(), 1) for own in bits])
        assert near.similarity[place] == pytest.approx(similar.max())
        assert near.similar[place] == pytest.approx(np.sort(similar)[::-1][:5].mean())
        for target in range(2):
            labelled = np.flatnonzero(~np.isnan(labels[:, target]))
            if len(labelled) <= 5:
                wanted = labels[labelled, target].mean() if len(labelled) else np.nan
                assert near.by_bits.mean[place, target] == pytest.approx(wanted, nan_ok=True)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    bits, vectors = draw.integers(0, 256, (50, 16), dtype=np.uint8), draw.normal(size=(50, 3))
    training = known(bits, vectors, draw.normal(size=(50, 1)))
    whole = training.look(Described(bits, vectors))
    monkeypatch.setattr(neighbours, "_CHUNK", 7)
    parts = training.look(Described(bits, vectors))
    assert np.array_equal(whole.similar, parts.similar)
    assert np.allclose(whole.distance, parts.distance)
    assert np.array_equal(whole.by_vectors.mean, parts.by_vectors.mean)


def test_what_is_far_from_everything_is_unlike_it() -> None:
    draw = np.random.default_rng(0)
    bits = packed(*([*draw.choice(40, 12, replace=False)] for _ in range(300)))
    training = known(bits, draw.normal(size=(300, 4)), np.zeros((300, 1)))
    like, far = Described(bits[:5], np.zeros((5, 4))), Described(packed([900, 901]), np.full((1, 4), 50.0))
    assert not training.unlike(training.look(like)).any()
    assert training.unlike(training.look(far)).all()
    # One way alone is enough: usual groups of atoms in an unusual molecule, or the other way round.
    for each in (Described(bits[:1], far.vectors), Described(far.bits, np.zeros((1, 4)))):
        assert training.unlike(training.look(each)).all()
    # Of new rows like those of training, about one in fifty is called unlike: one in a hundred each way.
    alike = packed(*([*draw.choice(40, 12, replace=False)] for _ in range(1000)))
    share = training.unlike(training.look(Described(alike, draw.normal(size=(1000, 4))))).mean()
    assert 0.002 < share < 0.06


def test_odd_numbers_of_training_graphs() -> None:
    for count in (0, 1, 2):
        training = known(packed(*([place] for place in range(count))), np.ones((count, 2)), np.zeros((count, 1)))
        assert np.isfinite(training.usual.unit)
        if count:
            near = training.look(Described(packed([0]), np.ones((1, 2))))
            assert near.similarity.tolist() == [1.0]
            assert not training.unlike(near).any()


def test_bits_of_molecules_leave_stereo_aside() -> None:
    graphs = batch_of_molecules(pack_molecules(["C[C@H](N)O", "C[C@@H](N)O", "CC(N)O", "CCO", "F/C=C/F", "F/C=C\\F"]))
    flat, full = bits_of(graphs, molecules=True), bits_of(graphs, molecules=False)
    assert flat is not None
    assert full is not None
    assert np.array_equal(flat[0], flat[1])
    assert np.array_equal(flat[0], flat[2])
    assert np.array_equal(flat[4], flat[5])
    assert not np.array_equal(flat[0], flat[3])
    assert not np.array_equal(full[0], full[1])
    # What is written to the copy is not written to the graphs.
    assert np.array_equal(full, bits_of(graphs, molecules=False))


def test_a_sample_is_drawn_by_its_seed() -> None:
    places = torch.arange(100, 200)
    some = sampled(places, 0, 10)
    assert len(some) == 10
    assert set(some.tolist()) <= set(places.tolist())
    assert some.tolist() == sorted(some.tolist())
    assert torch.equal(some, sampled(places, 0, 10))
    assert not torch.equal(some, sampled(places, 1, 10))
    assert torch.equal(sampled(places, 0, 100), places)
