"""The leak report: each comparison is made once and kept, as cells are.

``OUT/leaks/ENDPOINT.json`` compares the test part with train_val. ``OUT/leaks/CORPUS-HASH.json`` compares the test
parts of some endpoints with what weights were trained on, reading that once for all of them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tokengt.experiments.admet.leaks import overlap
from tokengt.experiments.admet.reading import EndpointData
from tokengt.experiments.admet.seen import SHIPPED_MOLECULES, Corpus, found_in, shipped_corpus
from tokengt.experiments.cells import Say, kept_cell
from tokengt.files import checksum

LEAKS, WITHIN = "leaks", "train_val"
Looked = Literal["all", "keys", "within"]
# Molecules between two lines that say how far it is.
_STEP = 50_000


def leak_report(
    datas: Sequence[EndpointData], seen: Sequence[Corpus], home: Path, say: Say, looked: Looked = "all"
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """``found[corpus][endpoint]``, with train_val as the first corpus, and sentences about what was not looked at.

    ``looked`` says how closely: "all" with neighbours; "keys" without neighbours in what weights were trained on, which
    takes most of the time; "within" in train_val alone.
    """
    found = {WITHIN: {data.endpoint.name: _within(data, home) for data in datas}}
    if looked == "within":
        return found, ["what the weights were trained on was not looked at: only train_val was asked for"]
    shipped, notes = shipped_corpus(), []
    if isinstance(shipped, str):
        notes.append(shipped)
    corpora = [*([] if isinstance(shipped, str) else [shipped]), *seen]
    for corpus in corpora:
        told = found[corpus.name] = _in_corpus(corpus, datas, home, say, looked == "all")
        count = next(iter(told.values()))["molecules"]
        if corpus.shipped and count != SHIPPED_MOLECULES:
            notes.append(
                f"{count:,} molecules of {corpus.name} were found in {corpus.file}, and it was trained on "
                f"{SHIPPED_MOLECULES:,}: they are not quite the same"
            )
    return found, notes


def _within(data: EndpointData, home: Path) -> dict[str, Any]:
    def run() -> dict[str, Any]:
        return overlap(data.texts(data.test), data.texts(data.train_val)).told()

    return kept_cell(home / LEAKS / f"{data.endpoint.name}.json", {"data": data.checksum}, run)


def _in_corpus(
    corpus: Corpus, datas: Sequence[EndpointData], home: Path, say: Say, neighbours: bool
) -> dict[str, dict[str, Any]]:
    settings = {
        "corpus": corpus.checksum,
        "shipped": corpus.shipped,
        "neighbours": neighbours,
        "data": {data.endpoint.name: data.checksum for data in datas},
    }
    file = home / LEAKS / f"{corpus.name}-{checksum(json.dumps(settings).encode())[:12]}.json"

    def run() -> dict[str, Any]:
        texts = [data.texts(data.test) for data in datas]
        distinct = {text: place for place, text in enumerate(dict.fromkeys(text for part in texts for text in part))}
        told = found_in(corpus, list(distinct), _Steps(corpus.name, say), neighbours)
        parts = [np.array([distinct[text] for text in part]) for part in texts]
        return {data.endpoint.name: told.part(part).told() for data, part in zip(datas, parts, strict=True)}

    return kept_cell(file, settings, run)


class _Steps:
    """Says how far it is, now and then."""

    def __init__(self, name: str, say: Say) -> None:
        self.name, self.say, self.next = name, say, _STEP

    def __call__(self, count: int) -> None:
        if count >= self.next:
            self.say(f"leaks: {count:,} molecules of {self.name} looked at")
            self.next += _STEP
