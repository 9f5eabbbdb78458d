"""Message passing with edge features, with or without a virtual node: GIN, GCN and GAT (v2)."""
