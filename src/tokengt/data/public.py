"""Where public data sets that are not bundled lie: the folder that ``TOKENGT_DATA`` names."""

import os
from pathlib import Path


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
