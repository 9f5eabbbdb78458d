"""Where public data sets that are not bundled lie: the folder that ``TOKENGT_DATA`` names; and which have names.

This module does not import torch.
"""

import os
from pathlib import Path

# The data sets of :mod:`tokengt.data.catalogue`, for those who only ask whether a word is the name of one.
NAMES = (
    *("pcqm4mv2", "qm9", "zinc12k", "molpcba", "peptides-func", "esol", "freesolv", "bace", "tox21", "hiv"),
    *("coauthor-cs", "coauthor-physics", "amazon-photo", "amazon-computers", "chameleon", "crocodile"),
    *("minesweeper", "tolokers", "chameleon-filtered", "squirrel-filtered", "actor"),
)


def public_data(name: str) -> Path:
    """The folder ``name`` of ``TOKENGT_DATA``.

    Raises:
        ValueError: the variable is not set, or there is no such folder.
    """
    root = os.environ.get("TOKENGT_DATA")
    if not root:
        raise ValueError(f"set TOKENGT_DATA to the folder that holds {name}/")
    folder = Path(root) / name
    if not folder.is_dir():
        raise ValueError(f"{folder} does not exist; TOKENGT_DATA must name the folder that holds {name}/")
    return folder
