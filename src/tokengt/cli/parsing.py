"""Arguments as people write them: a name that does not exist is answered with the nearest one that does."""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from tokengt.config import near
from tokengt.data.public import NAMES

# Characters of a sentence; a name or a value in it may be far longer.
_LONGEST = 1200


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are one sentence each. Parsers of verbs are of this class too.

    Options are not guessed from their first letters: an abbreviation would change its meaning with every new option.
    Paths are not empty: an empty one would be the current folder, and most likely means a mistake.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **more})
        self.register("type", Path, _path)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        args = self._with_swallowed(list(sys.argv[1:] if args is None else args))
        strange = self._strange(args)
        # An unknown option is said before what is missing: it may be what is missing, misspelled.
        known, rest = super().parse_known_args(args, namespace) if not strange else (argparse.Namespace(), strange)
        if rest:
            self.error(self._unknown(rest))
        return known, []

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"tokengt: {one_line(message)}\n")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Of "--option=--" argparse makes an option without a value.
        if action.option_strings and "--" in arg_strings:
            raise argparse.ArgumentError(None, f"{'/'.join(action.option_strings)} is '--'; expected a value")
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings) or f"the {str(action.metavar or action.dest).lower()}"
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                None, f"{name} is {value!r}{near(value, known)}; expected one of {', '.join(known)}"
            )

    def _strange(self, args: Sequence[str]) -> list[str]:
        """Options that this parser does not have; those that follow a verb are for the verb's own parser."""
        verbs = any(action.nargs == argparse.PARSER for action in self._get_positional_actions())
        mine = itertools.takewhile(lambda text: text != "--" and not (verbs and not text.startswith("-")), args)
        names = self._option_string_actions
        return [text for text in mine if text.startswith("--") and text.partition("=")[0] not in names]

    def _unknown(self, rest: Sequence[str]) -> str:
        written = next((text for text in rest if text.startswith("-")), None)
        if written is None:
            return f"{rest[0]!r} is one argument more than {self.prog} takes; {self.prog} --help lists them"
        name = written.partition("=")[0]
        options = [option for option in self._option_string_actions if option.startswith("--")]
        return f"{self.prog} has no option {name}{near(name, options)}; {self.prog} --help lists those it has"

    def _with_swallowed(self, args: list[str]) -> list[str]:
        """The arguments with those files in front that an option of several values would take for its own.

        ``--target logS data.csv`` means one target and the data, where nothing else is the data; so does
        ``--target gap qm9``.
        """
        # A graph that comes as two tables stands in place of the data.
        tables = any(text.partition("=")[0] in ("--nodes", "--edges") for text in args)
        kinds = (None,) if tables else (None, "?")
        wanted = sum(action.nargs in kinds for action in self._get_positional_actions())
        free, taken = self._places(args)
        missing = wanted - len(free)
        files = [place for place in taken if _is_data(args[place])]
        if missing <= 0 or len(files) < missing or files[-missing:] != taken[-missing:]:
            return args
        first = sorted([*free, *files[-missing:]])
        return [args[place] for place in first] + [text for place, text in enumerate(args) if place not in first]

    def _places(self, args: Sequence[str]) -> tuple[list[int], list[int]]:
        """Where arguments of no option stand, and the values of options of several ones, but for the first of each."""
        free: list[int] = []
        taken: list[int] = []
        values, several = 0, False
        for place, text in enumerate(args):
            action = self._option_string_actions.get(text.partition("=")[0])
            if action is not None:
                several = action.nargs == "+"
                values = 1 if action.nargs in (None, "+") else action.nargs if isinstance(action.nargs, int) else 0
                values -= "=" in text
            elif values > 0:
                values -= 1
            elif not text.startswith("-"):
                (taken if several else free).append(place)
        return free, taken


def one_line(sentence: str) -> str:
    """A sentence for a terminal: one line, and short enough to be read; what it quotes may be neither."""
    text = " ".join(line.strip() for line in sentence.splitlines())
    shown = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
    cut = len(shown) - _LONGEST
    return shown if cut <= 0 else f"{shown[: _LONGEST * 2 // 3]} [{cut:,} characters] {shown[-_LONGEST // 3 :]}"


def _is_data(text: str) -> bool:
    return bool(Path(text).suffix) or text in NAMES or Path(text).exists()


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no path; expected the name of a file or a folder")
    return Path(text)
