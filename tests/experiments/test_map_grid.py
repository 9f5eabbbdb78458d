"""Attention maps side by side, as the paper draws them."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from tokengt.experiments.basis.map_grid import draw_map_grid
from tokengt.explain.maps import clamp_map


def test_weights_are_clamped_and_scaled() -> None:
    clamped = clamp_map(np.array([[0.0, 0.005], [0.01, 0.7]], dtype=np.float16))
    np.testing.assert_allclose(clamped, [[0.0, 0.5], [1.0, 1.0]], atol=1e-3)
    np.testing.assert_allclose(clamp_map(np.array([[0.25, 2.0]]), 0.5), [[0.5, 1.0]])
    with pytest.raises(ValueError, match="clamp is 0"):
        clamp_map(np.zeros((1, 1)), 0.0)


def test_a_grid_shows_dark_where_weights_are(tmp_path: Path) -> None:
    left = np.zeros((4, 5))
    right = np.full((4, 5), 0.2)
    draw_map_grid([[left, right]], ["(i,i) (i,j)"], ["none", "all"], tmp_path / "maps.png")
    picture = matplotlib.image.imread(tmp_path / "maps.png")[:, :, :3]
    height, width, _ = picture.shape
    blank = picture[height // 2 : -height // 4, int(width * 0.45) : int(width * 0.5)]
    dark = picture[height // 2 : -height // 4, int(width * 0.8) : int(width * 0.85)]
    assert blank.mean() > 0.9
    assert dark[:, :, 0].mean() < 0.2


def test_the_same_maps_give_the_same_bytes(tmp_path: Path) -> None:
    maps = [[np.random.default_rng(0).random((3, 4)), None]]
    for name in ("a.png", "b.png"):
        draw_map_grid(maps, ["head"], ["one", "absent"], tmp_path / name, title="twice")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_grid_needs_a_name_for_every_map(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 1 rows of 2 maps"):
        draw_map_grid([[np.zeros((2, 2))]], ["head"], ["a", "b"], tmp_path / "maps.png")
