"""The folder of a run while a training works in it: had alone, and left as it was found where the training is refused.

Nothing is ever removed from it that this training did not make itself.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokengt.files import folder_lock, remove_empty, sweep_folder
from tokengt.training.run import DATA, STORE, refuse_to_overwrite
from tokengt.training.spec import RUN_FILE


@contextmanager
def run_folder(out: Path, resume: bool, prepares: bool) -> Iterator[None]:
    """Have ``out`` to oneself: a second training is refused. ``prepares`` says whether a store is made in it.

    When the block fails before it wrote a run, what it made goes. But what a full disk or a dead worker interrupts
    is kept, so that the same command goes on from there.
    """
    with folder_lock(out, lambda: _refuse_taken(out)) as made:
        # Another training may have begun a run here after this one looked first.
        refuse_to_overwrite(out, resume)
        for folder in (out, out / "checkpoints", *out.glob("members/*"), *out.glob("members/*/checkpoints")):
            sweep_folder(folder)
        had_run, had_table, ours = (out / RUN_FILE).exists(), (out / DATA).exists(), list[Path]()
        try:
            if prepares:
                # Whoever makes the folder knows that it was not there before, whatever others do at this moment.
                with suppress(FileExistsError):
                    (out / STORE).mkdir()
                    ours.append(out / STORE)
            yield
        except (OSError, MemoryError):
            raise
        except Exception:
            if had_run or not (out / RUN_FILE).exists():
                _remove(*ours, *([] if had_table else [out / DATA]))
            raise
        finally:
            remove_empty(*ours, *reversed(made))


def _refuse_taken(out: Path) -> None:
    raise ValueError(f"another training is at work in {out}; wait for its end, or choose another folder")


def _remove(*places: Path) -> None:
    for place in places:
        shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink(missing_ok=True)
