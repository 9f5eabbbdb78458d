"""The paper's synthetic experiment (Section 4.1, Table 1): can 15 heads learn the 15 second-order basis tensors?

One attention layer is shown the row-normalised basis of graphs as its attention maps, with ten choices of node and type
identifiers, for dense and sparse input. :func:`run_basis` does all of it.
"""

from tokengt.experiments.basis.run import run_basis
from tokengt.experiments.basis.settings import INPUTS, SETTINGS, BasisConfig, Setting, select_settings

__all__ = ["INPUTS", "SETTINGS", "BasisConfig", "Setting", "run_basis", "select_settings"]
