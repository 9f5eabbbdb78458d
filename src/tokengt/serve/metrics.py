"""Counters of a server, as the text that Prometheus reads. Labels come from fixed lists, so their number is bounded."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# Upper bounds of the buckets of a histogram: seconds of a request, and rows of a batch.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
Labels = tuple[tuple[str, str], ...]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Histogram:
    """How many values are in each bucket (those above the last bound come last), and their sum."""

    bounds: Sequence[int | float]
    total: float = 0.0
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: int | float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """What has happened since the server was started; any thread may add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._rows: Counter[str] = Counter()
        self._given_up: Counter[str] = Counter()
        self._batched = 0
        self._model_seconds = 0.0
        self._seconds = Histogram(SECONDS)
        self._batch_rows = Histogram(ROWS)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """A request was answered; ``route`` is one of the app's own, never what a client made up."""
        with self._lock:
            self._requests[route, status] += 1
            self._seconds.add(seconds)

    def predicted(self, rows: int, bad: int) -> None:
        with self._lock:
            self._rows["predicted"] += rows - bad
            self._rows["refused"] += bad

    def gave_up(self, why: str) -> None:
        """A request got no answer to its question: the server was full or too slow, or the client had gone."""
        with self._lock:
            self._given_up[why] += 1

    def batch(self, requests: int, rows: int, seconds: float) -> None:
        """The model has answered one batch."""
        with self._lock:
            self._batched += requests
            self._batch_rows.add(rows)
            self._model_seconds += seconds

    @property
    def requests(self) -> int:
        """How many were answered, whatever was asked."""
        with self._lock:
            return self._requests.total()

    def text(self, gauges: Mapping[str, tuple[str, int | float]]) -> str:
        """Everything, with ``gauges`` (help and value by name) that are measured now."""
        with self._lock:
            parts = [
                _counter(
                    "requests",
                    "Requests that were answered, by route and HTTP status.",
                    {(("route", route), ("status", str(code))): n for (route, code), n in self._requests.items()},
                ),
                _histogram("request_seconds", "How long requests took.", self._seconds),
                _counter(
                    "rows",
                    "Molecules or graphs: predicted, or refused with a reason.",
                    {(("outcome", name),): self._rows[name] for name in ("predicted", "refused")},
                ),
                _counter(
                    "given_up",
                    "Requests without an answer to their question: the server was full or late, or the client gone.",
                    {(("why", name),): self._given_up[name] for name in ("full", "late", "gone")},
                ),
                _histogram("batch_rows", "Rows of the batches that the model was given.", self._batch_rows),
                _counter("batched_requests", "Requests in all batches together.", {(): self._batched}),
                _counter("model_seconds", "Time that the model was at work.", {(): self._model_seconds}),
            ]
        parts += [_family(name, "gauge", told, [_sample(name, (), value)]) for name, (told, value) in gauges.items()]
        return "".join(parts)


def _counter(name: str, told: str, values: Mapping[Labels, int | float]) -> str:
    name = f"{name}_total"
    return _family(name, "counter", told, (_sample(name, labels, value) for labels, value in sorted(values.items())))


def _histogram(name: str, told: str, histogram: Histogram) -> str:
    samples, seen = [], 0
    for bound, count in zip((*map(_number, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        seen += count
        samples.append(_sample(f"{name}_bucket", (("le", bound),), seen))
    samples += [_sample(f"{name}_sum", (), histogram.total), _sample(f"{name}_count", (), seen)]
    return _family(name, "histogram", told, samples)


def _family(name: str, kind: str, told: str, samples: Iterable[str]) -> str:
    return f"# HELP tokengt_{name} {told}\n# TYPE tokengt_{name} {kind}\n" + "".join(samples)


def _sample(name: str, labels: Labels, value: int | float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"tokengt_{name}{f'{{{inside}}}' if inside else ''} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: int | float) -> str:
    return f"{value:.10g}"
