"""PyG's files, read without ever running what they say: tensors, plain Python values and PyG's own classes only."""

import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tokengt.data._pickles import load_torch
from tokengt.data._text import check_regular
from tokengt.data.cells import PART_CODES

# Files in which PyG keeps the functions that made a data set, beside the data itself.
_NO_DATA = ("pre_filter.pt", "pre_transform.pt")


@dataclass(frozen=True, eq=False)
class Collated:
    """Many graphs in one ``Data``, cut by ``slices``; nodes are numbered from 0 in each graph."""

    data: Any
    slices: dict[str, Any]

    def separate(self) -> list[Any]:
        from torch_geometric.data.separate import separate

        bounds = next(iter(self.slices.values()))
        return [
            separate(type(self.data), self.data, place, self.slices, decrement=False)
            for place in range(len(bounds) - 1)
        ]


@dataclass(frozen=True, eq=False)
class PyGFile:
    """What one file holds; ``code`` is the split that its name says, if it says one."""

    path: Path
    graphs: Collated | list[Any]
    code: int | None = None


def load_pyg(path: Path) -> list[Any] | Any:
    """The ``Data`` objects of a ``.pt`` file or a data set's folder; a lone one as it is.

    A file holds a ``Data``, a list of them, or what ``InMemoryDataset`` saves; a folder has such files in
    ``processed/`` (or in itself): one, ``train``, ``val`` and ``test``, or ``data_0``, ``data_1``, ... of one each.

    Raises:
        ValueError: one sentence that names the file and what was expected; also for a file that wants any class
            or function beside tensors and PyG's own. Nothing of such a file is run.
        ImportError: torch_geometric is not installed.
    """
    files = pyg_files(path)
    graphs = [graph for file in files for graph in listed(file)]
    return graphs[0] if len(graphs) == 1 else graphs


def listed(file: PyGFile) -> list[Any]:
    """The file's graphs, one by one.

    Raises:
        ValueError: slices that do not fit what they cut.
    """
    if isinstance(file.graphs, list):
        return file.graphs
    try:
        return file.graphs.separate()
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        raise ValueError(f"{file.path} holds slices that do not fit its tensors; save the data set anew") from None


def pyg_files(path: Path) -> list[PyGFile]:
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    if path.is_dir():
        return [_loaded(file, PART_CODES.get(file.stem)) for file in _chosen(path)]
    return [_loaded(path)]


def data_files(folder: Path) -> list[Path]:
    """The folder's ``.pt`` files that hold data."""
    files = sorted(folder.glob("processed/*.pt")) or sorted(folder.glob("*.pt"))
    return [file for file in files if file.name not in _NO_DATA]


def _chosen(folder: Path) -> list[Path]:
    files = data_files(folder)
    if not files:
        raise ValueError(f"{folder} holds no .pt file; expected those of a PyG data set")
    if len(files) == 1:
        return files
    if all(file.stem in PART_CODES for file in files):
        return sorted(files, key=lambda file: PART_CODES[file.stem])
    if all(re.fullmatch(r"data_\d+", file.stem) for file in files):
        return sorted(files, key=lambda file: int(file.stem.removeprefix("data_")))
    names = ", ".join(file.name for file in files[:5])
    raise ValueError(f"{folder} holds several data sets ({names}); name one of the files")


def _loaded(path: Path, code: int | None = None) -> PyGFile:
    from_file = _safely(path)
    content = from_file
    if isinstance(content, tuple) and len(content) in (2, 3, 4) and isinstance(content[1], dict | None):
        content = _collated(path, content[0], content[1], content[-1])
    if _is_data(content):
        return PyGFile(path, [content], code)
    if isinstance(content, list | tuple) and content and all(map(_is_data, content)):
        return PyGFile(path, list(content), code)
    if isinstance(content, Collated):
        return PyGFile(path, content, code)
    kind = type(from_file).__name__
    raise ValueError(f"{path} holds a {kind}; expected PyG's Data, a list of them, or a saved InMemoryDataset")


def _collated(path: Path, data: Any, slices: dict[str, Any] | None, kind: Any) -> Any:
    """What ``InMemoryDataset.save`` writes: (attributes, slices, class); older files hold (Data, slices)."""
    from torch_geometric.data import Data

    if isinstance(data, dict):
        cls: Any = kind if isinstance(kind, type) and issubclass(kind, Data) else Data
        data = cls.from_dict(data)
    if slices is None or not _is_data(data):
        return data
    if not slices or not all(isinstance(bounds, Tensor) and bounds.ndim == 1 for bounds in slices.values()):
        raise ValueError(f"{path} holds slices that are no vectors; save the data set anew")
    return Collated(data, slices)


def _is_data(value: Any) -> bool:
    from torch_geometric.data import Data

    return isinstance(value, Data)


def _safely(path: Path) -> Any:
    try:
        from torch_geometric.data import Data
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
        from torch_geometric.data.feature_store import TensorAttr
        from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
        from torch_geometric.data.hypergraph_data import HyperGraphData
        from torch_geometric.data.storage import GlobalStorage
    except ImportError as error:
        raise ImportError("reading PyG data sets needs PyTorch Geometric: pip install torch_geometric") from error
    check_regular(path)
    safe = [Data, HyperGraphData, GlobalStorage, DataTensorAttr, DataEdgeAttr, TensorAttr, EdgeAttr, EdgeLayout]
    try:
        return load_torch(path, safe)
    except pickle.UnpicklingError as error:
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        if asked is None:
            raise ValueError(
                f"{path} cannot be read as a PyG data set; expected a file that torch.save wrote"
            ) from None
        raise ValueError(
            f"{path} wants {asked[1]}, which is refused for safety: only tensors, plain values and PyG's Data are read"
        ) from None
    except Exception as error:  # a torn file can fail in any way
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{path} cannot be read as a PyG data set: {reason or type(error).__name__}") from None
