"""What is wrong with a request: one sentence, the field that it is about, and what was expected there."""

import json
from collections.abc import Mapping
from typing import Any

_LONGEST = 1000


class Problem(Exception):
    """An answer other than the one that was asked for.

    Args:
        status: the HTTP status.
        error: one sentence for a person.
        field: the part of the request that it is about, such as ``smiles[3]``; None where it is about all of it.
        expected: what should have been there; None where the sentence says all.
        headers: headers of the answer, such as when to come again.
    """

    def __init__(
        self,
        status: int,
        error: str,
        field: str | None = None,
        expected: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, error, field, expected, headers)
        self.status, self.field, self.expected, self.headers = status, field, expected, dict(headers or {})
        self.error = shortened(error)

    @classmethod
    def of_value(cls, field: str, value: Any, expected: str, status: int = 422) -> "Problem":
        """A field that holds something else than it should."""
        return cls(status, f"{field} is {shown(value)}; expected {expected}", field, expected)

    def body(self) -> bytes:
        """The answer as JSON; characters beyond ASCII are escaped, so that any text can be quoted."""
        return json.dumps({"error": self.error, "field": self.field, "expected": self.expected}).encode()


def shown(value: Any, most: int = 60) -> str:
    """A value of a request for a sentence: as JSON has it, on one line, and cut where it is long."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    text = json.dumps(value[: most + 1] if isinstance(value, str) else value)
    return text if len(text) <= most else f"{text[:most]}..."


def shortened(sentence: str, most: int = _LONGEST) -> str:
    """One line that a person can read, whatever text it quotes."""
    line = " ".join(sentence.split())
    return line if len(line) <= most else f"{line[:most]}..."
