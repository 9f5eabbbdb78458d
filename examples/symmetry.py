"""Does renumbering nodes and edges change what it must not? ``tokengt.testing`` asks any model."""

from dataclasses import replace

import torch

from tokengt import GraphBatch, HeadConfig, OrfIds, TokenGT, from_smiles, presets
from tokengt.testing import assert_permutation_equivariant, assert_permutation_invariant, permute_graph


def sum_of_atoms(batch: GraphBatch) -> torch.Tensor:
    """Atomic numbers summed over each molecule: any callable from a GraphBatch to a tensor can be asked."""
    numbers = batch.node_features[:, :1].double() + 1
    return torch.zeros(batch.num_graphs, 1, dtype=torch.float64).index_add(0, batch.nodes.ids, numbers)


def first_atom(batch: GraphBatch) -> torch.Tensor:
    """Reads the atom that happens to be listed first."""
    return batch.node_features[batch.nodes.starts, :1].double()


def main() -> None:
    torch.manual_seed(0)
    caffeine = from_smiles("CN1C=NC2=C1C(=O)N(C(=O)N2C)C")
    config = replace(presets.small(), identifiers=OrfIds(dim=16))
    model = TokenGT(config).eval()
    assert_permutation_invariant(model, caffeine)
    print("TokenGT, graph head: invariant when its identifiers travel with the nodes")
    for level in ("node", "edge"):
        head = TokenGT(replace(config, head=HeadConfig(level=level))).eval()
        assert_permutation_equivariant(head, caffeine, level=level)
        print(f"TokenGT, {level} head: equivariant when its identifiers travel with the nodes")
    assert_permutation_invariant(sum_of_atoms, caffeine)
    print("sum of atoms: invariant")
    try:
        assert_permutation_invariant(first_atom, caffeine, trials=10)
    except AssertionError as failure:
        print(f"first atom: {failure}")

    # Without that help the identifiers are drawn anew for the renumbered graph, and the prediction moves.
    backwards = permute_graph(caffeine, torch.arange(caffeine.num_nodes).flip(0))
    for draws in (1, 64):
        there, back = model.predict(caffeine, draws=draws), model.predict(backwards, draws=draws)
        print(f"atoms listed backwards, mean of {draws:2} draws: moves by {float((there.mean - back.mean).abs()):.1e}")


if __name__ == "__main__":
    main()
