"""Assembling a batch of 1,024 molecules on one core: cut from one large GraphBatch, collated, and with PyG.

``narrow select`` is what training does: it cuts graphs out of a store, which is one GraphBatch in narrow integers;
``select`` cuts them out of one in wide integers. ``collate`` packs Graph objects, and PyG's ``Batch.from_data_list``
packs Data objects. Python function calls are counted for 128 and for 1,024 graphs: equal counts mean that no Python
runs once per graph.

    TOKENGT_DATA=/path/to/data python benchmarks/batching.py
"""

import cProfile
import pstats
import statistics
from collections.abc import Callable
from typing import Any

import torch
from molecules import interleaved, median_ratio, read_molecules

from tokengt import Graph, GraphBatch, to_pyg

GRAPHS, FEW_GRAPHS, REPEATS = 1024, 128, 15


def python_calls(call: Callable[[], object]) -> int:
    """Function calls, built-in ones included, that one call makes."""
    call()
    with cProfile.Profile() as profile:
        call()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def assemblers(graphs: list[Graph], count: int) -> dict[str, Callable[[], object]]:
    """The same ``count`` random molecules, batched in four ways; each starts from its own storage."""
    from torch_geometric.data import Batch

    index = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(0))[:count]
    whole = GraphBatch.collate(graphs)
    chosen = [graphs[place] for place in index.tolist()]
    data = [to_pyg(graph) for graph in chosen]
    stored = whole.narrowed()
    return {
        "tokengt narrow select": lambda: stored.select(index),
        "tokengt select": lambda: whole.select(index),
        "tokengt collate": lambda: GraphBatch.collate(chosen),
        "pyg from_data_list": lambda: Batch.from_data_list(data),
    }


def check_same(systems: dict[str, Callable[[], Any]]) -> None:
    narrow, cut, collated, pyg = (call() for call in systems.values())
    for batch in (narrow, collated):
        assert torch.equal(cut.edge_index, batch.edge_index)
        assert torch.equal(cut.node_features, batch.node_features.long())
    assert torch.equal(cut.edge_index, pyg.edge_index)
    assert torch.equal(cut.node_features, pyg.x)


def measure() -> list[dict[str, Any]]:
    """One row per system; ``ratio_to_select`` is how many times longer than ``select`` it takes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dataset, graphs = read_molecules()
    systems = assemblers(graphs, GRAPHS)
    check_same(systems)
    taken = interleaved(systems, REPEATS)
    few = assemblers(graphs, FEW_GRAPHS)
    rows = [
        {
            "benchmark": "batching",
            "dataset": dataset,
            "shape": f"{GRAPHS:,} molecules",
            "system": name,
            "threads": 1,
            "milliseconds": 1e3 * statistics.median(taken[name]),
            "graphs_per_s": GRAPHS / statistics.median(taken[name]),
            "ratio_to_select": median_ratio(taken[name], taken["tokengt select"]),
            f"python_calls_{FEW_GRAPHS}": python_calls(few[name]),
            f"python_calls_{GRAPHS}": python_calls(call),
        }
        for name, call in systems.items()
    ]
    torch.set_num_threads(threads)
    return rows


def main() -> None:
    for row in measure():
        print(
            f"{row['system']:20s} {row['milliseconds']:8.2f} ms {row['ratio_to_select']:7.1f}x the time of select; "
            f"Python calls: {row['python_calls_128']:,} for 128 graphs, {row['python_calls_1024']:,} for 1,024"
        )


if __name__ == "__main__":
    main()
