"""PyTorch Geometric graphs as they are: node, edge and link predictions with one loop.

Random graphs without features. Targets that need the structure: a node's degree, and the number of neighbours that two
nodes share, asked of edges ("edge" head) and of pairs that are no edges ("link" head).
"""

import torch
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.utils import erdos_renyi_graph, negative_sampling, to_dense_adj

from tokengt import EncoderConfig, HeadConfig, LaplacianIds, TokenGT, TokenGTConfig


def random_graph(nodes: int) -> Data:
    edge_index = erdos_renyi_graph(nodes, 0.3)
    adjacency = to_dense_adj(edge_index, max_num_nodes=nodes)[0]
    shared = adjacency @ adjacency
    # PyG renumbers attributes with "index" in their name when it collates, so pairs stay right.
    pair_index = negative_sampling(edge_index, nodes, num_neg_samples=nodes)
    return Data(
        edge_index=edge_index,
        num_nodes=nodes,
        degree=adjacency.sum(1),
        edge_shared=shared[edge_index[0], edge_index[1]],
        pair_index=pair_index,
        pair_shared=shared[pair_index[0], pair_index[1]],
    )


def main() -> None:
    seed_everything(0)
    graphs = [random_graph(int(n)) for n in torch.randint(6, 13, (320,))]
    train, test = DataLoader(graphs[:256], batch_size=32, shuffle=True), next(iter(DataLoader(graphs[256:], 64)))
    print("level  target            rows  test error  of the mean")
    for level, target in (("node", "degree"), ("edge", "edge_shared"), ("link", "pair_shared")):
        config = TokenGTConfig(
            dim=48,
            identifiers=LaplacianIds(dim=12),
            # The sparse basis residual sums a node's edges; attention averages, and finds it hard to count.
            encoder=EncoderConfig(num_layers=2, num_heads=4, mlp_dim=96, input_norm=True, sparse_basis_residual=True),
            head=HeadConfig(level=level),
        )
        model = TokenGT(config)
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(8):
            for batch in train:  # a PyG Batch, handed to the model as it is
                out = model(batch, pairs=batch.pair_index if level == "link" else None)
                optimiser.zero_grad()
                torch.nn.functional.mse_loss(out[:, 0], batch[target]).backward()
                optimiser.step()
        out = model.predict(test, pairs=test.pair_index if level == "link" else None).mean[:, 0]
        error, baseline = ((x - test[target]).abs().mean() for x in (out, test[target].mean()))
        print(f"{level:6} {target:16} {len(out):5}  {error:10.3f}  {baseline:11.3f}")


if __name__ == "__main__":
    main()
