"""What the files of the plain Transformer do not speak of: they hold the equations of the paper, and nothing else."""

import re
from pathlib import Path

import pytest

import tokengt

ROOM = Path(tokengt.__file__).parent
EQUATIONS = [ROOM / "block.py", ROOM / "transformer.py"]


@pytest.mark.parametrize("file", [*sorted((ROOM / "attention").glob("*.py")), *EQUATIONS], ids=lambda file: file.name)
def test_tokens_and_sequences_and_nothing_of_graphs(file: Path) -> None:
    assert not re.findall("graph|node|edge", file.read_text(), re.IGNORECASE)


@pytest.mark.parametrize("file", EQUATIONS, ids=lambda file: file.name)
def test_nothing_of_what_makes_it_fast(file: Path) -> None:
    assert not re.findall("fused|replay|record|pending|compile", file.read_text(), re.IGNORECASE)
