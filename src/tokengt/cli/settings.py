"""NAME=VALUE, as several verbs take it."""

from collections.abc import Sequence


def named_values(texts: Sequence[str]) -> dict[str, str]:
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text!r} has no '='; expected NAME=VALUE such as training.epochs=20")
        values[name.strip()] = value.strip()
    return values
