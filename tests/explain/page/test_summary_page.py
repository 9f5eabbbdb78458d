"""The page on a whole run, in a real browser."""

from pathlib import Path

import pytest

from tests.explain.page.conftest import Open


def test_it_opens_from_disk_without_a_request_or_a_complaint(home: Path, open_page: Open) -> None:
    opened = open_page(home / "all.html")
    assert opened.requests == [(home / "all.html").as_uri()]
    assert opened.complaints == []
    parts = ["curves", "predictions", "errors", "wrong", "substructures", "distance", "patterns"]
    assert opened.ask("[...document.querySelectorAll('section')].map((section) => section.id)") == parts
    assert opened.page.locator("section[data-missing]").count() == 0


def test_every_labelled_row_is_a_dot_and_the_worst_are_drawn(home: Path, open_page: Open) -> None:
    opened = open_page(home / "all.html")
    for target, name in enumerate(("y", "z")):
        opened.ask(f"tokengt.pick({{ target: {target} }})")
        # Of 40 rows, one in five has no y and one in seven no z.
        rows = opened.ask(f"tokengt.data.targets[{target}].rows")
        assert rows == {"y": 32, "z": 34}[name]
        # The page draws when the browser lets it, which a busy machine does late.
        opened.page.locator("#predictions .here").nth(rows - 1).wait_for(state="attached")
        assert opened.page.locator("#predictions .here").count() == rows
        assert opened.page.locator("#wrong svg").count() == 12
    errors = opened.ask("tokengt.data.targets[0].wrong.map((row) => row.error)")
    assert errors == sorted(errors, reverse=True)
    assert "--draws 16" in opened.page.inner_text("#predictions")


def test_bars_are_those_of_the_numbers(home: Path, open_page: Open) -> None:
    opened = open_page(home / "all.html")
    groups = opened.ask("tokengt.data.targets[0].by_size")
    assert sum(group["rows"] for group in groups) == 32
    heights = opened.ask(
        "[...document.querySelectorAll('#errors figure:first-child rect')].map((bar) => bar.height.baseVal.value)"
    )
    errors = [group["error"] for group in groups]
    shares = [height / max(heights) for height in heights]
    assert shares == pytest.approx([error / max(errors) for error in errors], abs=1e-3)


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), pytest.param(1600, "light", marks=pytest.mark.slow)])
def test_it_is_readable_at_every_width(home: Path, open_page: Open, width: int, scheme: str) -> None:
    opened = open_page(home / "all.html", width, scheme)
    assert opened.ask("document.documentElement.scrollWidth") <= width
    assert opened.complaints == []


def test_heads_can_be_picked_by_keys(home: Path, open_page: Open) -> None:
    opened = open_page(home / "all.html")
    opened.page.locator("#patterns [role=gridcell][tabindex='0']").focus()
    opened.page.keyboard.press("ArrowDown")
    assert opened.ask("tokengt.state().layer") == 1
    assert "Heads of layer 2" in opened.page.inner_text("#patterns")
