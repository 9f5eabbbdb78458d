"""What the validation part says about a run's predictions: saved with the run, applied to every new row.

For numbers: intervals that hold a given share of the labels (:mod:`tokengt.training.conformal`). For classes:
probabilities that hold (:mod:`tokengt.training.probabilities`). For graphs as a whole: how near the training data is
(:mod:`tokengt.training.neighbours`). ``calibration.json`` says what there is, with the checksum of the arrays in
``calibration.safetensors``; another way to calibrate is a part of :class:`Calibration` with its arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tokengt.config import from_dict, read_json
from tokengt.data.cells import LARGEST_FLOAT32
from tokengt.files import checksum, write_whole
from tokengt.models.pretrained import unsealed, write_sealed
from tokengt.training.conformal import Conformal, check_level, fewest, quantile
from tokengt.training.difficulty import Difficulty, Signs
from tokengt.training.neighbours import Described, Known, Near, Usual
from tokengt.training.probabilities import ProbabilityMap
from tokengt.training.tasks import Task

CALIBRATION, ARRAYS = "calibration.json", "calibration.safetensors"
_FORMAT = "tokengt-calibration-1"


@dataclass(frozen=True)
class _Told:
    """What ``calibration.json`` says: the run it belongs to, the checksum of its arrays, and what these are."""

    format: str
    run: str
    sha256: str
    signs: tuple[str, ...] = ()
    scores: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Trust:
    """How far predictions of some rows can be trusted; each None where the run does not say.

    ``low`` and ``high`` bound the interval. ``similarity`` is that of the most similar training graph, ``distance``
    how far the nearest ones are (1 is usual), and ``unlike`` says that hardly any training graph is as far from others.
    """

    low: Float[ndarray, "rows width"] | None = None
    high: Float[ndarray, "rows width"] | None = None
    similarity: Float[ndarray, " rows"] | None = None
    distance: Float[ndarray, " rows"] | None = None
    unlike: Bool[ndarray, " rows"] | None = None

    def at(self, rows: slice | Int[ndarray, " some"]) -> "Trust":
        """What is said of some of the rows, in the order in which they are named."""
        return Trust(*(None if each is None else each[rows] for each in vars(self).values()))

    @classmethod
    def joined(cls, parts: "Sequence[Trust]") -> "Trust":
        """What is said of rows one after another; all parts say the same kinds of things."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(None if each[0] is None else np.concatenate(each) for each in columns))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Everything that was learned from the validation part; None for what this run has no use or too few labels for."""

    conformal: Conformal | None = None
    chances: ProbabilityMap | None = None
    known: Known | None = None

    @property
    def reads_spread(self) -> bool:
        """Whether intervals depend on how far the models of the run disagree, or on what they say themselves."""
        return self.conformal is not None and "spread" in self.conformal.difficulty.names

    def probabilities(self, chances: Float[ndarray, "rows width"]) -> Float[ndarray, "rows width"]:
        return chances if self.chances is None else self.chances.apply(chances)

    def has_interval(self, task: Task, level: float) -> bool:
        """Whether there are intervals of this level."""
        try:
            self.check_interval(task, level)
        except ValueError:
            return False
        return True

    def check_interval(self, task: Task, level: float) -> None:
        """Refuse what cannot be told, in one sentence."""
        check_level(level)
        if task.kind != "regression":
            raise ValueError(f"an interval is for numbers; this run predicts {', '.join(task.names)} ({task.kind})")
        if self.conformal is None:
            raise ValueError(
                "this run has no intervals: its validation part had too few labels, or an earlier version trained it"
            )
        for name, scores in zip(task.names, self.conformal.scores, strict=True):
            if np.isnan(quantile(scores, level)):
                raise ValueError(
                    f"an interval of {level} needs {fewest(level)} labels of {name!r} in the validation part; this run "
                    f"had {len(scores)}: ask for less, or train with a larger one"
                )

    def trust(
        self,
        task: Task,
        predictions: Float[ndarray, "rows width"],
        described: Described | None,
        spread: Float[ndarray, "rows width"] | None,
        level: float | None,
    ) -> Trust:
        """What can be said of predictions; an interval where ``level`` asks for one."""
        near = None if self.known is None or described is None else self.known.look(described)
        low = high = None
        if level is not None:
            self.check_interval(task, level)
            assert self.conformal is not None
            half = self.conformal.half_widths(signs_of(task, predictions, near, spread, self.reads_spread), level)
            # Around a logarithm where that is learned: bounds of what is positive are positive too.
            scaling, centre = task.scaling, task.scaling.comparable(predictions)
            low, high = scaling.from_comparable(centre - half), scaling.from_comparable(centre + half)
        if near is None or self.known is None:
            return Trust(low, high)
        return Trust(low, high, near.similarity, near.distance, self.known.unlike(near))


def signs_of(
    task: Task,
    predictions: Float[ndarray, "rows width"],
    near: Near | None,
    spread: Float[ndarray, "rows width"] | None,
    reads_spread: bool,
) -> Signs:
    """The signs of a regression's rows."""
    return Signs.of(predictions, np.array(task.mean), np.array(task.scale), near, spread if reads_spread else None)


def write_calibration(folder: Path, calibration: Calibration, run: str) -> str:
    """Both files of a run; returns the checksum of ``calibration.json``."""
    arrays, conformal = _arrays(calibration), calibration.conformal
    content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    write_whole(folder / ARRAYS, content)
    told: dict[str, Any] = {"format": _FORMAT, "run": run, "sha256": checksum(content)}
    if conformal is not None:
        told |= {"signs": conformal.difficulty.names, "scores": tuple(map(len, conformal.scores))}
    write_sealed(folder / CALIBRATION, told)
    return checksum((folder / CALIBRATION).read_bytes())


def read_calibration(folder: Path, run: str, sha256: str | None) -> Calibration:
    """The calibration of a run that says it has one of this checksum; an empty one for a run that says it has none.

    Raises:
        ValueError: one sentence: a file is missing, damaged, or belongs to another run.
    """
    if sha256 is None:
        return Calibration()
    file, data = folder / CALIBRATION, folder / ARRAYS
    for path in (file, data):
        if not path.is_file():
            raise ValueError(f"{path} is missing; expected what the run's validation part told of its predictions")
    if checksum(file.read_bytes()) != sha256:
        raise ValueError(f"{file} is not the one that the run was finished with: it is torn or was changed")
    content = unsealed(read_json(file), file)
    if content.get("format") != _FORMAT:
        raise ValueError(f"{file} has format {content.get('format')!r}; expected {_FORMAT!r}")
    told = from_dict(_Told, content, str(file))
    if told.run != run:
        raise ValueError(f"{file} belongs to another run than run.json beside it")
    raw = data.read_bytes()
    if checksum(raw) != told.sha256:
        raise ValueError(f"{data} does not match its checksum: it is torn or was changed")
    try:
        return _calibration(load(raw), told)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{data} is no calibration of ours: {error}") from error


def _arrays(calibration: Calibration) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    if calibration.conformal is not None:
        difficulty = calibration.conformal.difficulty
        parts = {name: getattr(difficulty, name) for name in ("mean", "scale", "weights", "offset")}
        arrays |= {f"difficulty.{name}": part for name, part in parts.items()}
        arrays["scores"] = np.concatenate([np.zeros(0), *calibration.conformal.scores])
    if calibration.chances is not None:
        arrays |= {"chances.slope": calibration.chances.slope, "chances.offset": calibration.chances.offset}
    known = calibration.known
    if known is not None:
        usual = np.array([known.usual.similarity, known.usual.distance, known.usual.unit])
        # Labels that float32 cannot hold are none that anybody measures; they become its largest numbers.
        labels = np.clip(known.labels, -LARGEST_FLOAT32, LARGEST_FLOAT32).astype(np.float32)
        arrays |= {"known.labels": labels, "known.usual": usual}
        if known.described.bits is not None:
            arrays["known.bits"] = known.described.bits
        if known.described.vectors is not None:
            arrays |= {
                "known.vectors": known.described.vectors.astype(np.float16),
                "known.centre": known.centre,
                "known.scale": known.scale,
            }
    return arrays


def _calibration(arrays: Mapping[str, NDArray[Any]], told: _Told) -> Calibration:
    conformal = chances = known = None
    if "scores" in arrays:
        parts = (arrays[f"difficulty.{name}"] for name in ("mean", "scale", "weights", "offset"))
        scores = np.split(arrays["scores"], np.cumsum(told.scores)[:-1])
        conformal = Conformal(Difficulty(told.signs, *parts), tuple(scores))
    if "chances.slope" in arrays:
        chances = ProbabilityMap(arrays["chances.slope"], arrays["chances.offset"])
    if "known.labels" in arrays:
        vectors, none = arrays.get("known.vectors"), np.zeros(0)
        described = Described(arrays.get("known.bits"), None if vectors is None else vectors.astype(np.float64))
        centre, scale = arrays.get("known.centre", none), arrays.get("known.scale", none)
        usual = Usual(*(float(value) for value in arrays["known.usual"]))
        known = Known(described, arrays["known.labels"].astype(np.float64), centre, scale, usual)
    return Calibration(conformal, chances, known)
