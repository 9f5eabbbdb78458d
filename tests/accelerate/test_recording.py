"""Work that is run, recorded and replayed by its name; on a CPU a recording is what calls the work again."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tokengt.accelerate import Recorder, recording


@dataclass
class Again:
    """A tape that calls the work again."""

    work: Callable[[], None]
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        self.work()


@dataclass
class Desk:
    """Records on a CPU, and notes what was recorded."""

    recorded: list[Callable[[], None]] = field(default_factory=list)
    pools: list[Any] = field(default_factory=list)

    def __call__(self, work: Callable[[], None], pool: Any) -> Again:
        self.recorded.append(work)
        self.pools.append(pool)
        return Again(work)


def test_work_is_run_then_recorded_then_replayed() -> None:
    """Recording launches nothing, so that the time it is recorded it is replayed once too."""
    desk, done = Desk(), []
    recorder = Recorder(record=desk)
    seen = []
    for _ in range(4):
        recorder.run("a", lambda: done.append("a"))
        seen.append((len(done), len(desk.recorded), recorder.replays))
    assert seen == [(1, 0, 0), (2, 1, 1), (3, 1, 2), (4, 1, 3)]
    recorder.run(("b", 1), lambda: done.append("b"))
    assert (len(desk.recorded), recorder.replays) == (1, 3)
    recorder.run(("b", 1), lambda: done.append("b"))
    assert (len(desk.recorded), recorder.replays) == (2, 4)
    assert done == ["a"] * 4 + ["b"] * 2
    assert desk.pools[0] is desk.pools[1]  # All recordings share their memory.


def test_what_is_recorded_after_a_clearing_has_memory_of_its_own() -> None:
    """The allocator gives up a pool with its last recording, and refuses to record into it again."""
    desk = Desk()
    recorder = Recorder(record=desk)
    for _ in range(2):
        recorder.run("a", lambda: None)
    recorder.clear()
    for _ in range(2):
        recorder.run("a", lambda: None)
    assert len(desk.pools) == 2
    assert desk.pools[0] is not desk.pools[1]


def test_the_work_that_was_recorded_is_what_is_replayed() -> None:
    """Whatever is passed later under the same name: kernels have the addresses that they were recorded with."""
    done: list[int] = []
    recorder = Recorder(record=Desk())
    for number in range(4):
        recorder.run("a", lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [0, 1, 1, 1]


def test_nothing_is_recorded_where_it_is_not_asked_for() -> None:
    desk, done = Desk(), []
    recorder = Recorder(enabled=False, record=desk)
    for number in range(3):
        recorder.run("a", lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [0, 1, 2]
    assert not desk.recorded
    assert recorder.replays == 0


def test_what_cannot_be_recorded_is_run_and_nothing_is_recorded_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the attempt has taken is free when the cache is emptied; one sentence says so, once."""
    desk, done, alive = Desk(), [], []

    class Taken:
        pass

    def refuse(work: Callable[[], None], pool: Any) -> Again:
        if len(desk.recorded) == 1:
            taken = Taken()
            alive.append(weakref.ref(taken))
            raise torch.OutOfMemoryError("no memory left\nat all")
        return desk(work, pool)

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: (gc.collect(), alive.append(alive[0]())))
    recorder = Recorder(record=refuse)
    for _ in range(2):
        recorder.run("a", lambda: done.append("a"))
    recorder.run("b", lambda: done.append("b"))
    assert recorder.holds_memory
    with pytest.warns(UserWarning, match=r"goes on without CUDA graphs, slower: no memory left$"):
        recorder.run("b", lambda: done.append("b"))
    for _ in range(3):  # A second warning would be an error.
        recorder.run("a", lambda: done.append("a"))
        recorder.run("b", lambda: done.append("b"))
    assert alive[1] is None
    assert not recorder.holds_memory
    assert done == ["a", "a", "b", "b", *["a", "b"] * 3]
    assert (len(desk.recorded), recorder.replays) == (1, 1)


def test_an_error_of_the_work_itself_is_raised() -> None:
    def broken() -> None:
        raise ValueError("the loss is a string")

    recorder = Recorder(record=Desk())
    for _ in range(2):
        with pytest.raises(ValueError, match="the loss is a string"):
            recorder.run("a", broken)


class Greedy:
    """Draws a number; finds no memory while recordings hold some, after it has drawn."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.drawn = recorder, list[float]()

    def __call__(self) -> None:
        drawn = torch.rand(()).item()
        if self.recorder.holds_memory:
            raise torch.OutOfMemoryError("no memory left\nat all")
        self.drawn.append(drawn)


def holding() -> Recorder:
    recorder = Recorder(record=Desk())
    for _ in range(2):
        recorder.run("other", lambda: None)
    assert recorder.holds_memory
    return recorder


def test_work_that_finds_no_memory_is_begun_again_with_that_of_recordings() -> None:
    """With the same random numbers: a run is the same whether there was a recording or not."""
    recorder = holding()
    work = Greedy(recorder)
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match=r"goes on without CUDA graphs, slower: no memory left$"):
        recorder.run("a", work, repeatable=True)
    torch.manual_seed(3)
    assert work.drawn == [torch.rand(()).item()]
    assert not recorder.holds_memory
    for _ in range(3):
        recorder.run("a", work, repeatable=True)
    assert len(work.drawn) == 4
    assert recorder.replays == 1


def test_work_that_changes_something_first_is_not_begun_again() -> None:
    recorder = holding()
    with pytest.raises(torch.OutOfMemoryError):
        recorder.run("a", Greedy(recorder))
    assert recorder.holds_memory


def test_memory_that_is_missing_without_recordings_is_an_error() -> None:
    def always() -> None:
        raise torch.OutOfMemoryError("none at all")

    with pytest.raises(torch.OutOfMemoryError, match="none at all"):
        Recorder(record=Desk()).run("a", always, repeatable=True)
    with (
        pytest.warns(UserWarning, match="goes on without CUDA graphs"),
        pytest.raises(torch.OutOfMemoryError, match="none at all"),
    ):
        holding().run("a", always, repeatable=True)


@pytest.mark.parametrize("again", [True, False])
def test_recordings_are_freed(again: bool) -> None:
    """By ``clear``, after which work is recorded anew, and by ``forget``, after which it is not."""
    desk = Desk()
    recorder = Recorder(record=desk)
    for _ in range(2):
        recorder.run("a", lambda: None)
    tape = weakref.ref(recorder._tapes["a"])
    (recorder.clear if again else recorder.forget)()
    gc.collect()
    assert tape() is None
    assert not recorder.holds_memory
    for _ in range(3):
        recorder.run("a", lambda: None)
    assert len(desk.recorded) == (2 if again else 1)
    assert recorder.replays == (3 if again else 1)


def test_only_so_many_recordings_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_MOST", 3)
    desk, done = Desk(), []
    recorder = Recorder(record=desk)
    for _ in range(4):
        for name in range(7):
            recorder.run(name, lambda name=name: done.append(name))  # type: ignore[misc]
    assert len(desk.recorded) == 3
    assert recorder.replays == 9
    assert done == [*range(7)] * 4
