import io
import sys
from types import SimpleNamespace

import pytest

from tokengt.data import progress
from tokengt.data.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(2000, "rows", "prepare", done=500) as tick:
        tick(1500)
    last = terminal.getvalue().split("\r")[-1]
    assert last.startswith("prepare: 100%")
    assert "2.00k/2.00k" in last
    assert "rows/s" in last


def test_a_few_lines_elsewhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """1,000 steps of a second each: one line per quarter, with the time that is left, and none at the end."""
    clock = 0.0
    # The module's clock alone: servers of other tests go by that of the process.
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock))
    with progress_bar(1000, "rows", "prepare") as tick:
        for _ in range(1000):
            clock += 1
            tick(1)
    assert capsys.readouterr().err.splitlines() == [
        "prepare: 250 of 1,000 rows, about 750 s left",
        "prepare: 500 of 1,000 rows, about 500 s left",
        "prepare: 750 of 1,000 rows, about 250 s left",
    ]


@pytest.mark.parametrize("shown", [True, False])
def test_silent_when_quick_or_unwanted(shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(10, "rows", "prepare", shown=shown) as tick:
        for _ in range(10):
            tick(1)
    assert capsys.readouterr().err == ""
