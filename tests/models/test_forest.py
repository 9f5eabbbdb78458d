"""Trees as arrays: what they say is what scikit-learn says, and a file of them is what was written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from tokengt.models.forest import FILE, HALF, Forest, at_most, read_forest, write_forest
from tokengt.models.pretrained import write_config


def numbers(rows: int, seed: int = 0) -> Any:
    """Few different values per column, so that many lie on a threshold exactly."""
    return np.random.default_rng(seed).integers(0, 5, (rows, 6)).astype(np.float32) / 3


def of(*grown: Any) -> Forest:
    trees = [[each.tree_ for each in forest.estimators_] for forest in grown]
    return Forest.of_trees(trees, [[tree.value[:, 0] for tree in own] for own in trees])


def test_a_tree_by_hand() -> None:
    """Column 1 at most 2: then 10; else column 0 at most 0: then 20, else 30."""
    forest = Forest(
        column=torch.tensor([1, -1, 0, -1, -1], dtype=torch.int16),
        threshold=torch.tensor([2.0, 0, 0, 0, 0]),
        other=torch.tensor([2, 0, 4, 1, 2], dtype=torch.int32),
        said=torch.tensor([[10.0], [20.0], [30.0]]),
        roots=torch.tensor([[0]]),
        share=torch.tensor([HALF]),
    )
    rows = torch.tensor([[5.0, 2.0], [5.0, 2.1], [0.0, 3.0], [float("nan"), 3.0]])
    assert forest(rows).tolist() == [[10], [30], [20], [30]]
    assert forest(rows[:0]).shape == (0, 1)


def test_numbers_are_those_of_scikit_learn() -> None:
    known, asked = numbers(200), numbers(300, 1)
    targets = [known[:, 0] * known[:, 1], np.sin(known[:, 2])]
    grown = [RandomForestRegressor(7, random_state=0).fit(known, target) for target in targets]
    expected = np.stack([each.predict(asked) for each in grown], 1)
    np.testing.assert_allclose(of(*grown)(torch.from_numpy(asked)).numpy(), expected, atol=1e-6)


def test_shares_of_three_classes_are_those_of_scikit_learn() -> None:
    known, asked = numbers(200), numbers(300, 1)
    grown = RandomForestClassifier(7, random_state=0, min_samples_leaf=5).fit(known, known[:, 0].round().astype(int))
    forest = of(grown)
    assert forest.width == len(grown.classes_)
    # scikit-learn before 1.3 counts rows in leaves, later versions take shares.
    shares = forest.said / forest.said.sum(1, keepdim=True)
    found = Forest(**{**vars(forest), "said": shares})(torch.from_numpy(asked))
    np.testing.assert_allclose(found.numpy(), grown.predict_proba(asked), atol=1e-6)


def test_many_rows_are_asked_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    known = numbers(100)
    forest = of(RandomForestRegressor(5, random_state=0).fit(known, known[:, 0]))
    whole = forest(torch.from_numpy(known))
    monkeypatch.setattr("tokengt.models.forest._AT_ONCE", 35)
    assert torch.equal(forest(torch.from_numpy(known)), whole)


@given(
    st.floats(-(2.0**90), 2.0**90, allow_subnormal=False),
    st.floats(-(2.0**90), 2.0**90, width=32, allow_subnormal=False),
)
def test_a_threshold_in_float32_decides_as_in_float64(threshold: float, number: float) -> None:
    rounded = at_most(np.array([threshold]))[0]
    assert rounded.dtype == np.float32
    assert (np.float32(number) <= rounded) == (np.float64(np.float32(number)) <= threshold)


def test_a_file_is_what_was_written_or_refused(tmp_path: Path) -> None:
    known = numbers(50)
    forest = of(RandomForestRegressor(3, random_state=0).fit(known, known[:, 0]))
    write_config(tmp_path, {}, run="mine")
    with pytest.raises(ValueError, match=r"was trained with a random forest beside its model, and forest\.safetensors"):
        read_forest(tmp_path)
    write_forest(tmp_path, forest, "mine")
    assert torch.equal(read_forest(tmp_path)(torch.from_numpy(known)), forest(torch.from_numpy(known)))
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-8] + b"12345678")
    with pytest.raises(ValueError, match="does not match its checksum"):
        read_forest(tmp_path)
    (tmp_path / FILE).write_bytes(whole[:20])
    with pytest.raises(ValueError, match="is no safetensors file"):
        read_forest(tmp_path)
    (tmp_path / FILE).write_bytes(whole)
    save_file(load_file(tmp_path / FILE), tmp_path / FILE)
    with pytest.raises(ValueError, match="does not match its checksum"):
        read_forest(tmp_path)
    write_forest(tmp_path, forest, "another")
    with pytest.raises(ValueError, match="belongs to another run"):
        read_forest(tmp_path)
