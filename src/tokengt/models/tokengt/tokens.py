"""The paper's central sentence: every node and every edge is a token, [X, P_u, P_v, E] w_in.

A graph becomes [graph], [null], its nodes, its edges (or ordered k-tuples), its hyperedges. The product with w_in is
written as the sum of its blocks: features, node identifiers, type identifiers.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.facts import MergedEdges
from tokengt.interop.pyg import as_batch
from tokengt.models.features import FeatureEncoder, FeatureSpec
from tokengt.models.tokengt.identifiers import IdentifierConfig, Identifiers, NoIds
from tokengt.models.tokengt.structure import StructureConfig, StructureEncoder
from tokengt.models.tokengt.token_batch import TokenBatch, TokenKind, edge_kinds
from tokengt.numbering import LocalIndex
from tokengt.ragged import Segments, interleave, reorder, segment_sum
from tokengt.structure.patterns import bell_number
from tokengt.structure.tuples import merge_directions
from tokengt.transformer import RowLinks

# Which tokens read others by the sparse equivariant basis: nodes their edges, or edges their nodes as well.
SparseBasis = Literal["nodes", "both"]


@dataclass(frozen=True)
class TokensConfig:
    """How a graph becomes tokens.

    Args:
        node_features: what the node features are.
        edge_features: what the edge features are.
        hyperedge_features: what the hyperedge features are.
        graph_features: what is known about a graph as a whole; it is embedded and added to the [graph] token.
        order: k; 2 for graphs. ``edge_index`` lists k-tuples. 1 for sets: nodes alone, [X_i, P_i, E].
        layout: "directed", one token per listed edge (as in the paper, two per undirected edge), or "undirected", one
            token for (u, v) and (v, u) together, with pooled identifiers rho(P_u) + rho(P_v) (the paper's last
            appendix).
        hyperedges: whether graphs may carry hyperedges, each one pooled token with the sum of its rho(P_v).
        graph_token: the special token [graph].
        null_token: the special token [null].
        type_ids: the type identifiers E.
        pool_mlp: rho is a two-layer MLP instead of a linear map; refused by a model without pooled tokens.
        feature_dropout: in training, the share of single float features of nodes, edges and hyperedges set to zero.
    """

    node_features: FeatureSpec = field(default_factory=FeatureSpec)
    edge_features: FeatureSpec = field(default_factory=FeatureSpec)
    hyperedge_features: FeatureSpec = field(default_factory=FeatureSpec)
    graph_features: FeatureSpec = field(default_factory=FeatureSpec)
    order: int = 2
    layout: Literal["directed", "undirected"] = "directed"
    hyperedges: bool = False
    graph_token: bool = True
    null_token: bool = False
    type_ids: bool = True
    pool_mlp: bool = False
    feature_dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.feature_dropout < 1:
            raise ValueError(f"feature_dropout is {self.feature_dropout}; expected 0 or more and below 1")
        if self.layout not in ("directed", "undirected"):
            raise ValueError(f"layout is {self.layout!r}; expected 'directed' or 'undirected'")
        if self.order < 1 or (self.order != 2 and self.layout == "undirected"):
            raise ValueError(
                f"order {self.order} with layout {self.layout!r}; expected order 2, or any from 1 if 'directed'"
            )
        if self.graph_features != FeatureSpec() and not self.graph_token:
            raise ValueError("graph_features are read by the [graph] token; set graph_token=True")

    @classmethod
    def for_batch(cls, batch: Any) -> "TokensConfig":
        """The configuration that reads this data (whatever a model takes): feature kinds and sizes, order, hyperedges.

        Categories are counted up to the largest seen; give sizes by hand where later data may bring larger ones.
        """
        batch = as_batch(batch)
        return cls(
            node_features=FeatureSpec.of(batch.node_features),
            edge_features=FeatureSpec.of(batch.edge_features),
            hyperedge_features=FeatureSpec.of(batch.hyperedge_features),
            graph_features=FeatureSpec.of(batch.graph_features),
            order=batch.order,
            hyperedges=batch.num_hyperedges > 0,
        )

    @property
    def num_types(self) -> int:
        return bell_number(self.order) + self.hyperedges


class _Terms(NamedTuple):
    """One summand of the tokens of nodes, edges and hyperedges; None where there is none."""

    nodes: Tensor | None
    edges: Tensor | None
    hyperedges: Tensor | None


@dataclass(frozen=True, eq=False)
class _KnownLinks:
    """The links between tokens of a batch, and what they follow from beside its edges."""

    features: Tensor | None
    members: LocalIndex
    links: RowLinks


_LINKS: WeakKeyDictionary[LocalIndex, dict[tuple[TokensConfig, SparseBasis], _KnownLinks]] = WeakKeyDictionary()


class Tokenizer(nn.Module):
    """Z^(0) = [X_[graph]; X^in w_in] of a batch."""

    blank: Tensor

    def __init__(
        self,
        dim: int,
        config: TokensConfig,
        identifiers: IdentifierConfig,
        structure: StructureConfig | None = None,
        *,
        descriptors: bool = True,
    ) -> None:
        """``descriptors`` is false where the head reads the features of whole graphs, and no token does."""
        super().__init__()
        self.config, self.reads_descriptors = config, descriptors
        # What a token is without features, identifiers and types; a buffer, so that it follows the model's precision
        # and device.
        self.register_buffer("blank", torch.zeros(dim), persistent=False)
        dropout = config.feature_dropout
        self.node_encoder = FeatureEncoder("node_features", config.node_features, dim, dropout)
        self.edge_encoder = FeatureEncoder("edge_features", config.edge_features, dim, dropout)
        self.hyperedge_encoder = FeatureEncoder("hyperedge_features", config.hyperedge_features, dim, dropout)
        self.graph_encoder = FeatureEncoder(
            "graph_features", config.graph_features if descriptors else FeatureSpec(), dim
        )
        self.type_embedding = nn.Embedding(config.num_types, dim) if config.type_ids else None
        specials = config.graph_token + config.null_token
        self.special_tokens = nn.Parameter(torch.zeros(specials, dim)) if specials else None
        # First-order identifiers come one per token, so there is nothing to concatenate or to pool.
        self.names_nodes = per_node = not (isinstance(identifiers, NoIds) or identifiers.first_order)
        pools = per_node and (config.layout == "undirected" or config.hyperedges)
        if config.pool_mlp and not pools:
            raise ValueError(
                "tokens.pool_mlp is how node identifiers are pooled, and no token here pools them; leave it false, or "
                "give the model undirected edges or hyperedges, and one identifier per node"
            )
        self.id_pool = _pool(identifiers.dim, dim, config.pool_mlp) if pools else None
        concatenates = per_node and config.layout == "directed"
        width = identifiers.dim * (config.order if concatenates else 1)
        self.id_proj = nn.Linear(width, dim, bias=False) if concatenates or identifiers.first_order else None
        self.structure: StructureEncoder | None = None
        if structure is not None and structure.used:
            structure.check_tokens(config.order, config.hyperedges)
            self.structure = StructureEncoder(dim, structure, config.layout)

    def forward(self, batch: GraphBatch, ids: Identifiers | None, *, eigenvectors: Tensor | None = None) -> TokenBatch:
        """``eigenvectors`` [nodes, pairs] have their signs already, for a model with ``structure.eigenpairs``."""
        tokens, rows, source, place = self._laid_out(batch, ids, eigenvectors)
        index, hyper_kind = tokens.tuples, self.config.num_types - 1
        kinds = TokenKind.EDGE if self.config.order == 2 else edge_kinds(index)
        parts = [
            self._specials(batch),
            self._sum(batch.num_nodes, TokenKind.NODE, *(terms.nodes for terms in rows.values())),
            self._sum(len(index), kinds, *(terms.edges for terms in rows.values())),
            self._sum(batch.num_hyperedges, hyper_kind, *(terms.hyperedges for terms in rows.values())),
        ]
        values = torch.cat([part for part in parts if part is not None])
        return tokens.with_values(reorder(values, source, place))

    def terms(
        self, batch: GraphBatch, ids: Identifiers | None, *, eigenvectors: Tensor | None = None
    ) -> tuple[TokenBatch, dict[str, Float[Tensor, "tokens dim"]]]:
        """The tokens, and the terms that their values are the sum of, as far as there are any.

        "features" (of the whole graph on its [graph] token), "identifiers" and "structure"; what is left of a value is
        the same for all tokens of a kind: type identifiers and the special tokens themselves.
        """
        tokens = self(batch, ids, eigenvectors=eigenvectors)
        _, rows, source, place = self._laid_out(batch, ids, eigenvectors)
        sizes = (batch.num_nodes, len(tokens.tuples), batch.num_hyperedges)
        special = len(place) - sum(sizes)
        found = {}
        for name, term in rows.items():
            blank = [self.blank.expand(size, -1) for size in sizes]
            parts = [zero if own is None else own for own, zero in zip(term, blank, strict=True)]
            first = self._descriptors(batch) if name == "features" else None
            parts = [self.blank.expand(special, -1) if first is None else first, *parts]
            found[name] = reorder(torch.cat(parts), source, place)
        return tokens, found

    def _laid_out(
        self, batch: GraphBatch, ids: Identifiers | None, eigenvectors: Tensor | None
    ) -> tuple[TokenBatch, "dict[str, _Terms]", Int[Tensor, " tokens"], Int[Tensor, " tokens"]]:
        """The tokens without their values, the terms of those, and which row of all terms is which token."""
        check_relations(batch, self.config)
        self.node_encoder.check(batch, batch.nodes)
        self.edge_encoder.check(batch, batch.edges)
        self.hyperedge_encoder.check(batch, batch.hyperedges)
        if self.reads_descriptors:
            self.graph_encoder.check(batch, Segments.uniform(batch.num_graphs, 1))
        merged = merge_directions(batch) if self.config.layout == "undirected" else None
        edges = batch.edges if merged is None else merged.segments
        index = _pick(batch.edge_index[: self.config.order].T, merged)
        tokens, source, place = self._lay_out(batch, merged, edges, index)
        edge_features = None if batch.edge_features is None else _pick(batch.edge_features, merged)
        rows = {
            "features": _Terms(
                self.node_encoder(batch.node_features),
                self.edge_encoder(edge_features),
                self.hyperedge_encoder(batch.hyperedge_features),
            ),
            "identifiers": _Terms(
                self._node_ids(ids), self._edge_ids(index, ids, merged), self._hyperedge_ids(batch, ids)
            ),
        }
        if self.structure is not None:
            of_nodes, of_edges = self.structure(batch, None if merged is None else merged.first, index, eigenvectors)
            rows["structure"] = _Terms(of_nodes, of_edges, None)
        return tokens, rows, source, place

    def row_links(self, batch: GraphBatch, tokens: TokenBatch, basis: SparseBasis) -> RowLinks:
        """:meth:`linked_rows`, kept as long as the batch keeps its edges: for a graph that is the batch of every step,
        always."""
        known = _LINKS.setdefault(batch.edge_numbers, {})
        own = known.get((self.config, basis))
        # Features of edges decide which of several between two nodes are two directions of one.
        if own is None or own.features is not batch.edge_features or own.members is not batch.member_numbers:
            links = RowLinks(*self.linked_rows(batch, tokens, basis))
            own = known[self.config, basis] = _KnownLinks(batch.edge_features, batch.member_numbers, links)
        return own.links

    def linked_rows(
        self, batch: GraphBatch, tokens: TokenBatch, basis: SparseBasis
    ) -> tuple[Int[Tensor, " links"], Int[Tensor, " links"]]:
        """Rows that are added and the rows they are added to, in the sparse operators of ``basis``."""
        sources, targets = self.incident_rows(batch, tokens)
        if basis == "nodes":
            return sources, targets
        ends = tokens.tuples if tokens.order > 1 else tokens.tuples[:, :0]
        # A self-loop has one node, which it reads once.
        distinct = torch.ones_like(ends, dtype=torch.bool)
        for place in range(1, ends.shape[1]):
            distinct[:, place] = (ends[:, :place] != ends[:, place : place + 1]).all(1)
        of_edges = tokens.token_rows[:, None].expand_as(ends)[distinct]
        of_hyperedges = tokens.hyperedge_rows.index_select(0, batch.members.ids)
        read = tokens.node_rows.index_select(0, torch.cat([ends[distinct], batch.hyperedge_nodes]))
        return torch.cat([sources, read]), torch.cat([targets, of_edges, of_hyperedges])

    def incident_rows(
        self, batch: GraphBatch, tokens: TokenBatch
    ) -> tuple[Int[Tensor, " links"], Int[Tensor, " links"]]:
        """Rows X_ij (j != i) and the node rows X_ii they are added to: the sparse equivariant basis.

        A token that stands for both directions, or for a hyperedge, is added to every one of its nodes.
        """
        distinct = (tokens.endpoints != tokens.endpoints[:, :1]).any(1)
        rows = torch.nonzero(distinct).flatten()
        ends = 2 if self.config.layout == "undirected" else 1
        nodes = tokens.endpoints.index_select(0, rows)[:, :ends]
        sources = [rows.repeat_interleave(ends), tokens.hyperedge_rows.index_select(0, batch.members.ids)]
        return torch.cat(sources), tokens.node_rows.index_select(0, torch.cat([nodes.flatten(), batch.hyperedge_nodes]))

    def _lay_out(
        self, batch: GraphBatch, merged: MergedEdges | None, edges: Segments, index: Tensor
    ) -> tuple[TokenBatch, Int[Tensor, " tokens"], Int[Tensor, " tokens"]]:
        """Which row of [specials; nodes; edges; hyperedges] each token takes, and where each of those rows goes."""
        device, special = batch.device, 0 if self.special_tokens is None else len(self.special_tokens)
        parts = [Segments.uniform(batch.num_graphs, special, device), batch.nodes, edges, batch.hyperedges]
        segments, (special_rows, node_rows, edge_rows, hyperedge_rows) = interleave(parts)
        place = torch.cat([special_rows, node_rows, edge_rows, hyperedge_rows])
        source = torch.empty_like(place)
        source[place] = torch.arange(len(place), device=device)
        tokens = TokenBatch(
            values=torch.empty(len(place), 0, device=device),
            segments=segments,
            order=self.config.order,
            num_types=self.config.num_types,
            graph_rows=segments.starts if self.config.graph_token else None,
            node_rows=node_rows,
            token_rows=edge_rows,
            tuples=index,
            merged=merged,
            hyperedge_rows=hyperedge_rows,
        )
        return tokens, source, place

    def _specials(self, batch: GraphBatch) -> Tensor | None:
        if self.special_tokens is None:
            return None
        tokens, descriptors = self.special_tokens.repeat(batch.num_graphs, 1), self._descriptors(batch)
        return tokens if descriptors is None else tokens + descriptors

    def _descriptors(self, batch: GraphBatch) -> Tensor | None:
        """What is added to the special tokens: to every [graph] its embedded features; None without any."""
        descriptors = self.graph_encoder(batch.graph_features)
        if descriptors is None or self.special_tokens is None:
            return None
        count = len(self.special_tokens)
        blank = self.special_tokens.new_zeros(batch.num_graphs * count, self.special_tokens.shape[1])
        first = torch.arange(0, len(blank), count, device=batch.device)
        return blank.index_add(0, first, descriptors.to(blank.dtype))

    def _sum(self, rows: int, kinds: int | Tensor, *terms: Tensor | None) -> Tensor:
        """Features, identifiers and type identifiers of one kind of relation, as far as there are any."""
        present = [self.blank if self.type_embedding is None else self._types(kinds, self.type_embedding)]
        present += [term for term in terms if term is not None]
        if self.type_embedding is None and len(present) > 1:
            present = present[1:]
        # Where all rows are equal, a single row is computed and expanded.
        return sum(present[1:], start=present[0]).expand(rows, -1)

    def _types(self, kinds: int | Tensor, embedding: nn.Embedding) -> Tensor:
        """E of every row, or the one E that all rows have."""
        if isinstance(kinds, int):
            return embedding.weight[kinds]
        rows: Tensor = embedding(kinds)
        return rows

    def _node_ids(self, ids: Identifiers | None) -> Tensor | None:
        if ids is None:
            return None
        if ids.edges is None and self.config.layout == "undirected":
            assert self.id_pool is not None
            pooled: Tensor = self.id_pool(ids.nodes)
            return 2 * pooled
        assert self.id_proj is not None
        copies = 1 if ids.edges is not None else self.config.order
        projected: Tensor = self.id_proj(ids.nodes.repeat(1, copies))
        return projected

    def _edge_ids(self, index: Tensor, ids: Identifiers | None, merged: MergedEdges | None) -> Tensor | None:
        if ids is None:
            return None
        if ids.edges is not None:
            assert self.id_proj is not None
            own: Tensor = self.id_proj(_pick(ids.edges, merged))
            return own
        if merged is not None:
            assert self.id_pool is not None
            if isinstance(self.id_pool, nn.Linear):
                # A linear rho gives rho(P_u + P_v) = rho(P_u) + rho(P_v). Summing first costs nothing in the gradient,
                # since identifiers have none.
                summed = ids.nodes.index_select(0, index[:, 0]) + ids.nodes.index_select(0, index[:, 1])
                both: Tensor = self.id_pool(summed)
                return both
            pooled: Tensor = self.id_pool(ids.nodes)
            return pooled.index_select(0, index[:, 0]) + pooled.index_select(0, index[:, 1])
        assert self.id_proj is not None
        # [P_u, P_v]: the identifiers of a tuple's nodes are selected one after another, so a view concatenates them.
        pairs = ids.nodes.index_select(0, index.flatten()).view(len(index), index.shape[1] * ids.nodes.shape[1])
        concatenated: Tensor = self.id_proj(pairs)
        return concatenated

    def _hyperedge_ids(self, batch: GraphBatch, ids: Identifiers | None) -> Tensor | None:
        if ids is None or not self.config.hyperedges:
            return None
        if ids.hyperedges is not None:
            assert self.id_proj is not None
            own: Tensor = self.id_proj(ids.hyperedges)
            return own
        assert self.id_pool is not None
        return segment_sum(self.id_pool(ids.nodes).index_select(0, batch.hyperedge_nodes), batch.members)


def check_relations(batch: GraphBatch, config: TokensConfig) -> None:
    if config.order == 1 and batch.num_edges:
        raise ValueError(f"the batch has {batch.num_edges} edges; this model reads sets of nodes (tokens.order is 1)")
    # An empty edge_index has two rows or more, so sets of nodes (order 1) are not compared here.
    if config.order > 1 and batch.order != config.order:
        raise ValueError(f"edge_index has {batch.order} rows; this model expects {config.order}")
    if batch.num_hyperedges and not config.hyperedges:
        raise ValueError(
            f"the batch has {batch.num_hyperedges} hyperedges; this model was built without (tokens.hyperedges=True)"
        )


def _pool(id_dim: int, dim: int, mlp: bool) -> nn.Module:
    """rho, the map of identifiers before they are pooled."""
    if mlp:
        return nn.Sequential(nn.Linear(id_dim, dim), nn.GELU(), nn.Linear(dim, dim))
    return nn.Linear(id_dim, dim, bias=False)


def _pick(rows: Tensor, merged: MergedEdges | None) -> Tensor:
    return rows if merged is None else rows.index_select(0, merged.first)
