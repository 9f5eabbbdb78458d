"""Pictures of explanations: figures show the numbers of the arrays, and notebooks show figures."""

import base64
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.explain.test_profile import plain
from tests.graphs import random_graph, small_model, tokens_config
from tokengt import explain
from tokengt.explain.distance import graph_distances
from tokengt.explain.explanation import Explanation
from tokengt.explain.pictures import explanation_html


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    """Two layers of three heads; [graph], five nodes and the tokens of their edges."""
    model = small_model(tokens=tokens_config(layout="undirected"))
    return explain.explain_graph(model, plain(random_graph(5, 6, undirected=True)), names=("<b>solubility", "y"))


def test_an_attribution_is_drawn_as_bars_with_what_they_sum_to(explanation: Explanation) -> None:
    """The largest is on top; the line below says the sum, what it should be, and how far it is off."""
    found = explanation.attributions["integrated_gradients"]
    figure = explain.plot_attribution(found)
    assert isinstance(figure, Figure)
    (axes,) = figure.axes
    lengths = [bar.get_width() for bar in axes.patches]
    np.testing.assert_allclose(lengths, found.scores[np.argsort(-np.abs(found.scores), kind="stable")][::-1])
    assert axes.get_yticklabels()[-1].get_text() == found.tokens.names[int(np.abs(found.scores).argmax())]
    assert axes.get_xlabel() == (
        f"sum {found.total:.4g}, prediction minus reference {found.change:.4g}\n(off by {found.gap:.1g})"
    )
    rollout = explain.plot_attribution(explanation.attributions["rollout"])
    assert rollout.axes[0].get_xlabel() == "sum 1; no statement about the prediction"


def test_distances_are_dots_by_layer_and_their_mean_a_line(explanation: Explanation) -> None:
    assert explanation.distance is not None
    (axes,) = explain.plot_attention_distance(explanation.distance, explanation.distance + 1).axes
    dots = np.asarray(axes.collections[0].get_offsets())
    np.testing.assert_allclose(dots, [[layer + 1, hops] for layer in (0, 1) for hops in explanation.distance[layer]])
    own, usual = (line.get_ydata() for line in axes.lines)
    np.testing.assert_allclose(own, explanation.distance.mean(1))
    np.testing.assert_allclose(usual, explanation.distance.mean(1) + 1)


def test_a_profile_has_one_row_per_head_and_one_column_per_pattern(explanation: Explanation) -> None:
    profile = explanation.profile
    assert profile is not None
    axes = explain.plot_equivariance_profile(profile).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), profile.shares.reshape(6, -1))
    assert tuple(label.get_text() for label in axes.get_xticklabels()) == profile.names
    one = explain.plot_equivariance_profile(profile, layer=1).axes[0]
    np.testing.assert_array_equal(one.images[0].get_array(), profile.shares[1])


def test_maps_are_one_panel_per_layer_or_the_one_that_is_asked_for(explanation: Explanation) -> None:
    maps = explanation.maps
    assert maps is not None
    titles = [axes.get_title() for axes in explain.plot_attention_maps(maps).axes]
    assert titles == ["layer 1, mean over heads", "layer 2, mean over heads"]
    (axes,) = explain.plot_attention_maps(maps, layer=1, head=2).axes
    assert axes.get_title() == "layer 2, head 3"
    shown, weights = np.asarray(axes.images[0].get_array()), maps.weights[1, 2]
    # Colours are in the order of the weights, up to the one that the darkest begins with.
    assert (shown.argmax(1) == weights.argmax(1)).all()
    np.testing.assert_allclose(shown[shown < 1], weights[shown < 1] / weights[shown == 1].min(), rtol=0.2)


def pictures_of(shown: str) -> list[bytes]:
    return [base64.b64decode(found) for found in re.findall(r'src="data:image/png;base64,([^"]+)"', shown)]


def test_notebooks_show_pictures(explanation: Explanation) -> None:
    """Whatever the four functions return is shown as an image, and an explanation as all of them."""
    model, graph = small_model(), plain(random_graph(4, 5))
    alone = [*explanation.attributions.values(), explanation.maps, explanation.profile, graph_distances(model, graph)]
    for each in alone:
        assert each is not None
        (picture,) = pictures_of(each._repr_html_())
        assert picture.startswith(b"\x89PNG")
    shown = explanation_html(explanation)
    # Three attributions, distances and the profile.
    assert len(pictures_of(shown)) == 5
    assert "&lt;b&gt;solubility" in shown
    assert "<b>" not in shown


def test_a_notebook_is_told_what_is_missing(explanation: Explanation) -> None:
    without = replace(explanation, maps=None, distance=None, profile=None, missing={"maps": "FAVOR+ has <none>"})
    assert "<li>FAVOR+ has &lt;none&gt;</li>" in explanation_html(without)
