"""What weights were trained on: the molecules behind the shipped ones, and tables that a person names.

The weights of the preset ``small-pretrained``, with which tokengt begins by itself, were made by
``benchmarks/pretrain.py`` from molecules of ogbg-molpcba. Which of them is worked out here from the data set as that
script drew them, and checked by their number.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.data.datasets import bundled
from tokengt.data.public import public_data
from tokengt.data.tables import open_table
from tokengt.experiments.admet.leaks import Overlap, overlap, overlap_with_keys
from tokengt.files import file_checksum
from tokengt.interop.molecules import canonical_smiles
from tokengt.models.pretrained import CONFIG
from tokengt.presets import PRETRAINED

SHIPPED = "small-pretrained"
# Of the weights whose molecules are known, and how these were drawn.
_WEIGHTS = "0c7e357041e806bd822efd290b81d3274f492b7222d435a8efeb98187295c2f6"
_DRAWN, _MOST_ATOMS = 380_000, 60
SHIPPED_MOLECULES = 371_391
_LEFT_OUT = ("esol", "freesolv", "bace", "tox21")
# Files of hashed keys, one 64-bit number for each molecule.
KEYS = ".npy"
_COLUMNS = ("smiles", "mol")


@dataclass(frozen=True)
class Corpus:
    """Molecules that weights were trained on.

    Args:
        name: of the weights, or of the file.
        file: that holds them.
        shipped: whether they are those of the shipped weights, which are a part of the file.
    """

    name: str
    file: Path
    shipped: bool = False

    @property
    def checksum(self) -> str:
        return file_checksum(self.file)

    @property
    def is_keys(self) -> bool:
        """Whether the file holds hashed keys in place of molecules."""
        return self.file.suffix == KEYS

    def smiles(self) -> Iterator[str]:
        """All molecules, one text each."""
        texts = _column(self.file)
        yield from _drawn(list(texts), self.file.parent) if self.shipped else texts


def named_corpus(file: Path) -> Corpus:
    """A table of molecules that weights were trained on, with a column smiles; or their hashed keys (.npy).

    Raises:
        ValueError: it is none.
    """
    if file.is_file() and file.suffix == KEYS:
        _keys(file)
        return Corpus(file.stem, file)
    table = open_table(file)
    if "smiles" not in table.columns:
        raise ValueError(f"{file} has no column 'smiles'; expected the molecules that weights were trained on")
    return Corpus(file.name.partition(".")[0], file)


def shipped_corpus() -> Corpus | str:
    """The molecules of the shipped weights, or a sentence that says why they cannot be told."""
    config = json.loads((bundled(PRETRAINED[SHIPPED]) / CONFIG).read_text(encoding="utf-8"))
    if config.get("sha256") != _WEIGHTS:
        return f"the weights of {SHIPPED} are not those whose molecules are known here; name a table of them by --seen"
    try:
        folder = public_data("molecules")
    except ValueError as error:
        return f"what the weights of {SHIPPED} were trained on was not looked at: {error}"
    file = folder / "pcba_smiles.csv.xz"
    if not file.is_file():
        return f"what the weights of {SHIPPED} were trained on was not looked at: {file} does not exist"
    return Corpus(SHIPPED, file, shipped=True)


def found_in(
    corpus: Corpus, test: Sequence[str], say: Callable[[int], None] | None = None, neighbours: bool = True
) -> Overlap:
    """Which of these molecules the corpus holds."""
    if corpus.is_keys:
        return overlap_with_keys(test, _keys(corpus.file))
    return overlap(test, corpus.smiles(), say, neighbours)


def _keys(file: Path) -> NDArray[np.uint64]:
    try:
        keys = np.load(file, allow_pickle=False)
    except (ValueError, OSError) as error:
        raise ValueError(f"{file} is no file of keys; expected 64-bit numbers as numpy.save writes them") from error
    if keys.ndim != 1 or keys.dtype != np.uint64:
        raise ValueError(f"{file} holds {keys.dtype} of shape {keys.shape}; expected one uint64 for each molecule")
    return np.asarray(keys)


def _column(file: Path) -> Iterator[str]:
    table = open_table(file)
    place = next(table.columns.index(name) for name in _COLUMNS if name in table.columns)
    for row in table.rows():
        if row.problem is None:
            yield row.cells[place].strip()


def _drawn(smiles: list[str], folder: Path) -> Iterator[str]:
    """Of all molecules those that ``benchmarks/pretrain.py`` took."""
    from rdkit import Chem, rdBase

    used = {text for name in _LEFT_OUT for text in canonical_smiles(list(_column(folder / f"{name}.csv.xz")))}
    order = np.random.default_rng(0).permutation(len(smiles))[:_DRAWN]
    with rdBase.BlockLogs():
        for place in order.tolist():
            molecule: Any = Chem.MolFromSmiles(smiles[place])
            if molecule is None or not 0 < molecule.GetNumAtoms() <= _MOST_ATOMS:
                continue
            if Chem.MolToSmiles(molecule) not in used:
                yield smiles[place]
