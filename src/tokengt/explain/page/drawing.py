"""A graph as the page draws it, ready for JSON: molecules as chemists write them, other graphs by springs."""

from dataclasses import asdict
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from tokengt.explain.page.layout import Places, spring_layout
from tokengt.interop.depiction import Depiction

# Digits of a coordinate, in bond lengths: a hundredth of a pixel.
_DIGITS = 3
# Nodes have circles with numbers in them, which need more room than atoms.
_STEP = 1.7


def draw_molecule(depiction: Depiction) -> dict[str, Any]:
    """Atoms with what is written at them, and bonds; y grows downwards, as on a screen."""
    atoms = [{**place, **asdict(atom)} for place, atom in zip(_places(depiction.places), depiction.atoms, strict=True)]
    return {"kind": "molecule", "nodes": atoms, "lines": [asdict(bond) for bond in depiction.bonds]}


def draw_graph(num_nodes: int, edges: Int[NDArray[Any], "2 edges"]) -> dict[str, Any]:
    """Nodes, and one line for every two that an edge joins, whatever its direction."""
    pairs = sorted({(min(u, v), max(u, v)) for u, v in zip(*edges.tolist(), strict=True)}) if edges.size else []
    lines = [{"begin": u, "end": v} for u, v in pairs]
    return {"kind": "graph", "nodes": _places(_STEP * spring_layout(num_nodes, edges)), "lines": lines}


def _places(places: Places) -> list[dict[str, float]]:
    # Adding 0 makes a plain zero of a negative one.
    rounded = (places * np.array([1.0, -1.0])).round(_DIGITS) + 0.0
    return [{"x": x, "y": y} for x, y in rounded.tolist()]
