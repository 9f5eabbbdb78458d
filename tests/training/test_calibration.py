"""What is saved of a calibration is what was fitted, belongs to its run, and no byte of it changes unnoticed."""

from pathlib import Path

import numpy as np
import pytest

from tokengt.data.cells import LARGEST_FLOAT32
from tokengt.training.calibration import ARRAYS, CALIBRATION, Calibration, read_calibration, write_calibration
from tokengt.training.conformal import Conformal
from tokengt.training.difficulty import Signs
from tokengt.training.neighbours import Described, Known
from tokengt.training.probabilities import ProbabilityMap
from tokengt.training.tasks import Task

TASK = Task("regression", ("y", "z"), None, (0.0, 1.0), (1.0, 2.0))


@pytest.fixture
def calibration() -> Calibration:
    draw = np.random.default_rng(0)
    described = Described(draw.integers(0, 256, (60, 256), dtype=np.uint8), draw.normal(size=(60, 5)))
    known = Known.of(described, draw.normal(size=(60, 2)), 0)
    predictions, errors = draw.normal(size=(50, 2)), draw.normal(size=(50, 2))
    errors[:7, 1] = np.nan
    signs = Signs.of(predictions, np.array(TASK.mean), np.array(TASK.scale), known.look(described.take(slice(50))))
    return Calibration(Conformal.fit(signs, errors), ProbabilityMap(np.array([0.5]), np.array([0.1])), known)


def asked() -> tuple[np.ndarray, Described]:
    draw = np.random.default_rng(1)
    return draw.normal(size=(9, 2)), Described(
        draw.integers(0, 256, (9, 256), dtype=np.uint8), draw.normal(size=(9, 5))
    )


def test_what_is_read_says_what_was_written(calibration: Calibration, tmp_path: Path) -> None:
    sealed = write_calibration(tmp_path, calibration, "run")
    again = read_calibration(tmp_path, "run", sealed)
    predictions, described = asked()
    before, after = (each.trust(TASK, predictions, described, None, 0.9) for each in (calibration, again))
    assert before.similarity is not None
    assert np.array_equal(before.similarity, after.similarity)
    assert np.array_equal(before.unlike, after.unlike)
    # Vectors and labels are kept in half and single precision.
    for name in ("low", "high", "distance"):
        assert np.allclose(getattr(before, name), getattr(after, name), rtol=2e-3, atol=2e-3)
    assert np.array_equal(calibration.probabilities(np.array([[0.2]])), again.probabilities(np.array([[0.2]])))
    # The same calibration gives the same bytes.
    content = (tmp_path / ARRAYS).read_bytes()
    assert write_calibration(tmp_path, calibration, "run") == sealed
    assert (tmp_path / ARRAYS).read_bytes() == content


def test_labels_beyond_float32_are_kept_without_a_warning(tmp_path: Path) -> None:
    """A slip of the pen, 3e39, in a label: a person saw a warning of NumPy in the middle of a training."""
    bits = np.arange(4 * 256, dtype=np.uint8).reshape(4, 256)
    known = Known.of(Described(bits, None), np.array([[1.0], [3e39], [-3e39], [np.nan]]), 0)
    again = read_calibration(tmp_path, "run", write_calibration(tmp_path, Calibration(known=known), "run"))
    assert again.known is not None
    assert again.known.labels[:, 0].tolist()[:3] == [1.0, LARGEST_FLOAT32, -LARGEST_FLOAT32]
    assert np.isnan(again.known.labels[3, 0])


def test_a_changed_or_foreign_calibration_is_refused_by_name(calibration: Calibration, tmp_path: Path) -> None:
    sealed = write_calibration(tmp_path, calibration, "run")
    with pytest.raises(ValueError, match=r"calibration.json belongs to another run"):
        read_calibration(tmp_path, "other", sealed)
    arrays = (tmp_path / ARRAYS).read_bytes()
    (tmp_path / ARRAYS).write_bytes(arrays[:-1] + b"?")
    with pytest.raises(ValueError, match=r"calibration.safetensors does not match its checksum"):
        read_calibration(tmp_path, "run", sealed)
    (tmp_path / ARRAYS).unlink()
    with pytest.raises(ValueError, match=r"calibration.safetensors is missing"):
        read_calibration(tmp_path, "run", sealed)
    (tmp_path / ARRAYS).write_bytes(arrays)
    told = (tmp_path / CALIBRATION).read_text()
    (tmp_path / CALIBRATION).write_text(told.replace("prediction", "predictions"))
    with pytest.raises(ValueError, match=r"calibration.json is not the one that the run was finished with"):
        read_calibration(tmp_path, "run", sealed)


def test_a_run_without_one_says_so(tmp_path: Path) -> None:
    none = read_calibration(tmp_path, "run", None)
    assert none.probabilities(np.array([[0.3]])).tolist() == [[0.3]]
    with pytest.raises(ValueError, match="this run has no intervals"):
        none.check_interval(TASK, 0.9)
    with pytest.raises(ValueError, match=r"an interval is for numbers; this run predicts y \(binary\)"):
        none.check_interval(Task("binary", ("y",)), 0.9)


def test_a_level_that_needs_more_labels_is_refused_with_their_number(calibration: Calibration) -> None:
    calibration.check_interval(TASK, 0.97)
    with pytest.raises(ValueError, match=r"an interval of 0.99 needs 99 labels of 'y' .*; this run had 50"):
        calibration.check_interval(TASK, 0.99)


def test_intervals_lie_around_the_prediction_and_grow_with_the_level(calibration: Calibration) -> None:
    predictions, described = asked()
    widths = []
    for level in (0.5, 0.8, 0.9):
        trust = calibration.trust(TASK, predictions, described, None, level)
        assert trust.low is not None
        assert trust.high is not None
        assert np.allclose((trust.low + trust.high) / 2, predictions)
        widths.append(trust.high - trust.low)
    assert (widths[0] < widths[1]).all()
    assert (widths[1] < widths[2]).all()
    neighbours = calibration.trust(TASK, predictions, described, None, None)
    assert neighbours.low is None
    assert neighbours.unlike is not None
