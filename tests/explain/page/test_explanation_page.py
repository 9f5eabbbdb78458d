"""The page of one explanation, in a real browser: what a person sees and does, and the numbers behind it."""

import base64
from pathlib import Path

import numpy as np
import pytest

from tests.explain.page.conftest import SMILES, Open, Opened
from tokengt.workflow.explaining import explain


def test_it_opens_from_disk_without_a_request_or_a_complaint(home: Path, open_page: Open) -> None:
    opened = open_page(home / "one.html")
    assert opened.requests == [(home / "one.html").as_uri()]
    assert opened.complaints == []
    assert opened.page.title() == f"{SMILES} explained"
    assert opened.page.locator("section").count() == 4
    assert opened.page.locator("section[data-missing]").count() == 0


def test_weights_in_the_page_are_those_of_the_model(home: Path, open_page: Open) -> None:
    """Within half of the step that the page states."""
    opened = open_page(home / "one.html")
    maps = explain(home / "run", SMILES, device="cpu", usual=0, methods=()).maps
    assert maps is not None
    assert opened.ask("tokengt.data.attention.levels") == 255
    assert "steps of 1/255 of the largest weight of their row" in opened.page.inner_text("#attention")
    step = maps.weights.max(-1, keepdims=True) / 255
    for layer, heads in enumerate(maps.weights):
        for head, weights in enumerate(heads):
            shown = opened.ask(f"tokengt.weights.of({layer}, {head}).then((weights) => Array.from(weights))")
            away = np.abs(np.reshape(shown, weights.shape) - weights)
            assert (away <= 0.5001 * step[layer, head]).all()
        mean = opened.ask(f"tokengt.weights.of({layer}, -1).then((weights) => Array.from(weights))")
        assert (np.abs(np.reshape(mean, weights.shape) - heads.mean(0)) <= 0.5001 * step[layer].max(0)).all()


def test_numbers_in_the_page_are_those_of_the_api(home: Path, open_page: Open) -> None:
    opened = open_page(home / "one.html")
    for output in range(2):
        explanation = explain(home / "run", SMILES, device="cpu", target=output)
        for place, method in enumerate(("integrated_gradients", "occlusion")):
            shown = opened.ask(f"tokengt.data.attribution.methods[{place}].values[{output}]")
            np.testing.assert_allclose(shown, explanation.attributions[method].scores, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(
        opened.ask("tokengt.data.prediction.rows.map((row) => row.value)"), explanation.prediction
    )
    np.testing.assert_allclose(opened.ask("tokengt.data.distance.graph"), explanation.distance)
    assert explanation.usual is not None
    np.testing.assert_allclose(opened.ask("tokengt.data.distance.usual"), explanation.usual.distance)
    assert explanation.profile is not None
    shares = np.array(opened.ask("tokengt.data.patterns.graphs[0].shares"))
    np.testing.assert_allclose(shares, explanation.profile.shares)
    np.testing.assert_allclose(shares.sum(-1), 1.0, atol=1e-6)


def test_completeness_is_said_in_words(home: Path, open_page: Open) -> None:
    opened = open_page(home / "one.html")
    words = opened.page.inner_text("#attribution")
    assert "The scores sum to " in words
    assert "within the tolerance of" in words
    assert "the most ordinary here, without identifiers" in words


def drawn(opened: Opened) -> tuple[str, str, str]:
    """The drawing's marks, the map's highlighted row, and the list of numbers, as they are now."""
    script = """[
        [...document.querySelectorAll('#attention .marks, #attention .arcs')].map((layer) => layer.innerHTML).join(),
        document.querySelector('#attention .map svg rect').outerHTML,
        document.querySelector('#attention .ranking').innerText,
    ]"""
    first, second, third = opened.ask(script)
    return first, second, third


def click_middle(opened: Opened, token: int) -> None:
    """Click the middle of an atom or bond with the mouse, wherever it lies on the screen."""
    x, y = opened.ask(
        f"""(() => {{
            const pick = document.querySelector('#attention .pick[data-token="{token}"]');
            pick.scrollIntoView({{ block: 'center' }});
            const box = pick.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
    )
    opened.page.mouse.click(x, y)


def test_a_clicked_atom_or_bond_changes_the_drawing_the_map_and_the_list(home: Path, open_page: Open) -> None:
    opened = open_page(home / "one.html")
    seen = [drawn(opened)]
    names = opened.ask("tokengt.data.tokens.map((token) => token.name)")
    kinds = opened.ask("tokengt.data.tokens.map((token) => token.kind)")
    for token in (kinds.index("node"), kinds.index("edge")):
        name = names[token]
        click_middle(opened, token)
        opened.settle()
        assert opened.ask("tokengt.state().token") == token
        assert f"{name} gives" in opened.page.inner_text("#attention")
        seen.append(drawn(opened))
    for part in range(3):
        assert len({each[part] for each in seen}) == 3


def test_a_row_of_the_map_is_picked_like_its_token(home: Path, open_page: Open) -> None:
    opened = open_page(home / "one.html")
    box = opened.page.locator("#attention .map canvas").bounding_box()
    count = opened.ask("tokengt.data.tokens.length")
    opened.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] * 4.5 / count)
    opened.settle()
    assert opened.ask("tokengt.state().token") == 4
    ring = opened.page.locator("#attention .rings circle")
    place = opened.page.locator('#attention .pick[data-token="4"]')
    assert (ring.get_attribute("cx"), ring.get_attribute("cy")) == (
        place.get_attribute("cx"),
        place.get_attribute("cy"),
    )


def test_layer_head_direction_method_and_target_can_be_chosen(home: Path, open_page: Open) -> None:
    opened = open_page(home / "one.html")
    page = opened.page
    before = drawn(opened)
    picture = "document.querySelector('#attention .map canvas').toDataURL()"
    map_before = opened.ask(picture)
    page.locator("#attention select").select_option("head 3")
    opened.settle()
    assert opened.ask("tokengt.state().head") == 2
    page.locator("#attention input[type=range]").fill("1")
    opened.settle()
    assert opened.ask("tokengt.state().layer") == 0
    assert "In layer 1, in head 3" in page.inner_text("#attention")
    assert drawn(opened)[2] != before[2]
    assert opened.ask(picture) != map_before
    page.get_by_role("button", name="attends to it").click()
    assert "is attended to by" in page.inner_text("#attention")
    ranking = "#attribution .ranking"
    shown = page.inner_text(ranking)
    page.get_by_role("button", name="Occlusion").click()
    assert "one token at a time" in page.inner_text("#attribution")
    assert page.inner_text(ranking) != shown
    shown = page.inner_text(ranking)
    page.locator("header button").nth(1).click()
    assert opened.ask("tokengt.state().target") == 1
    assert page.inner_text(ranking) != shown
    page.get_by_role("button", name="Attention roll-out").click()
    assert "has no sign" in page.inner_text("#attribution")
    assert opened.complaints == []


def test_heads_are_picked_from_the_other_panels(home: Path, open_page: Open) -> None:
    opened = open_page(home / "one.html")
    opened.page.locator('#distance [data-pick="0,1"]').click()
    opened.settle()
    assert opened.ask("[tokengt.state().layer, tokengt.state().head]") == [0, 1]
    opened.page.locator("#patterns [role=gridcell]").nth(6).click()
    opened.settle()
    assert opened.ask("[tokengt.state().layer, tokengt.state().head]") == [1, 2]
    assert "Heads of layer 2" in opened.page.inner_text("#patterns")


def test_everything_is_reached_by_keys(home: Path, open_page: Open) -> None:
    """Tab reaches the drawing, the map and all controls; arrows go from token to token and from head to head."""
    opened = open_page(home / "one.html")
    page = opened.page
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            opened.ask(
                """[['.pick', 'token'], ['canvas', 'map'], ['[role=gridcell]', 'head'], ['*', '']]
                    .filter(([kind]) => document.activeElement.matches(kind))
                    .map(([, name]) => name || document.activeElement.tagName)[0]"""
            )
        )
    assert {"token", "map", "head", "A", "INPUT", "SELECT", "BUTTON", "SUMMARY"} <= reached
    page.locator("#attention .pick[tabindex='0']").focus()
    tokens = set()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "End", "Home"):
        page.keyboard.press(key)
        opened.settle()
        tokens.add(opened.ask("tokengt.state().token"))
        # The focus goes with what is picked.
        assert opened.ask("Number(document.activeElement.dataset.token) === tokengt.state().token")
    assert len(tokens) >= 4
    page.locator("#attention .map canvas").focus()
    page.keyboard.press("ArrowDown")
    opened.settle()
    assert opened.ask("tokengt.state().token") == 1
    page.keyboard.press("ArrowRight")
    assert "→" in page.inner_text("#pointed")
    page.locator("#patterns [role=gridcell][tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    opened.settle()
    assert opened.ask("tokengt.state().head") == 1


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (400, "dark"),
        (1600, "light"),
        pytest.param(400, "light", marks=pytest.mark.slow),
        pytest.param(1600, "dark", marks=pytest.mark.slow),
    ],
)
def test_it_is_readable_at_every_width_and_in_both_schemes(
    home: Path, open_page: Open, width: int, scheme: str
) -> None:
    """Nothing is wider than the screen, and letters stand out from what is behind them."""
    opened = open_page(home / "one.html", width, scheme)
    assert opened.ask("document.documentElement.scrollWidth") <= width
    ink, paper = opened.ask(
        "[getComputedStyle(document.body).color, getComputedStyle(document.querySelector('section')).backgroundColor]"
    )
    assert contrast(ink, paper) > 7
    faint = opened.ask("getComputedStyle(document.querySelector('section p.faint')).color")
    assert contrast(faint, paper) > 4.5
    assert (luminance(paper) > 0.5) == (scheme == "light")
    # Atoms are at least as large as a letter, so that they can be read and hit.
    assert opened.page.locator('#attention .pick[data-token="3"]').bounding_box()["width"] > 14
    image = opened.page.screenshot()
    assert base64.b64encode(image[:4]).decode() == "iVBORw=="
    assert opened.complaints == []


def luminance(colour: str) -> float:
    """Relative luminance of rgb(...), as the accessibility guidelines define it."""
    channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_everything_that_can_be_picked_has_a_name(home: Path, open_page: Open) -> None:
    opened = open_page(home / "one.html")
    unnamed = opened.ask(
        """[...document.querySelectorAll('button, select, input, canvas[tabindex], [role=button], [role=img]')]
            .filter((each) => !each.getAttribute('aria-label') && !each.textContent.trim())
            .filter((each) => !each.closest('label')?.textContent.trim())
            .map((each) => each.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []
    label = opened.page.locator('#attention .pick[data-token="1"]').get_attribute("aria-label")
    assert label.startswith("C")
    assert label.endswith("%")
