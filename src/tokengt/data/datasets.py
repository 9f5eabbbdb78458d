"""Data sets that come with the package: small, offline, free to share."""

import csv
import io
import lzma
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.config import near

_FOLDER = Path(__file__).parent / "bundled"
# Runs that come with the package, and their folder in bundled; ``pretrained:NAME`` is one of them.
TRAINED = {"gap": "gap"}
_PREFIX = "pretrained"


def bundled(name: str) -> Path:
    """Where a file that comes with the package lies.

    ``esol.csv.xz`` has the columns smiles and logSolubility, see :func:`esol`. ``new_molecules.csv`` has name, smiles
    and note of a dozen well-known molecules to predict, and two rows that cannot be read, as files from elsewhere do.
    """
    return _FOLDER / name


def find_run(run: str | Path) -> Path:
    """The folder of a run; that of one which comes with the package is told by its name, as in ``pretrained:gap``."""
    prefix, colon, name = str(run).partition(":")
    if not colon or prefix != _PREFIX:
        return Path(run)
    if name not in TRAINED:
        raise ValueError(f"{run} does not come with tokengt{near(name, TRAINED)}; expected one of {', '.join(TRAINED)}")
    return bundled(TRAINED[name])


def esol() -> tuple[list[str], Float[Tensor, "molecules 1"]]:
    """SMILES of 1,128 molecules and the logarithm of their solubility in water (mol/l).

    Delaney, "ESOL: Estimating Aqueous Solubility Directly from Molecular Structure", J. Chem. Inf. Comput. Sci. 2004,
    as MoleculeNet (Wu et al. 2018) distributes it under the MIT licence.
    """
    text = lzma.decompress(bundled("esol.csv.xz").read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    values = [[float(row["logSolubility"])] for row in rows]
    return [row["smiles"] for row in rows], torch.tensor(values, dtype=torch.float32)
