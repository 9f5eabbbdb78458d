"""The page in a real browser: what a person types, draws or drops is answered, and nothing else happens."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from tests import browser
from tests.serve.attacks import SCRIPT
from tests.serve.client import Running
from tests.serve.conftest import path_graph
from tests.workflow.small import molecules
from tokengt.inference import load
from tokengt.workflow.predicting import predict_file


class Opened(browser.Opened):
    """The page of a server."""

    def text(self, selector: str) -> str:
        found: str = self.page.inner_text(selector)
        return found

    def click(self, selector: str) -> None:
        self.page.click(selector)

    def predict(self, lines: str) -> None:
        self.page.fill("#smiles", lines)
        self.click("#panel-type button.main")
        self.page.wait_for_selector("#results:not([hidden])")

    def drawn(self, smiles: str) -> None:
        """Wait until the drawing is this molecule."""
        self.page.wait_for_function("smiles => document.getElementById('drawn').textContent === smiles", arg=smiles)

    def click_bond(self, place: int) -> None:
        """Click in the middle of a bond."""
        middle = self.page.evaluate(
            """place => {
            const {atoms, bonds} = page.sketcher.molecule;
            const [a, b] = [atoms[bonds[place].start], atoms[bonds[place].end]];
            const at = new DOMPoint((a.x + b.x) / 2, (a.y + b.y) / 2);
            const {x, y} = at.matrixTransform(document.querySelector(".canvas").getScreenCTM());
            return [x, y];
          }""",
            place,
        )
        self.page.mouse.click(*middle)

    def point(self, x: float, y: float) -> None:
        """Click on the canvas, lengths of a bond away from its middle."""
        box = self.page.locator(".canvas").bounding_box()
        length = box["height"] / 8.5
        self.page.mouse.click(box["x"] + box["width"] / 2 + x * length, box["y"] + box["height"] / 2 + y * length)


Open = Callable[..., Opened]


@pytest.fixture
def open_page(chromium: Any, server: Running) -> Iterator[Open]:
    with browser.opening(chromium, Opened, seconds=60) as opening:

        def opened(at: Running = server, width: int = 1200, scheme: str = "light") -> Opened:
            found = opening(f"http://127.0.0.1:{at.port}/", width, scheme)
            found.page.wait_for_selector("html[data-ready]")
            return found

        yield opened


def test_typed_molecules_are_predicted_and_downloaded(
    open_page: Open, server: Running, run: Path, tmp_path: Path
) -> None:
    """The table and the file are what ``tokengt predict`` writes; text that looks like HTML stays text."""
    lines = f"CCO ethanol\nC1CC {SCRIPT}\n{SCRIPT}\nc1ccccc1O phenol, or carbolic acid\n"
    (tmp_path / "in.smi").write_text(lines)
    predict_file(run, tmp_path / "in.smi", tmp_path / "out.csv", neighbours=True, quiet=True, device="cpu")
    expected = list(csv.reader(io.StringIO((tmp_path / "out.csv").read_text())))[1:]
    opened = open_page()
    opened.predict(lines)
    assert opened.text("#summary") == "4 rows, 2 without a prediction"
    rows = opened.page.locator("#table tbody tr")
    assert rows.count() == 4
    for place, row in enumerate(expected):
        cells = rows.nth(place).locator("td.own").all_inner_texts()
        assert [cell.strip() for cell in cells] == [cell.strip() for cell in row[:2]]
        values = rows.nth(place).locator("td.value").evaluate_all("cells => cells.map(cell => cell.title)")
        assert values == row[2:4]
    assert "cannot be read" in rows.nth(1).locator("td.reason").inner_text()
    with opened.page.expect_download() as download:
        opened.click("#download")
    assert Path(download.value.path()).read_bytes() == (tmp_path / "out.csv").read_bytes()
    # Pictures of the two that can be read were asked for, and nothing of any other server.
    assert sum("/api/picture" in url for url in opened.requests) == 2
    assert all(url.startswith((f"http://127.0.0.1:{server.port}/", "blob:", "data:")) for url in opened.requests)
    assert opened.complaints == []


def test_a_molecule_is_drawn_by_clicks(open_page: Open) -> None:
    opened = open_page()
    opened.click("#tab-draw")
    opened.click("button[aria-label='Benzene ring']")
    opened.point(0, 0)
    opened.drawn("c1ccccc1")
    assert opened.page.locator(".canvas circle.hit").count() == 6
    # A ring on a bond shares it: naphthalene; undone, redone, undone.
    opened.click_bond(0)
    opened.drawn("c1ccc2ccccc2c1")
    opened.click("button[aria-label='Undo']")
    opened.drawn("c1ccccc1")
    opened.click("button[aria-label='Redo']")
    opened.drawn("c1ccc2ccccc2c1")
    opened.click("button[aria-label='Undo']")
    # Oxygen on a corner's new neighbour, with a charge: phenolate.
    opened.click("button[aria-label='carbon']")
    opened.page.locator(".canvas circle.hit").nth(0).click()
    opened.drawn("Cc1ccccc1")
    opened.click("button[aria-label='oxygen']")
    opened.page.locator(".canvas circle.hit").nth(6).click()
    opened.drawn("Oc1ccccc1")
    opened.click("button[aria-label='Charge down']")
    opened.page.locator(".canvas circle.hit").nth(6).click()
    opened.drawn("[O-]c1ccccc1")
    opened.click("button[aria-label='Delete']")
    opened.page.locator(".canvas circle.hit").nth(6).click()
    opened.drawn("c1ccccc1")
    # A bond between two corners, dragged.
    opened.click("button[aria-label='carbon']")
    ends = [opened.page.locator(".canvas circle.hit").nth(place).bounding_box() for place in (0, 3)]
    middles = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in ends]
    opened.page.mouse.move(*middles[0])
    opened.page.mouse.down()
    opened.page.mouse.move(*middles[1], steps=4)
    opened.page.mouse.up()
    opened.page.wait_for_function("() => document.querySelectorAll('.canvas line.hit').length === 7")
    opened.click("button[aria-label='Clear']")
    opened.drawn("nothing is drawn yet")
    assert opened.complaints == []


@pytest.mark.slow
def test_what_is_no_molecule_is_said_while_it_is_drawn(open_page: Open) -> None:
    opened = open_page()
    opened.click("#tab-draw")
    opened.click("button[aria-label='fluorine']")
    opened.point(0, 0)
    opened.drawn("F")
    for _ in range(2):
        opened.page.locator(".canvas circle.hit").first.click()
    opened.page.wait_for_selector("#drawn.wrong")
    assert "This drawing is no molecule: Explicit valence for atom" in opened.text("#drawn")
    assert opened.page.locator(".canvas .over").count() == 1


def test_the_keyboard_draws_too(open_page: Open) -> None:
    opened = open_page()
    opened.click("#tab-draw")
    opened.page.focus(".canvas")
    for key in ("Enter", "Enter", "2", "Enter", "o", "1", "ArrowLeft", "Enter", "l"):
        opened.page.keyboard.press(key)
    drawn = opened.page.evaluate("page.sketcher.molecule")
    assert sorted(atom["element"] for atom in drawn["atoms"]) == ["C", "C", "Cl", "O"]
    assert sorted(bond["order"] for bond in drawn["bonds"]) == [1, 1, 2]
    opened.page.keyboard.press("+")
    opened.page.keyboard.press("Control+z")
    opened.page.keyboard.press("Delete")
    opened.drawn("CC=O")
    assert "of 3" in opened.page.inner_text(".unseen[aria-live]", timeout=1000)


@pytest.mark.slow
def test_the_functions_of_a_drawing(open_page: Open) -> None:
    """Values by hand: a chain goes zig-zag, rings are regular, fused rings share their bond, hydrogens are counted."""
    opened = open_page()
    found = opened.page.evaluate(
        """async (csv) => {
        const m = await import("/static/molecule.js");
        let chain = m.addAtom(m.EMPTY, 0, 0);
        for (let atom = 0; atom < 4; atom += 1) chain = m.attach(chain, atom);
        const far = Math.hypot(chain.atoms[4].x, chain.atoms[4].y);
        const five = m.ringAround(m.EMPTY, 0, 0, 5, false);
        const sides = five.bonds.map(({start, end}) =>
          Math.hypot(five.atoms[start].x - five.atoms[end].x, five.atoms[start].y - five.atoms[end].y));
        const two = m.ringOnBond(m.ringAround(m.EMPTY, 0, 0, 6, true), 0, 6, true);
        const methane = m.addAtom(m.EMPTY, 0, 0);
        const ammonium = m.addCharge(m.setElement(methane, 0, "N"), 0, 1);
        const hydroxide = m.addCharge(m.setElement(methane, 0, "O"), 0, -1);
        const cut = m.removeAtom(chain, 1);
        return {
          far, sides, fused: [two.atoms.length, two.bonds.length, two.bonds.filter(({order}) => order === 2).length],
          hydrogens: [methane, ammonium, hydroxide].map((each) => m.hydrogens(each, 0)),
          cut: [cut.atoms.length, cut.bonds], before: chain.bonds.length,
          csv: (await import("/static/csv.js")).parseCsv(csv),
          shown: ["-1.23456", "0.00001234", "12345678", "high", "", "100"]
            .map((await import("/static/results.js")).shown),
        };
      }""",
        'a,"b, ""c"""\n,"x\ny"\n',
    )
    assert found["far"] == pytest.approx(2 * 3**0.5, abs=1e-9)
    assert found["sides"] == pytest.approx([1] * 5, abs=1e-9)
    assert found["fused"] == [10, 11, 5]
    assert found["hydrogens"] == [4, 4, 1]
    assert found["cut"] == [4, [{"start": 1, "end": 2, "order": 1}, {"start": 2, "end": 3, "order": 1}]]
    assert found["before"] == 4
    assert found["csv"] == [["a", 'b, "c"'], ["", "x\ny"]]
    minus = "\N{MINUS SIGN}"
    assert found["shown"] == [f"{minus}1.235", f"1.234e{minus}5", "1.235e+7", "high", "", "100"]


def test_a_typed_molecule_goes_to_the_drawing_and_back(open_page: Open) -> None:
    opened = open_page()
    opened.page.fill("#smiles", "C[C@H](N)C(=O)O alanine")
    opened.click("#to-sketch")
    opened.drawn("CC(N)C(=O)O")
    assert "no stereochemistry" in opened.text("#ask .problem")
    opened.click("button[aria-label='Tidy up']")
    opened.click("#add-drawing")
    opened.page.wait_for_function("() => document.getElementById('smiles').value.endsWith('CC(N)C(=O)O\\n')")
    opened.click("#predict-drawing")
    opened.page.wait_for_selector("#results:not([hidden])")
    assert opened.text("#table td.smiles").endswith("CC(N)C(=O)O")


def test_a_file_is_dropped(open_page: Open, run: Path, tmp_path: Path) -> None:
    texts = molecules(40)[0]
    rows = [f'"row {place}, {SCRIPT}",{text}' for place, text in enumerate(texts * 3)]
    (tmp_path / "in.csv").write_text("\n".join(["note,structure", *rows]))
    opened = open_page()
    opened.click("#tab-file")
    opened.page.set_input_files("#file", tmp_path / "in.csv")
    opened.page.wait_for_selector("#ask .problem:not([hidden])")
    assert opened.text("#ask .problem").startswith("The table has no column 'smiles'")
    opened.page.fill("#column", "structure")
    opened.click("#again")
    opened.page.wait_for_selector("#results:not([hidden])")
    assert opened.text("#summary") == "120 rows"
    assert opened.page.locator("#table tbody tr").count() == 50
    opened.click("#later")
    opened.click("#later")
    assert opened.text("#shown-rows") == "rows 101 to 120 of 120"
    assert f"row 119, {SCRIPT}" in opened.text("#table tbody tr:last-child")
    asked = {"smiles": "structure", "neighbours": True}
    predict_file(run, tmp_path / "in.csv", tmp_path / "out.csv", quiet=True, device="cpu", **asked)
    with opened.page.expect_download() as download:
        opened.click("#download")
    assert Path(download.value.path()).read_bytes() == (tmp_path / "out.csv").read_bytes()
    assert download.value.suggested_filename == "in-predictions.csv"
    # Dropped anywhere on the page, and of a kind that nobody reads.
    transfer = opened.page.evaluate_handle(
        "() => { const data = new DataTransfer(); data.items.add(new File(['x'], 'x.pdf')); return data; }"
    )
    opened.page.dispatch_event("body", "drop", {"dataTransfer": transfer})
    opened.page.wait_for_selector("#ask .problem:not([hidden])")
    assert "x.pdf ends in .pdf; expected one of .csv" in opened.text("#ask .problem")
    complaints = [text for text in opened.complaints if "422" not in text]
    assert complaints == []


def test_intervals_and_what_is_unlike_training_are_shown(
    open_page: Open, trusted: Path, trusted_server: Running
) -> None:
    """Below the value its bounds; what is like nothing in training says so, here and in its explanation."""
    expected = load(trusted, "cpu").predict(["c1ccccc1CCCC", "[Pt]"], interval=0.9)
    assert expected.low is not None
    assert expected.high is not None
    opened = open_page(trusted_server)
    opened.predict("c1ccccc1CCCC butylbenzene\n[Pt] platinum\nC1CC broken\n")
    assert "the interval that is to hold 90% of true values" in opened.text("#summary")
    bounds = opened.page.locator("#table td.value .interval").all_inner_texts()
    told = [[float(text.replace("\u2212", "-")) for text in each.split(" to ")] for each in bounds]
    np.testing.assert_allclose(told, np.concatenate([expected.low, expected.high], 1), rtol=1e-3)
    assert opened.page.locator("#table td.unlike").all_inner_texts() == ["", "unlike anything trained on", ""]
    opened.page.locator("#table button").nth(1).click()
    opened.page.wait_for_selector("#explanation:not([hidden])", timeout=120_000)
    frame = opened.page.frame_locator("#frame")
    assert bounds[1] == frame.locator(".predictions .interval").inner_text()
    assert "Unlike anything trained on" in frame.locator("#top .notice").inner_text()
    opened.predict("c1ccccc1CCCC\n")
    opened.page.wait_for_function("() => document.querySelectorAll('#table tbody tr').length === 1")
    assert opened.page.locator("#table td.unlike").count() == 0
    assert [text for text in opened.complaints if "Content Security Policy" not in text] == []


def test_an_explanation_is_shown_in_a_frame_of_its_own(open_page: Open) -> None:
    opened = open_page()
    opened.predict("CCO\nC1CC\n")
    assert opened.page.locator("#table button").count() == 1
    opened.click("#table button")
    opened.page.wait_for_selector("#explanation:not([hidden])", timeout=120_000)
    frame = opened.page.frame_locator("#frame")
    frame.locator("h1").wait_for()
    assert "CCO" in frame.locator("h1").inner_text()
    # It has no origin: it cannot reach the page around it, nor ask the server.
    inner = next(each for each in opened.page.frames if "/explanations/" in each.url)
    assert inner.evaluate("self.origin") == "null"
    asked = inner.evaluate("fetch('/api/run').then(() => 'answered', () => 'refused')")
    assert asked == "refused"
    expected = [text for text in opened.complaints if "Content Security Policy" not in text and "connect" not in text]
    assert expected == []


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), pytest.param(1600, "light", marks=pytest.mark.slow)])
def test_it_fits_the_screen_and_the_keyboard_reaches_everything(open_page: Open, width: int, scheme: str) -> None:
    opened = open_page(width=width, scheme=scheme)
    opened.predict("CC(=O)Oc1ccccc1C(=O)O aspirin\nC1CC a ring that is never closed\n")
    for tab in ("type", "draw", "file"):
        opened.click(f"#tab-{tab}")
        wide = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], tab
    opened.page.focus("#tab-file")
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.evaluate("document.activeElement.id") == "tab-type"
    reached = set()
    opened.page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    for _ in range(40):
        opened.page.keyboard.press("Tab")
        reached.add(opened.page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert {"tab-type", "smiles", "Predict", "examples", "to-sketch", "download", "Explain"} <= reached
    unnamed = opened.page.evaluate(
        "[...document.querySelectorAll('button, input, textarea, a[href]')]"
        ".filter(e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.title)).length"
    )
    assert unnamed == 0
    ink, paper = opened.page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.querySelector('section')).backgroundColor]"
    )
    light = [sum(map(int, colour[4:-1].split(","))) > 384 for colour in (ink, paper)]
    assert light == ([True, False] if scheme == "dark" else [False, True])
    assert opened.complaints == []


def test_graphs_are_pasted(open_page: Open, graph_server: Running) -> None:
    opened = open_page(graph_server)
    assert opened.page.locator("[role=tab]:visible").all_inner_texts() == ["Paste graphs", "Drop a file"]
    graphs = [nx.node_link_data(path_graph(nodes), edges="edges") for nodes in (3, 5)]
    opened.page.fill("#graphs", "{]")
    opened.click("#panel-graph button.main")
    opened.page.wait_for_selector("#ask .problem:not([hidden])")
    assert opened.text("#ask .problem").startswith("This is not JSON")
    opened.page.fill("#graphs", json.dumps(graphs))
    opened.click("#panel-graph button.main")
    opened.page.wait_for_selector("#results:not([hidden])")
    alone = graph_server.post("/api/predict", {"graphs": graphs, "alone": True}).json()["rows"]
    titles = opened.page.locator("td.value").evaluate_all("cells => cells.map(cell => cell.title)")
    assert titles == [f"{row['predicted_length']:.12g}" for row in alone]
    assert opened.page.locator("td.picture").count() == 0
    assert opened.complaints == []
