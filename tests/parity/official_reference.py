"""The authors' model written down once more, one graph at a time, and random checkpoints in their layout."""

import torch
import torch.nn.functional as F

State = dict[str, torch.Tensor]
G = "encoder.graph_encoder."


def random_state(
    *,
    dim: int = 16,
    layers: int = 2,
    mlp: int = 24,
    heads: int = 4,
    ids: str | None = "lap",
    id_dim: int = 6,
    types: bool = True,
    features: int = 0,
    classes: int = 1,
    scale: float = 0.3,
) -> State:
    """Every tensor their ``state_dict`` has, the unused ones included."""

    def make(*shape: int) -> torch.Tensor:
        return scale * torch.randn(*shape)

    def linear(name: str, out: int, width: int) -> State:
        return {f"{name}.weight": make(out, width), f"{name}.bias": make(out)}

    def norm(name: str) -> State:
        return {f"{name}.weight": 1 + make(dim), f"{name}.bias": make(dim)}

    feature = G + "graph_feature."
    state = {
        feature + "atom_encoder.weight": make(4608, dim),
        feature + "edge_encoder.weight": make(1536, dim),
        feature + "graph_token.weight": make(1, dim),
        feature + "null_token.weight": make(1, dim),
        "encoder.lm_output_learned_bias": make(1),
        "encoder.embed_out.weight": make(classes, dim),
        **linear("encoder.masked_lm_pooler", dim, dim),
        **linear("encoder.lm_head_transform_weight", dim, dim),
        **norm("encoder.layer_norm"),
        **norm(G + "emb_layer_norm"),
        **norm(G + "final_layer_norm"),
    }
    if ids:
        state[f"{feature}{ids}_encoder.weight"] = make(dim, 2 * id_dim)
    if types:
        state[feature + "order_encoder.weight"] = make(2, dim)
    if features:
        state[G + "performer_proj_updater.calls_since_last_redraw"] = torch.tensor(5)
    for layer in range(layers):
        name = f"{G}layers.{layer}."
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            state |= linear(f"{name}self_attn.{part}", dim, dim)
        state |= linear(name + "feedforward.fc1", mlp, dim) | linear(name + "feedforward.fc2", dim, mlp)
        state |= norm(name + "self_attn_layer_norm") | norm(name + "final_layer_norm")
        if features:
            state[name + "self_attn.fast_attention.projection_matrix"] = torch.randn(features, dim // heads)
    return state


def predict(
    state: State,
    heads: int,
    x: torch.Tensor,
    edge_index: torch.Tensor,
    edge_attr: torch.Tensor,
    ids: torch.Tensor | None,
) -> torch.Tensor:
    """What their model predicts for one graph."""
    feature = G + "graph_feature."

    def embed(table: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return table[columns + 512 * torch.arange(columns.shape[1]) + 2].sum(1)

    pairs = torch.cat([torch.arange(len(x)).expand(2, -1), edge_index], 1)
    z = torch.cat(
        [embed(state[feature + "atom_encoder.weight"], x), embed(state[feature + "edge_encoder.weight"], edge_attr)]
    )
    for name in ("lap", "orf", "rand"):
        if f"{feature}{name}_encoder.weight" in state:
            assert ids is not None
            z = z + torch.cat([ids[pairs[0]], ids[pairs[1]]], 1) @ state[f"{feature}{name}_encoder.weight"].T
    if feature + "order_encoder.weight" in state:
        z = z + state[feature + "order_encoder.weight"][(pairs[0] == pairs[1]).long()]
    z = torch.cat([state[feature + "graph_token.weight"], state[feature + "null_token.weight"], z])
    z = _norm(state, G + "emb_layer_norm", z)
    for layer in range(sum(".fc1.weight" in name for name in state)):
        z = _block(state, f"{G}layers.{layer}.", heads, z)
    hidden = F.gelu(_linear(state, "encoder.lm_head_transform_weight", z[0]))
    out = _norm(state, "encoder.layer_norm", hidden) @ state["encoder.embed_out.weight"].T
    return out + state["encoder.lm_output_learned_bias"]


def _block(state: State, name: str, heads: int, z: torch.Tensor) -> torch.Tensor:
    h = _norm(state, name + "self_attn_layer_norm", z)
    parts = [_linear(state, f"{name}self_attn.{p}_proj", h).unflatten(1, (heads, -1)).transpose(0, 1) for p in "qkv"]
    projection = state.get(name + "self_attn.fast_attention.projection_matrix")
    mixed = _softmax(*parts) if projection is None else _performer(*parts, projection)
    z = z + _linear(state, name + "self_attn.out_proj", mixed.transpose(0, 1).flatten(1))
    h = _norm(state, name + "final_layer_norm", z)
    return z + _linear(state, name + "feedforward.fc2", F.gelu(_linear(state, name + "feedforward.fc1", h)))


def _softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(1, 2) / q.shape[2] ** 0.5).softmax(2) @ v


def _performer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def phi(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        # Their stabilisers carry no gradient either.
        x = x / x.shape[2] ** 0.25
        dash = x @ w.T
        return (
            torch.exp(dash - x.square().sum(2, keepdim=True) / 2 - dash.detach().amax(dims, keepdim=True)) + 1e-4
        ) / len(w) ** 0.5

    table = phi(q, (2,)) @ phi(k, (1, 2)).transpose(1, 2)
    return table @ v / table.sum(2, keepdim=True)


def _linear(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    return x @ state[name + ".weight"].T + state[name + ".bias"]


def _norm(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], state[name + ".weight"], state[name + ".bias"])
