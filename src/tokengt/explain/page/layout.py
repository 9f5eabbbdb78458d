"""Where the nodes of a graph are drawn that has no picture of its own: as far apart as there are steps between them.

Springs between all nodes of a component pull them to their distance in steps (Kamada and Kawai 1989), and majorisation
finds where they rest (Gansner, Koren and North 2004). Nothing is drawn at random: a graph has one picture.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

# Springs of more nodes take seconds; then the places that the springs would begin with have to do.
_MOST_NODES = 500
_ROUNDS = 100
# Between the boxes of two components, in steps.
_GAP = 1.0

Places = Float[NDArray[Any], "nodes 2"]


def spring_layout(num_nodes: int, edges: Int[NDArray[Any], "2 edges"]) -> Places:
    """Places [nodes, 2] in units of one step, with the middle at the origin; directions of edges mean nothing."""
    # Imported when it is needed: molecules, which most pages are about, have a picture of their own.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components, shortest_path

    if not num_nodes:
        return np.zeros((0, 2))
    joined = coo_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(num_nodes, num_nodes)).tocsr()
    count, owner = connected_components(joined, directed=False)
    members = [np.flatnonzero(owner == component) for component in range(count)]
    parts = [_component(shortest_path(joined[each][:, each], directed=False, unweighted=True)) for each in members]
    places = np.zeros((num_nodes, 2))
    for nodes, corner, part in zip(members, _shelves([part.max(0) for part in parts]), parts, strict=True):
        places[nodes] = part + corner
    centred: Places = places - (places.min(0) + places.max(0)) / 2
    return centred


def _component(steps: Float[NDArray[Any], "nodes nodes"]) -> Places:
    """One component, wider than high, from the origin to the right and upwards."""
    places = _begun(steps)
    if len(steps) <= _MOST_NODES:
        places = _rested(places, steps)
    places = places - places.mean(0)
    # The longest direction lies flat.
    _, _, axes = np.linalg.svd(places, full_matrices=False)
    if len(axes) == 2:
        places = places @ (axes * _signs(axes)).T
    flat: Places = places - places.min(0)
    return flat


def _begun(steps: Float[NDArray[Any], "nodes nodes"]) -> Places:
    """The plane that keeps most of the squared distances (classical scaling), with a circle to part what coincides."""
    count = len(steps)
    centring = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-0.5 * centring @ steps**2 @ centring)
    top = vectors[:, -2:] * np.sqrt(values[-2:].clip(min=0))
    plane = np.pad(top * _signs(top.T).T, ((0, 0), (0, 2 - top.shape[1])))
    angles = 2 * np.pi * np.arange(count) / count
    begun: Places = plane + 0.1 * np.stack([np.cos(angles), np.sin(angles)], 1)
    return begun


def _rested(places: Places, steps: Float[NDArray[Any], "nodes nodes"]) -> Places:
    """Where springs of these lengths rest: every round solves for the places that lower the stress."""
    count = len(steps)
    if count < 2:
        return places
    apart = np.where(np.eye(count, dtype=bool), 1.0, steps)
    stiffness = np.where(np.eye(count, dtype=bool), 0.0, apart**-2.0)
    # The matrix of the springs has no inverse, because places may be shifted: their mean stays where it is.
    inverse = np.linalg.pinv(np.diag(stiffness.sum(1)) - stiffness, hermitian=True)
    for _ in range(_ROUNDS):
        distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
        pull = np.where(distance > 1e-9, -stiffness * apart / np.maximum(distance, 1e-9), 0.0)
        moved = inverse @ ((pull - np.diag(pull.sum(1))) @ places)
        done = bool(np.abs(moved - places).max() < 1e-4)
        places = moved
        if done:
            break
    return places


def _signs(rows: Float[NDArray[Any], "rows columns"]) -> Float[NDArray[Any], "rows 1"]:
    """A sign per row that makes its largest entry positive, so that no library's choice shows."""
    largest = np.take_along_axis(rows, np.abs(rows).argmax(1)[:, None], 1)
    return np.where(largest < 0, -1.0, 1.0)


def _shelves(sizes: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The lower left corner of every box: the highest first, in rows of about the same width."""
    order = sorted(range(len(sizes)), key=lambda each: (-sizes[each][1], -sizes[each][0]))
    area = sum(float((size + _GAP).prod()) for size in sizes)
    width = max(max(float(size[0]) for size in sizes), 1.5 * area**0.5)
    corners: list[NDArray[Any]] = [np.zeros(2)] * len(sizes)
    x = y = height = 0.0
    for each in order:
        wide, high = sizes[each]
        if x > 0 and x + wide > width:
            x, y, height = 0.0, y + height + _GAP, 0.0
        corners[each] = np.array([x, y])
        x, height = x + float(wide) + _GAP, max(height, float(high))
    return corners
