from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from tokengt.data.tensorfile import TensorStream, narrowed, widest, write_tensors
from tokengt.files import checksum


def arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "b": generator.integers(0, 255, (7, 3)).astype(np.uint8),
        "a": generator.standard_normal((5, 2)),
        "c": np.arange(3, dtype=np.int16),
        "empty": np.zeros((4, 0)),
        "codes": np.array([-1, 2], dtype=np.int8),
        "single": np.float32([[1.5]]),
    }


def test_the_bytes_are_those_of_safetensors_own_writer(tmp_path: Path) -> None:
    """Whether tensors come whole or row by row."""
    streams = {name: TensorStream.whole(array) for name, array in arrays().items()}
    streams["b"] = TensorStream(np.dtype("u1"), (7, 3), lambda: (arrays()["b"][row] for row in range(7)))
    digest = write_tensors(tmp_path / "file", streams)
    content = (tmp_path / "file").read_bytes()
    assert content == save(arrays())
    assert digest == checksum(content)
    for name, array in load_file(tmp_path / "file").items():
        assert np.array_equal(array, arrays()[name])


def test_pieces_must_be_what_was_announced(tmp_path: Path) -> None:
    short = TensorStream(np.dtype("i8"), (3,), lambda: (np.arange(2),))
    with pytest.raises(AssertionError, match="16 bytes came, 24 were announced"):
        write_tensors(tmp_path / "file", {"x": short})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(0, 255, "u1"), (0, 256, "i2"), (-1, 255, "i2"), (0, 2**15, "i4"), (0, 2**31, "i8"), (-(2**40), 0, "i8")],
)
def test_narrowest_type(low: int, high: int, dtype: str) -> None:
    values = np.array([low, high], dtype=np.int64)
    assert narrowed(values).dtype == dtype
    assert np.array_equal(narrowed(values), values)


def test_types_are_nested() -> None:
    assert widest([np.dtype("u1"), np.dtype("i4"), np.dtype("i2")]) == np.dtype("i4")
    assert narrowed(np.zeros((2, 0), dtype=np.int64)).dtype == widest([])
