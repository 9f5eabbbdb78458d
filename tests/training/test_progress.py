"""What a person reads while a model trains."""

import pytest

from tokengt.training import progress as module
from tokengt.training.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by hand."""
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def _line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.strip()


def test_many_graphs_are_counted_in_graphs(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(10)
    progress.start(0)
    progress.advance(1.0, 4000)
    clock[0] += 20
    progress.epoch(1, False, loss="0.5")
    assert _line(capsys) == "training: epoch 1/10, loss 0.5, graphs/s 200, 20 s, about 180 s left"


def test_one_large_graph_is_counted_in_nodes(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """One graph in twenty seconds is no "graphs/s 0"."""
    progress = Progress(10, nodes=100_000)
    progress.start(0)
    for epoch in (1, 2):
        progress.advance(1.0, 1)
        clock[0] += 20
        progress.epoch(epoch, False)
        assert (
            _line(capsys)
            == f"training: epoch {epoch}/10, nodes/s 5,000, {20 * epoch} s, about {20 * (10 - epoch)} s left"
        )


def test_a_few_graphs_a_second_are_not_none(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(4)
    progress.start(0)
    progress.advance(1.0, 5)
    clock[0] += 15
    progress.epoch(1, False)
    assert "graphs/s 0.33," in _line(capsys)


def test_the_time_left_counts_from_where_a_run_went_on(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(10)
    progress.start(7)
    progress.advance(1.0, 30)
    clock[0] += 30
    progress.epoch(8, False)
    assert _line(capsys).endswith("30 s, about 60 s left")
    clock[0] += 30
    progress.epoch(10, True)
    assert _line(capsys).endswith("60 s")


def test_quiet_says_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(1, quiet=True)
    progress.start(0)
    progress.advance(1.0, 1)
    clock[0] += 30
    progress.epoch(1, True)
    progress.close()
    assert _line(capsys) == ""
