"""``tokengt explain``: what it writes, says and refuses."""

from pathlib import Path

import pytest

from tests.cli.command import here, refused, succeeded, tokengt
from tests.workflow.small import molecules, train_small, write_csv

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    rows = [(text, value, -value) for text, value in zip(*molecules(24), strict=True)]
    train_small(write_csv(folder / "data.csv", ("smiles", "y", HOSTILE), rows), folder / "run", ("y", HOSTILE))
    write_csv(folder / "bad.csv", ("smiles", "y"), [("CCO", 1.0), ("C1CC", 2.0)])
    return folder


def test_a_molecule_is_explained_by_the_installed_command(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = succeeded(tokengt("explain", folder / "run", "CCO", "--out", out))
    assert f"{out}: SMILES 'CCO', y " in done.stdout
    assert out.read_text().startswith("<!doctype html>")


def test_a_row_and_the_whole_file(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    arguments = ("explain", folder / "run", folder / "data.csv")
    done = succeeded(here(*arguments, "--row", "3", "--no-attributions", "--out", out))
    assert "row 3 of" in done.stdout
    assert "line 4" in done.stdout
    assert "Attributions were not asked for" in out.read_text()
    assert f"{out} exists" in refused(here(*arguments, "--row", "3", "--out", out))
    done = succeeded(here(*arguments, "--summary", "--out", out, "--force"))
    assert "y: rmse" in done.stdout
    assert "over 24 rows" in done.stdout
    assert "The worst predictions" in out.read_text()


def test_one_target_alone(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = succeeded(here("explain", folder / "run", "CCO", "--target", HOSTILE, "--out", out))
    assert f"SMILES 'CCO', {HOSTILE} " in done.stdout
    assert '"outputs":[1]' in out.read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "C1CC"), "'C1CC': the SMILES cannot be read"),
        (("run", "data.csv"), "is a table; say which row of it to explain (--row, in Python row=, counted from 1)"),
        (("run", "data.csv", "--row", "999"), "has fewer than 999 rows"),
        (("run", "data.csv", "--row", "0"), "row is 0; rows of"),
        (("run", "bad.csv", "--row", "2"), "the SMILES cannot be read"),
        (("run", "CCO", "--row", "1"), "CCO does not exist"),
        (("run", "CCO", "--target", "yy"), "the run has no target 'yy' (did you mean y?); expected one of y, <img"),
        (("run", "CCO", "--item", "1"), "item is 1; this run predicts one row per graph"),
        (("run", "CCO", "--out", "page.pdf"), "the report is an HTML page; choose a name that ends in .html"),
        (("run", "data.csv", "--summary", "--row", "1"), "--row is about one row, and --summary about the whole file"),
        (("run", "nothing.csv", "--summary"), "nothing.csv does not exist; expected a file with labels"),
        (("data.csv", "CCO"), "is no tokengt run"),
        (("nothing", "CCO"), "nothing does not exist; expected a run's folder"),
        (("run", "CCO", "--draws", "0"), "draws is 0; expected at least 1"),
        (("run", "CCO", "--sumary"), "tokengt explain has no option --sumary (did you mean --summary?)"),
    ],
)
def test_what_cannot_be_explained_is_said_in_a_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(folder)
    out = () if "--out" in words else ("--out", tmp_path / "report.html")
    done = here("explain", *words, *out)
    assert sentence in refused(done)
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "report.html").exists()


def test_names_with_html_in_them_are_escaped(folder: Path, tmp_path: Path) -> None:
    """Names of columns are data, whatever they spell."""
    out = tmp_path / "report.html"
    for more in (("CCO",), (folder / "data.csv", "--summary")):
        succeeded(here("explain", folder / "run", *more, "--out", out, "--force"))
        page = out.read_text()
        assert "<img" not in page
        assert HOSTILE.replace("<", "\\u003c") in page
