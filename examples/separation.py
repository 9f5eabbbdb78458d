"""A hexagon or two triangles? Colour refinement cannot say; a Transformer on tokens can, if its identifiers let it."""

import torch

from tokengt.theory.graphs import cycle, relabelled, two_triangles
from tokengt.theory.separation import SeparationConfig, random_model, separation
from tokengt.theory.wl import separated_by_wl


def main() -> None:
    hexagon, triangles = cycle(6), two_triangles()
    for k in (2, 3):
        print(f"{k}-WL: {'separated' if separated_by_wl(hexagon, triangles, k) else 'alike'}")
    # The same hexagon under other node numbers: whatever calls it another graph is wrong.
    (again,) = relabelled(hexagon, 1, torch.Generator().manual_seed(0))
    for kind in ("none", "orf_first_order", "orf", "laplacian"):
        model = random_model(SeparationConfig(kind=kind, id_dim=6), seed=0)
        found, null = (separation(model, hexagon, other, draws=64) for other in (triangles, again))
        verdict = "separated" if found.separated else "alike"
        print(f"TokenGT, {kind}: {verdict}, p = {found.p_value:.3f}; hexagon relabelled p = {null.p_value:.3f}")


if __name__ == "__main__":
    main()
