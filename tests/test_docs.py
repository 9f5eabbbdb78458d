"""The documentation is true: its code runs, its links lead somewhere, its commands exist."""

import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import matplotlib.pyplot as plt
import pytest

from tokengt.cli import main
from tokengt.models.kinds import KINDS
from tokengt.presets import PRESETS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = "<!-- not run -->"


class Block(NamedTuple):
    language: str
    code: str
    line: int
    runs: bool


def blocks(page: Path) -> list[Block]:
    """Fenced blocks in order; ``line`` is where the code begins."""
    text = page.read_text()
    fenced = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        before = text[: match.start()].rstrip()
        line = text.count("\n", 0, match.start(2)) + 1
        fenced.append(Block(match[1], match[2], line, not before.endswith(NOT_RUN)))
    return fenced


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if any(block.language == language and block.runs for block in blocks(page))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", with_blocks("python"), ids=name_of)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, top to bottom, in one namespace; kinds and presets that it adds are gone afterwards."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    with patch.dict(KINDS), patch.dict(PRESETS):
        for block in blocks(page):
            if block.language == "python" and block.runs:
                padded = "\n" * (block.line - 1) + block.code
                exec(compile(padded, str(page), "exec"), namespace)


def test_no_page_hides_its_code() -> None:
    """``not run`` is for what cannot run here: at most one block in ten."""
    python = [block for page in PAGES for block in blocks(page) if block.language == "python"]
    assert len(python) > 20
    assert sum(not block.runs for block in python) * 10 <= len(python)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{name_of(page)} links to {target}; headings there: {anchors(linked)}"


def anchors(page: Path) -> set[str]:
    """Headings as mkdocs spells them in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("page", with_blocks("bash"), ids=name_of)
def test_commands_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in "".join(block.code for block in blocks(page) if block.language == "bash").splitlines():
        match line.split("#")[0].split():
            case ["make", *wanted]:
                assert wanted, line
                assert set(wanted) <= targets, line
            case ["tokengt", verb, *_]:
                with pytest.raises(SystemExit) as stop:
                    main([verb, "--help"])
                assert stop.value.code == 0, line
            case ["python", script, *_] if script.endswith(".py"):
                assert (ROOT / script).is_file(), line
    capsys.readouterr()


def test_the_presets_of_the_guide_are_those_there_are() -> None:
    _, table = (ROOT / "docs" / "guide" / "train.md").read_text().split("| `--preset` | Model |\n|---|---|\n")
    rows = table.split("\n\n")[0].splitlines()
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split(" | ")[0])} == set(PRESETS)


def test_the_readme_is_short_and_every_picture_is_shown() -> None:
    """Numbers belong to docs/results.md; a picture that no page shows is one that nobody looks at."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
    shown = {target for page in PAGES for target in re.findall(r"!\[.+?\]\(([^)]+)\)", page.read_text())}
    assert {Path(target).name for target in shown} == {path.name for path in (ROOT / "docs" / "images").iterdir()}


def test_pictures_are_drawn_from_the_tables() -> None:
    """The script that drew the pictures still runs, and its bars are the numbers of today's tables."""
    script = runpy.run_path(str(ROOT / "docs" / "pictures" / "results.py"))
    pages = runpy.run_path(str(ROOT / "docs" / "pictures" / "pages.py"))
    assert {f"{name}.png" for name in (*script["FIGURES"], *pages["SHOTS"], "overview", "serve")} == {
        path.name for path in (ROOT / "docs" / "images").iterdir()
    }
    left, right = script["moleculenet"]().axes
    drawn = sorted(bar.get_height() for axis in (left, right) for bar in axis.patches)
    rows = json.loads((ROOT / "results" / "moleculenet" / "table.json").read_text())
    assert drawn == sorted(row["mean"] for row in rows)
    for name, draw in script["FIGURES"].items():
        assert draw().axes, name
    plt.close("all")


def test_the_drawing_of_the_house_is_true() -> None:
    """Every module is in the drawing, and the layers are those that import-linter enforces."""
    drawing, layers = (block.code for block in blocks(ROOT / "docs" / "house.md") if block.language == "text")
    source = ROOT / "src" / "tokengt"
    for path in source.rglob("*.py"):
        if not path.name.startswith("__") and path.name != "_version.py" and path.parent.name != "data":
            assert path.name in drawing, path.name
    for name in re.findall(r"[\w/]+\.py", drawing):
        assert list(source.rglob(name)), name
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    assert layers.splitlines() == [layer.replace("tokengt.", "") for layer in contract["layers"]]
