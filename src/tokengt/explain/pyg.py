"""Our models and attributions under PyTorch Geometric's ``torch_geometric.explain``.

PyG's ``Explainer`` multiplies a model's ``x`` by a mask of nodes and hands a mask of edges to the layers that pass
messages. :class:`MaskedModel` gives both a meaning for our models: its ``x`` is how much of each node is there (ones to
begin with), and a mask below 1 takes a token that far back to its baseline, on the path that integrated gradients
follow (:mod:`tokengt.explain.token_subject`). So PyG's algorithms that learn masks explain our models, and its metrics
judge our attributions, which come as masks from :class:`TokenAttribution`:

    masked = MaskedModel(model)
    explainer = Explainer(masked, TokenAttribution("occlusion"), explanation_type="model", node_mask_type="object",
                          edge_mask_type="object", model_config=..., threshold_config=("topk_hard", 5))
    explanation = explainer(**masked.inputs(graph))
    print(fidelity(explainer, explanation))

Importing this module needs PyTorch Geometric.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch_geometric.explain import Explanation
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.explain.config import MaskType, ModelMode
from torch_geometric.nn import MessagePassing

from tokengt.batch import GraphBatch
from tokengt.explain.attributions import Attribution, Method, attribution
from tokengt.explain.graph_subject import GraphSubject, subgraphs
from tokengt.explain.token_subject import Baseline, TokenSubject
from tokengt.explain.tokens import one_graph
from tokengt.models.own import as_model
from tokengt.models.tokengt.model import TokenGT
from tokengt.structure.facts import with_facts


class _EdgeGate(MessagePassing):  # type: ignore[misc]
    """The layer that PyG's explainer finds in a model without any, and gives its mask of edges to."""

    _edge_mask: Tensor | None
    _apply_sigmoid: bool

    @property
    def mask(self) -> Float[Tensor, " edges"] | None:
        """How much of every listed edge is there; None for all of it."""
        mask = self._edge_mask
        return mask.sigmoid() if mask is not None and self._apply_sigmoid else mask


class MaskedModel(nn.Module):
    """A model as PyG's ``Explainer`` calls it: ``masked(x, edge_index, graph=graph)`` gives the model's outputs.

    A TokenGT takes masks of nodes and edges to the baseline of their tokens; both directions that share a token are as
    much there as the mean of their masks. In other models, nodes go back to the features of the most ordinary one.
    Their edges are masked by PyG's own layers where they have any (GAT, GPS); elsewhere edges go back to the features
    of the most ordinary one, and one with a mask of 0 is taken out.

    Args:
        model: a TokenGT, any other model, or a module of one's own (whose nodes cannot be masked).
        baseline: of a TokenGT, as in :class:`~tokengt.explain.token_subject.TokenSubject`.
    """

    def __init__(self, model: nn.Module, baseline: Baseline = "ordinary") -> None:
        super().__init__()
        self.model = as_model(model)
        self.baseline: Baseline = baseline
        self.gate = _EdgeGate()
        # Layers of the model itself that take PyG's mask of edges.
        self.has_layers = any(isinstance(part, MessagePassing) for part in self.model.modules())
        # PyG's explainer puts all modules back into the mode that this one is in.
        self.train(self.model.training)

    def inputs(self, graph: Any) -> dict[str, Any]:
        """What an explainer is called with for one graph: ``explainer(**masked.inputs(graph))``."""
        batch = one_graph(graph)
        weight = next(self.model.parameters(), torch.zeros(1))
        return {"x": torch.ones(batch.num_nodes, 1).to(weight), "edge_index": batch.edge_index, "graph": batch}

    def forward(
        self, x: Float[Tensor, "nodes columns"], edge_index: Int[Tensor, "2 edges"], graph: Any
    ) -> Float[Tensor, "rows out"]:
        """The model's outputs where ``x`` of the nodes is there, and as much of the edges as PyG's mask says."""
        batch = one_graph(graph)
        if x.shape != (batch.num_nodes, 1):
            raise ValueError(
                f"x has shape {list(x.shape)}; expected [{batch.num_nodes}, 1], how much of each node is there: take "
                "node_mask_type 'object' and the inputs of MaskedModel.inputs"
            )
        if isinstance(self.model, TokenGT):
            return self._from_tokens(self.model, batch, x[:, 0], self.gate.mask)
        return self._from_graph(batch, x[:, 0], self.gate.mask)

    def _from_tokens(
        self, model: TokenGT, batch: GraphBatch, nodes: Float[Tensor, " nodes"], edges: Tensor | None
    ) -> Float[Tensor, "rows out"]:
        subject = TokenSubject(model, batch, baseline=self.baseline)
        tokens = subject.tokens
        there = nodes.new_ones(len(tokens)).index_copy(0, torch.from_numpy(tokens.nodes).to(nodes.device), nodes)
        if edges is not None:
            of_edge = torch.from_numpy(tokens.of_edge).to(nodes.device)
            total = torch.zeros_like(there).index_add(0, of_edge, edges)
            count = torch.zeros_like(there).index_add(0, of_edge, torch.ones_like(edges))
            there = torch.where(count > 0, total / count.clamp(min=1), there)
        values = subject.start + there[:, None] * subject.difference
        return model.from_tokens(batch, subject.laid_out.with_values(values))

    def _from_graph(
        self, batch: GraphBatch, nodes: Float[Tensor, " nodes"], edges: Tensor | None
    ) -> Float[Tensor, "rows out"]:
        faded = None
        if edges is not None and not self.has_layers:
            kept = edges.detach() != 0
            every = torch.ones(1, batch.num_nodes, dtype=torch.bool)
            batch, faded = subgraphs(batch, every, kept.cpu()[None]), edges[kept]
        with GraphSubject(self.model, batch).faded(nodes, faded):
            rows: Tensor = self.model(with_facts(batch, self.model.config.facts()))
        return rows


class TokenAttribution(ExplainerAlgorithm):  # type: ignore[misc]
    """Our attributions as an algorithm of PyG: masks between 0 and 1, the largest score of nodes and edges being 1.

    A mask has no sign, so that it is the size of the score. The whole attribution is kept as
    ``explanation.attribution``.

    Args:
        method: as in :func:`tokengt.explain.attribution`.
        baseline: of integrated gradients of a TokenGT.
    """

    def __init__(self, method: Method = "integrated_gradients", baseline: Baseline = "ordinary") -> None:
        super().__init__()
        self.method, self.baseline = method, baseline

    def forward(
        self, model: nn.Module, x: Tensor, edge_index: Tensor, *, target: Tensor, index: Any = None, **kwargs: Any
    ) -> Explanation:
        if not isinstance(model, MaskedModel):
            raise ValueError(f"the model is a {type(model).__name__}; expected MaskedModel(model), which can be masked")
        row = 0 if index is None else int(torch.as_tensor(index).flatten()[0])
        if index is not None and torch.as_tensor(index).numel() != 1:
            raise ValueError("index names several rows; an attribution is of one")
        if index is None and len(target) != 1:
            raise ValueError(f"the model gives {len(target)} rows; say which one to explain (index=...)")
        several = self.model_config.mode == ModelMode.multiclass_classification
        output = int(target.flatten()[row]) if several else 0
        found = attribution(model.model, kwargs["graph"], self.method, row=row, output=output, baseline=self.baseline)
        return _as_masks(found, self.explainer_config.node_mask_type, self.explainer_config.edge_mask_type)

    def supports(self) -> bool:
        """Masks of whole nodes: a token's features are not told apart."""
        return self.explainer_config.node_mask_type in (None, MaskType.object)


def _as_masks(found: Attribution, nodes: Any, edges: Any) -> Explanation:
    sizes = torch.from_numpy(found.scores).abs().nan_to_num()
    real = torch.from_numpy(found.tokens.endpoints[:, 0] >= 0)
    largest = float(sizes[real].max()) if bool(real.any()) else 0.0
    sizes = (sizes / largest if largest > 0 else sizes).float()
    masks: dict[str, Any] = {"attribution": found}
    if nodes is not None:
        masks["node_mask"] = sizes[torch.from_numpy(found.tokens.nodes)][:, None]
    if edges is not None:
        masks["edge_mask"] = sizes[torch.from_numpy(found.tokens.of_edge)]
    return Explanation(**masks)
