"""Kernels that were launched once and are launched again, all by one call: CUDA graphs.

A small model's training step is a thousand small kernels, and a host needs longer to launch them one by one than a GPU
to run them. Recorded, they are one launch. A recording repeats the kernels as they were, with the same addresses and
shapes. So what is recorded must launch the same kernels every time, on memory that stays where it is; it must wait for
nothing and copy nothing from the host. Random numbers go on being drawn anew, from the seed that is set at the time.
"""

import gc
import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache
from typing import Any, Protocol, runtime_checkable

import torch

# The most recordings that are made: making one takes as long as several steps. Other work is run as usual.
_MOST = 32


@runtime_checkable
class Tape(Protocol):
    """Kernels that were recorded: ``torch.cuda.CUDAGraph``."""

    def replay(self) -> None:
        """Launch them all."""


class Recorder:
    """Runs work by its name: the first time as usual, the second time it is recorded, from then on replayed.

    All recordings work in the same memory. So nothing that one leaves there may be read after another one was replayed;
    what must last lies in tensors that existed before.

    Args:
        enabled: False runs everything as usual.
        record: how work is recorded: :func:`record_on_gpu`.
    """

    def __init__(self, enabled: bool = True, record: "Callable[[Callable[[], None], Any], Tape] | None" = None) -> None:
        self.replays = 0
        self._enabled = enabled
        self._record = record or record_on_gpu
        self._tapes: dict[Hashable, Tape] = {}
        self._seen: set[Hashable] = set()
        self._pool: Any = None

    def run(self, name: Hashable, work: Callable[[], None], *, repeatable: bool = False) -> None:
        """Do the work. What has one name must launch the same kernels every time.

        ``repeatable``: when work that is not recorded finds no memory left, it may be begun again after recordings have
        given up theirs. It then has to change what lasts at its end, when it allocates nothing more.
        """
        tape = self._tapes.get(name) or self._tape(name, work)
        if tape is None:
            self._seen.add(name)
            self._run(work, repeatable)
            return
        tape.replay()
        self.replays += 1

    @property
    def holds_memory(self) -> bool:
        """Whether there are recordings, which keep memory from others."""
        return bool(self._tapes)

    def clear(self) -> None:
        """Free the memory that recordings hold; what comes is recorded anew."""
        self._tapes.clear()
        self._seen.clear()
        # The pool went with its last recording: the allocator refuses to record into it again.
        self._pool = None

    def forget(self) -> None:
        """Free the memory that recordings hold, and record no more."""
        self._enabled = False
        self.clear()

    def give_up(self, reason: str) -> bool:
        """:meth:`forget`, and say so; whether there was anything to free."""
        held = self.holds_memory
        self.forget()
        torch.cuda.empty_cache()
        warnings.warn(f"training goes on without CUDA graphs, slower: {reason.splitlines()[0]}", stacklevel=2)
        return held

    def _run(self, work: Callable[[], None], repeatable: bool) -> None:
        """As usual; where memory does not suffice and recordings hold some, free it and begin again."""
        if not (repeatable and self.holds_memory):
            work()
            return
        # Where the random numbers of the work begin: it must draw the same ones when it is begun again.
        state = torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.get_rng_state()
        try:
            work()
        except torch.OutOfMemoryError as error:
            reason = str(error) or type(error).__name__
        else:
            return
        self.give_up(reason)  # Not inside ``except``, where the error still holds the memory that is to be freed.
        (torch.cuda.set_rng_state if torch.cuda.is_available() else torch.set_rng_state)(state)
        work()

    def _tape(self, name: Hashable, work: Callable[[], None]) -> Tape | None:
        # The first time does what cannot be recorded: compiling, choosing algorithms, allocating.
        if not self._enabled or name not in self._seen or len(self._tapes) >= _MOST:
            return None
        reason = ""
        try:
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else object()
            self._tapes[name] = self._record(work, self._pool)
        except RuntimeError as error:  # There is no memory left, or a kernel cannot be recorded.
            reason = str(error) or type(error).__name__
        if reason:  # Not inside ``except``, where the error still holds the memory that is to be freed.
            self.give_up(reason)
        return self._tapes.get(name)


def record_on_gpu(work: Callable[[], None], pool: Any) -> Tape:
    """The kernels that ``work`` launches; none of them is run."""
    # Autocast keeps the copies of weights that it has made. A recording must make them anew, because weights change.
    torch.clear_autocast_cache()
    tape, here, device = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.current_device()
    aside = _side_stream(device)
    aside.wait_stream(here)
    # What the collector of garbage frees may not be freed in the middle of a recording. (``torch.cuda.graph`` would
    # collect it before, which takes longer than the recording.)
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(aside):
            # Another thread may copy a checkpoint meanwhile, which is none of this recording's business.
            tape.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                tape.capture_end()
    except RuntimeError:
        # The allocator is not told of the end of a recording that broke off. It would take it for one that still goes
        # on, and refuse to free memory. Told a second time, it says that there is none.
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device, pool)
        # Nor is the source of random numbers, which would then draw none outside of a recording. A copy of its state
        # knows of no recording, and goes on where it was.
        generator = torch.cuda.default_generators[device]
        generator.graphsafe_set_state(generator.clone_state())
        raise
    finally:
        if collects:
            gc.enable()
        torch.clear_autocast_cache()
    here.wait_stream(aside)
    return tape


@cache
def _side_stream(device: int) -> Any:
    """The stream on which everything is recorded.

    The library of matrix products keeps 33 MB for every stream that it works on, for good. If it took them in the
    middle of a recording, they would lie in the memory of recordings and keep it from being freed. So there is one
    stream for all recordings, and a product on it before the first.
    """
    aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(aside):
        one = torch.zeros(16, 16, device=f"cuda:{device}")
        torch.addmm(one[0], one, one)  # With a sum, which another part of the library works out,
        one @ one  # and without.
    return aside
