"""Pages of models and graphs of every kind, and what hostile names can do in them: nothing."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.explain.page.conftest import Open
from tokengt.attention import FavorConfig
from tokengt.block import EncoderConfig
from tokengt.explain import explain_graph
from tokengt.explain import page as page_package
from tokengt.explain.explanation import Explanation, Interval
from tokengt.explain.page.document import STYLES, as_json, assemble
from tokengt.explain.page.packing import pack_maps
from tokengt.explain.page.render import EXPLANATION, SUMMARY, render
from tokengt.graph import Graph
from tokengt.models.message_passing.model import GinConfig
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.heads import HeadConfig
from tokengt.models.tokengt.identifiers import OrfIds
from tokengt.models.tokengt.model import TokenGT
from tokengt.models.tokengt.tokens import TokensConfig

HOSTILE = '</script><script>window.hit=1</script><img src=x onerror="window.hit=1">&amp;{{script}}\'"'


def config(**changes: object) -> TokenGTConfig:
    encoder = EncoderConfig(num_layers=1, num_heads=2, mlp_dim=8)
    plain = TokenGTConfig(dim=8, encoder=encoder, identifiers=OrfIds(dim=4), head=HeadConfig(out_dim=2))
    return replace(plain, **changes)  # type: ignore[arg-type]


def graph(nodes: int, *pairs: tuple[int, int]) -> Graph:
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
    return Graph(None, index, num_nodes=nodes)


TRIANGLE = graph(3, (0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0))
ODD = {
    "one node": graph(1),
    "no edges": graph(3),
    "a loop": graph(2, (0, 0), (0, 1)),
    "twice the same edge": graph(2, (0, 1), (0, 1), (1, 0)),
    "in pieces": graph(5, (0, 1), (1, 0), (3, 4)),
    "triangle": TRIANGLE,
}
MORE = ("no edges", "twice the same edge", "in pieces", "triangle")


def data_of(page: str) -> dict:
    (content,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(content)


def explained(model: torch.nn.Module, given: Graph, **more: object) -> Explanation:
    return explain_graph(model, given, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["one node", "a loop", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_odd_graphs_are_drawn(name: str, tmp_path: Path, open_page: Open) -> None:
    file = tmp_path / "page.html"
    file.write_text(render(explained(TokenGT(config()), ODD[name])), encoding="utf-8")
    opened = open_page(file)
    assert opened.complaints == []
    for token in range(len(opened.ask("tokengt.data.tokens"))):
        opened.ask(f"tokengt.pick({{ token: {token} }})")
    assert opened.complaints == []
    assert "NaN" not in opened.ask("document.querySelector('#attention svg').outerHTML")


@pytest.mark.slow
def test_both_directions_of_an_edge_have_a_half_of_its_line_each(tmp_path: Path, open_page: Open) -> None:
    """A token that cannot be clicked cannot be looked at."""
    file = tmp_path / "page.html"
    file.write_text(render(explained(TokenGT(config()), TRIANGLE)), encoding="utf-8")
    opened = open_page(file)
    tokens = opened.ask("tokengt.data.tokens")
    forth, back = (
        next(place for place, token in enumerate(tokens) if token["name"] == name) for name in ("0→1", "1→0")
    )
    find = "document.querySelector('#attention .pick[data-token=\"{}\"]')"
    ends = f"['x1', 'y1', 'x2', 'y2'].map((name) => Number({find}.getAttribute(name)))"
    first, second = (np.array(opened.ask(ends.format(token))) for token in (forth, back))
    # The half of 0→1 begins at node 0 and ends in the middle, where that of 1→0 begins.
    node = opened.ask("[tokengt.data.graph.nodes[0].x, tokengt.data.graph.nodes[0].y]")
    np.testing.assert_allclose(first[:2], node, atol=1e-3)
    np.testing.assert_allclose(first[2:], second[:2], atol=1e-3)
    assert np.hypot(*(first[2:] - first[:2])) == pytest.approx(np.hypot(*(second[2:] - second[:2])))


def test_three_nodes_at_once_are_a_square_between_them(tmp_path: Path, open_page: Open) -> None:
    triples = Graph(None, torch.tensor([[0, 1, 2], [1, 2, 0]]).T, num_nodes=3)
    model = TokenGT(config(tokens=TokensConfig(order=3, graph_token=True)))
    file = tmp_path / "page.html"
    file.write_text(render(explained(model, triples)), encoding="utf-8")
    opened = open_page(file)
    assert opened.complaints == []
    assert opened.page.locator("#attention .spoke").count() == 6


def test_models_without_maps_say_why_and_show_the_rest(tmp_path: Path, open_page: Open) -> None:
    encoder = EncoderConfig(num_layers=1, num_heads=2, mlp_dim=8, attention=FavorConfig())
    for name, model, reason in (
        ("favor", TokenGT(config(encoder=encoder)), "FAVOR+ attends through random features"),
        ("gin", GinConfig(dim=8, num_layers=1, out_dim=1).build(), "no attention maps"),
    ):
        file = tmp_path / f"{name}.html"
        file.write_text(render(explained(model, TRIANGLE)), encoding="utf-8")
        opened = open_page(file)
        assert opened.complaints == []
        missing = opened.page.locator("section[data-missing]")
        assert [missing.nth(place).get_attribute("id") for place in range(3)] == ["attention", "distance", "patterns"]
        assert reason in missing.first.inner_text()
        words = opened.page.inner_text("#attribution")
        assert "Attention roll-out: " in words
        assert reason in words
        opened.page.get_by_role("button", name="Occlusion").click()
        assert "minus the prediction without the token" in opened.page.inner_text("#attribution")


def test_the_interval_and_a_warning_stand_beside_the_prediction(tmp_path: Path, open_page: Open) -> None:
    """Bounds with the share that they are to hold; a graph that is like nothing in training says so before all else."""
    plain = explained(TokenGT(config()), TRIANGLE, methods=())
    shown = data_of(render(plain))["prediction"]
    assert (shown["rows"][0]["interval"], shown["note"], shown["warning"]) == (None, None, None)
    interval = Interval(np.array([-1.25, 0.0]), np.array([0.5, 1.0]), 0.9)
    file = tmp_path / "page.html"
    file.write_text(render(replace(plain, interval=interval, unlike=True)))
    opened = open_page(file)
    assert opened.page.inner_text(".predictions .interval") == "\u22121.25 to 0.5"
    assert opened.page.inner_text("#top .notice").startswith("Unlike anything trained on: ")
    assert "the interval that is to hold 90% of true values" in opened.page.inner_text("#top")
    assert opened.complaints == []


def test_attributions_that_were_not_asked_for_are_said_to_be_so() -> None:
    page = render(explained(TokenGT(config()), TRIANGLE, methods=()))
    assert data_of(page)["attribution"]["missing"] == "Attributions were not asked for."


@pytest.mark.slow
def test_a_score_that_no_method_can_say_is_null(tmp_path: Path, open_page: Open) -> None:
    explanation = explained(TokenGT(config()), TRIANGLE)
    own = explanation.attributions["occlusion"]
    blank = replace(own, scores=np.where(np.arange(len(own.scores)) == 1, np.nan, own.scores))
    page = render(replace(explanation, attributions={"occlusion": blank}))
    assert data_of(page)["attribution"]["methods"][0]["values"][0][1] is None
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    assert open_page(file).complaints == []


def test_no_name_becomes_markup(tmp_path: Path, open_page: Open) -> None:
    explanation = explained(TokenGT(config()), TRIANGLE, names=(HOSTILE, "b"))
    tokens = explanation.tokens.named([HOSTILE, "<b>", "&lt;"])
    hostile = replace(explanation, tokens=tokens, source=HOSTILE, model=HOSTILE, missing={"usual": HOSTILE})
    file = tmp_path / "page.html"
    file.write_text(render(hostile), encoding="utf-8")
    opened = open_page(file)
    assert opened.complaints == []
    assert opened.requests == [file.as_uri()]
    assert opened.ask("window.hit === undefined")
    assert opened.page.inner_text("h1") == HOSTILE
    assert HOSTILE in opened.page.inner_text(".predictions")
    assert opened.page.locator("img").count() == 0


def test_data_cannot_end_its_script_and_fills_no_other_place() -> None:
    assert "<" not in as_json({"a": "</script><!--"})
    assert json.loads(as_json({"a": HOSTILE})) == {"a": HOSTILE}
    page = assemble("{{data}}", {"a": "{{title}}"}, ("elements",))
    assert "<title>{{data}}</title>" in page
    assert '{"a":"{{title}}"}' in page
    with pytest.raises(ValueError, match="JSON"):
        as_json({"a": float("nan")})


def test_the_page_may_run_its_own_script_and_load_nothing() -> None:
    """The policy holds checksums of what is in the page: a page that was tampered with does not run."""
    page = render(explained(TokenGT(config()), TRIANGLE))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_several_outputs_can_be_switched_between() -> None:
    model = TokenGT(config())
    first, second = (explained(model, TRIANGLE, output=output, names=("a", "b")) for output in (1, 0))
    data = data_of(render(first, [second]))
    assert data["prediction"]["shown"] == 1
    assert data["attribution"]["outputs"] == [0, 1]
    values = data["attribution"]["methods"][1]["values"]
    np.testing.assert_allclose(values[1], first.attributions["occlusion"].scores)
    np.testing.assert_allclose(values[0], second.attributions["occlusion"].scores)


def test_rendering_twice_gives_the_same_page() -> None:
    explanation = explained(TokenGT(config()), TRIANGLE)
    assert render(explanation) == render(explanation)


@pytest.mark.slow
def test_a_notebook_shows_the_page_in_a_frame_of_its_own(tmp_path: Path, open_page: Open) -> None:
    explanation = explained(TokenGT(config()), TRIANGLE, names=(HOSTILE, "b"))
    file = tmp_path / "notebook.html"
    page = "<!doctype html><meta charset=utf-8><script>window.tokengt = { pick() {} }</script>"
    file.write_text(page + explanation._repr_html_(), encoding="utf-8")
    opened = open_page(file)
    assert opened.complaints == []
    frame = opened.page.frame_locator("iframe")
    assert frame.locator("section").count() == 4
    frame.get_by_role("button", name="Occlusion").click()
    assert "one token at a time" in frame.locator("#attribution").inner_text()
    assert opened.ask("window.hit === undefined")


def test_every_file_of_the_page_is_used_and_short() -> None:
    """The scripts read as the Python does: no long lines, no long files, none that no page loads."""
    folder = Path(page_package.__file__).parent
    loaded = {*(f"script/{name}.js" for name in (*EXPLANATION, *SUMMARY)), *(f"style/{name}.css" for name in STYLES)}
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.suffix in (".js", ".css")}
    assert set(files) == loaded
    for name, path in files.items():
        lines = path.read_text().splitlines()
        assert len(lines) <= 400, name
        assert max(map(len, lines)) <= 120, name


def test_a_graph_too_large_for_its_heads_has_their_mean(
    tmp_path: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one too large for that says so, and shows the rest."""
    explanation = explained(TokenGT(config()), TRIANGLE)
    assert explanation.maps is not None
    shape = explanation.maps.weights.shape
    weights = np.random.default_rng(0).dirichlet(np.ones(shape[-1]), shape[:-1]).astype(np.float32)
    explanation = replace(explanation, maps=replace(explanation.maps, weights=weights))
    file = tmp_path / "page.html"
    monkeypatch.setattr("tokengt.explain.page.view.pack_maps", partial(pack_maps, budget=70))
    file.write_text(render(explanation), encoding="utf-8")
    opened = open_page(file)
    assert "the page keeps the mean over heads alone" in opened.page.inner_text("#attention")
    opened.ask("tokengt.pick({ head: 1 })")
    shown = opened.ask("tokengt.weights.of(0, 1).then((weights) => Array.from(weights))")
    np.testing.assert_allclose(shown, weights[0].mean(0).ravel(), atol=0.02)
    assert "on average over its heads" in opened.page.inner_text("#attention")
    assert opened.complaints == []
    monkeypatch.setattr("tokengt.explain.page.view.pack_maps", partial(pack_maps, budget=10))
    data = data_of(render(explanation))
    assert "their maps would make this page too large" in data["attention"]["missing"]
    assert "missing" not in data["patterns"]


def test_a_node_that_is_predicted_is_looked_at_first() -> None:
    model = TokenGT(config(head=HeadConfig(level="node", out_dim=1)))
    data = data_of(render(explained(model, TRIANGLE, row=2)))
    assert data["tokens"][data["token"]]["nodes"] == [2]
    assert data["facts"][0] == "node 2"
