"""NAME=VALUE, as several verbs take it, and the settings that have an option of their own."""

import argparse
from collections.abc import Mapping, Sequence

# Settings that most people change, by the option that changes them. They are the same as --set NAME=VALUE.
PLAIN: Mapping[str, str] = {
    "--epochs": "training.epochs",
    "--batch-size": "training.batch_size",
    "--lr": "training.learning_rate",
    "--metric": "training.metric",
    "--loss": "training.loss",
}


def named_values(texts: Sequence[str], option: str = "--set", example: str = "training.epochs=20") -> dict[str, str]:
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{option} {text!r} has no '='; expected NAME=VALUE such as {example}")
        values[name.strip()] = value.strip()
    return values


def settings(options: argparse.Namespace) -> dict[str, str]:
    """What ``--set`` and the plain options say together; where both say something else, neither is taken."""
    values = named_values(options.set)
    for option, path in PLAIN.items():
        plain = getattr(options, option.removeprefix("--").replace("-", "_"))
        if plain is None:
            continue
        if plain == "0" and option == "--epochs":
            # The setting has a zero of its own, which means as many as suit the data.
            raise ValueError("--epochs is 0; expected 1 or more, or leave it out to have it chosen by the data")
        if values.setdefault(path, plain) != plain:
            raise ValueError(f"{option} is {plain}, but --set {path} is {values[path]}; expected one of the two")
    return values
