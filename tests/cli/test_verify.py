"""``tokengt verify`` as a person runs it."""

import json
from dataclasses import replace

import pytest

from tests.cli.command import here
from tokengt.cli import main
from tokengt.theory import verify as room
from tokengt.theory.verify import Verdict


def test_one_line_a_claim_and_the_exit_status() -> None:
    done = here("verify", "--order", "2", "--nodes", "3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("order 2: n = d_p = 3, a = 1000, bell(2k) = 15 heads")
    assert [line.split("  ")[1] for line in lines[1:4]] == ["Lemmas 2 and 3", "Definition 4", "Definition 4, span"]
    assert lines[-1] == "no claim of 17 fails"
    assert len(lines) == 19


def test_nodes_are_those_of_the_graphs_that_wl_tells_apart() -> None:
    """Six without --nodes; no two graphs of three nodes have equal degrees."""
    six, three = (here("verify", "--order", "2", *more) for more in ((), ("--nodes", "3")))
    assert (six.returncode, three.returncode) == (0, 0)
    assert "86 pairs of graphs of 6 nodes" in six.stdout
    assert "2-WL tells no two graphs of 3 nodes apart that are the same to degrees" in three.stdout


def test_the_wrong_sharpness_is_said_on_the_last_line() -> None:
    blunt, sharp = (here("verify", "--order", "1", "--sharpness", a) for a in ("5", "1e15"))
    assert (blunt.returncode, sharp.returncode) == (0, 0)
    assert blunt.stdout.splitlines()[-1].endswith("keep to their bounds and approximate nothing: raise --sharpness")
    assert sharp.stdout.splitlines()[-1].endswith("float64's rounding of the logits: lower --sharpness")


def test_sets_have_no_wl_test_and_json_says_so() -> None:
    done = here("verify", "--order", "1", "--json")
    assert done.returncode == 0, done.stderr
    claims = json.loads(done.stdout)
    assert [claim["verdict"] for claim in claims[-2:]] == ["not applicable", "not applicable"]
    assert {"name", "statement", "order", "measured", "bound", "formula", "verdict", "note", "relation"} == set(
        claims[0]
    )


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize(("verdict", "status"), [("holds", 0), ("fails", 1)])
def test_a_claim_that_fails_is_the_exit_status(
    verdict: Verdict, status: int, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One claim of two."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    claim = next(room.verify(room.Setting(1, 2)))
    monkeypatch.setattr(room, "verify", lambda _: iter([replace(claim, verdict=verdict), claim]))
    assert main(["verify", "--order", "1", "--nodes", "2", *more]) == status
    printed = capsys.readouterr().out
    if more:
        assert [each["verdict"] for each in json.loads(printed)] == [verdict, "holds"]
    else:
        assert ("1 of 2 claims fail" in printed) == (status == 1)


def test_a_wish_that_cannot_be_is_one_sentence() -> None:
    done = here("verify", "--nodes", "0")
    assert (done.returncode, done.stderr) == (2, "tokengt: nodes is 0; expected at least 1\n")
