"""The text that Prometheus reads."""

import re

from tokengt.serve.metrics import Histogram, Metrics

LINE = re.compile(r'(# (HELP|TYPE) tokengt_\w+ .+|tokengt_\w+(\{(\w+="([^"\\]|\\.)*",?)+\})? [-+.e\d]+)')


def test_every_line_is_of_the_format_and_every_name_is_announced_once() -> None:
    metrics = Metrics()
    metrics.answered('odd"route\\\n', 200, 0.02)
    text = metrics.text({"waiting": ("How many wait.", 3)})
    assert text.endswith("\n")
    lines = text.splitlines()
    for line in lines:
        assert LINE.fullmatch(line), line
    kinds = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    assert "tokengt_waiting 3" in lines


def test_counts_by_hand() -> None:
    metrics = Metrics()
    metrics.answered("/a", 200, 0.004)
    metrics.answered("/a", 200, 0.3)
    metrics.answered("/b", 422, 100.0)
    metrics.predicted(10, 3)
    metrics.batch(4, 10, 0.5)
    metrics.batch(1, 1, 0.25)
    metrics.gave_up("full")
    lines = metrics.text({}).splitlines()
    for expected in (
        'tokengt_requests_total{route="/a",status="200"} 2',
        'tokengt_requests_total{route="/b",status="422"} 1',
        'tokengt_request_seconds_bucket{le="0.005"} 1',
        'tokengt_request_seconds_bucket{le="0.25"} 1',
        'tokengt_request_seconds_bucket{le="0.5"} 2',
        'tokengt_request_seconds_bucket{le="60"} 2',
        'tokengt_request_seconds_bucket{le="+Inf"} 3',
        "tokengt_request_seconds_sum 100.304",
        "tokengt_request_seconds_count 3",
        'tokengt_rows_total{outcome="predicted"} 7',
        'tokengt_rows_total{outcome="refused"} 3',
        'tokengt_given_up_total{why="full"} 1',
        'tokengt_batch_rows_bucket{le="1"} 1',
        'tokengt_batch_rows_bucket{le="16"} 2',
        "tokengt_batched_requests_total 5",
        "tokengt_model_seconds_total 0.75",
    ):
        assert expected in lines
    assert metrics.requests == 3


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    histogram = Histogram((1, 2))
    for value in (1, 2, 2.5):
        histogram.add(value)
    assert histogram.counts == [1, 1, 1]
