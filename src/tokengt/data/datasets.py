"""Data sets that come with the package: small, offline, free to share."""

import csv
import io
import lzma
from importlib import resources

import torch
from jaxtyping import Float
from torch import Tensor


def esol() -> tuple[list[str], Float[Tensor, "molecules 1"]]:
    """SMILES of 1,128 molecules and the logarithm of their solubility in water (mol/l).

    Delaney, "ESOL: Estimating Aqueous Solubility Directly from Molecular Structure", J. Chem. Inf. Comput. Sci. 2004,
    as MoleculeNet (Wu et al. 2018) distributes it under the MIT licence.
    """
    packed = resources.files("tokengt.data").joinpath("bundled/esol.csv.xz").read_bytes()
    rows = list(csv.DictReader(io.StringIO(lzma.decompress(packed).decode())))
    values = [[float(row["logSolubility"])] for row in rows]
    return [row["smiles"] for row in rows], torch.tensor(values, dtype=torch.float32)
