"""TokenGT: identifiers, tokens, a plain Transformer, a head. Composition only."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt import config as configs
from tokengt.attention import AttentionConfig, AttentionPlan, MultiheadAttention, SoftmaxConfig
from tokengt.batch import GraphBatch
from tokengt.block import EncoderConfig
from tokengt.data.store import Store
from tokengt.draws import GeneratorDraws
from tokengt.interop.descriptors import is_feature
from tokengt.interop.pyg import as_batch
from tokengt.models.contract import Description, Model, ModelConfig, SequenceRule, check_sizes
from tokengt.models.features import FeatureSpec
from tokengt.models.passes import Over, Prediction, check_passes, evaluating, run_passes, summarise
from tokengt.models.pretrained import read_model, restore
from tokengt.models.tokengt.fitting import fit_head, fit_identifiers, fit_structure, fit_tokens
from tokengt.models.tokengt.guard import Domain, DomainGuard
from tokengt.models.tokengt.heads import (
    DescriptorConfig,
    Head,
    HeadConfig,
    HeadDescriptors,
    TokenDescriptors,
    descriptor_reader,
)
from tokengt.models.tokengt.identifiers import (
    DrawSource,
    IdentifierConfig,
    Identifiers,
    LaplacianIds,
    NoIds,
    OrfIds,
    given_identifiers,
    identify,
)
from tokengt.models.tokengt.initialise import initialise
from tokengt.models.tokengt.orthogonal import orthogonal_random_features
from tokengt.models.tokengt.proof_heads import ProofHeads, begin_with_proof_heads
from tokengt.models.tokengt.structure import StructureConfig
from tokengt.models.tokengt.token_batch import TokenBatch
from tokengt.models.tokengt.tokens import SparseBasis, Tokenizer, TokensConfig
from tokengt.ragged import Segments
from tokengt.structure.facts import StructureFact
from tokengt.structure.tuples import with_merged_edges
from tokengt.tracing import eager_only
from tokengt.transformer import Encoder, RowLinks


@dataclass(frozen=True)
class TokenGTConfig(ModelConfig):
    """Everything that makes a model, each part beside its owner.

    Args:
        dim: d, the token width.
        tokens: features, order, layout, special tokens, type identifiers.
        identifiers: node identifiers.
        encoder: the Transformer.
        head: what is predicted.
        domain: the inputs that written weights are right for, and all others are refused; None for trained ones.
        structure: stronger inputs than the paper's: random walks, eigenpairs, degrees; none by default.
        proof_heads: heads that begin as the maps of the paper's proofs; none by default.
        sparse_basis: with ``encoder.sparse_basis_residual``, "nodes" read the tokens of their edges (X_ii adds X_ij for
            all j) as in the paper's last experiment; with "both", an edge reads its nodes as well (X_ij adds X_ii and
            X_jj), so that what is known of a node reaches its neighbours within two layers.
        descriptors: where the features of whole graphs are read: by the [graph] token, or by the head alone.
    """

    kind: Literal["tokengt"] = field(default="tokengt", init=False)
    dim: int = 128
    tokens: TokensConfig = field(default_factory=TokensConfig)
    identifiers: IdentifierConfig = field(default_factory=LaplacianIds)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    domain: Domain | None = field(default=None, metadata={"late": True})
    structure: StructureConfig = field(default=StructureConfig(), metadata={"late": True})
    proof_heads: ProofHeads = field(default=ProofHeads(), metadata={"late": True})
    sparse_basis: SparseBasis = field(default="nodes", metadata={"late": True})
    descriptors: DescriptorConfig = field(default=TokenDescriptors(), metadata={"late": True})

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ValueError(f"dim is {self.dim}; expected at least 1")
        if self.sparse_basis not in get_args(SparseBasis):
            raise ValueError(f"sparse_basis is {self.sparse_basis!r}; expected 'nodes' or 'both'")

    def fit(self, data: Store, out_dim: int) -> "TokenGTConfig":
        # Whether nodes are joined is told by their neighbours' features too, which come to a node through its edges.
        residual = self.encoder.sparse_basis_residual
        read_late = data.graphs.graph_features is not None and data.manifest.level == "graph"
        return replace(
            self,
            descriptors=self.descriptors if read_late else TokenDescriptors(),
            tokens=fit_tokens(self.tokens, data),
            identifiers=fit_identifiers(self.identifiers, data),
            structure=fit_structure(self.structure, data),
            head=fit_head(self.head, data, out_dim),
            sparse_basis="both" if data.manifest.level == "link" and residual else self.sparse_basis,
            # Weights that are trained are not those that the domain was worked out for.
            domain=None,
        )

    def refit(self, data: Store, out_dim: int) -> "TokenGTConfig":
        """A trained model keeps its own tokens; numbers worked out from a molecule are read by its new head.

        Added to its [graph] token, many of them disturb all that the blocks have learned (results/LOG.md). The few
        columns of a table, such as a temperature, go there: what they mean depends on the molecule.
        """
        names = data.manifest.descriptors
        new = HeadDescriptors() if names and all(map(is_feature, names)) else self.descriptors
        late = self.descriptors if self.num_descriptors else new
        tokens = replace(self.tokens, graph_features=FeatureSpec.of(data.graphs.graph_features))
        fitted = replace(self, descriptors=late).fit(data, out_dim)
        return replace(fitted, tokens=tokens, sparse_basis=self.sparse_basis)

    @property
    def num_descriptors(self) -> int:
        return self.tokens.graph_features.width

    @property
    def kept_descriptors(self) -> int:
        return 0 if isinstance(self.descriptors, HeadDescriptors) else self.num_descriptors

    @property
    def decided(self) -> Sequence[str]:
        return ("head.level", "head.out_dim")

    @property
    def float_features(self) -> Sequence[str]:
        return tuple(name for name in ("node_features", "edge_features") if getattr(self.tokens, name).width)

    def build(self) -> "TokenGT":
        return TokenGT(self)

    def facts(self) -> Sequence[StructureFact]:
        """What the identifiers and stronger inputs are made of, so that no step works it out."""
        # Both may be made of the same eigenvectors, which are worked out once.
        return tuple(dict.fromkeys((*self.identifiers.facts(), *self.structure.facts())))

    def token_counts(self, graphs: GraphBatch) -> Int[Tensor, " graphs"]:
        """About how many tokens each graph becomes; edges count half where one token stands for two directions."""
        edges = graphs.edges.host_lengths // (2 if self.tokens.layout == "undirected" else 1)
        return 1 + graphs.nodes.host_lengths + edges + graphs.hyperedges.host_lengths

    def step_bytes(self, graphs: GraphBatch, places: Int[Tensor, " graphs"], itemsize: int) -> int:
        """What the blocks keep of every token, and tokens themselves with their gradient."""
        tokens = int(self.token_counts(graphs).index_select(0, places).sum())
        return tokens * (self.encoder.activation_bytes(self.dim, itemsize) + 8 * self.dim)

    @property
    def recomputes(self) -> bool:
        return True

    def meanings(self) -> Mapping[str, Any]:
        ids, encoder = self.identifiers, self.encoder
        return {
            "identifiers.kind": ids.kind,
            "identifiers.which": getattr(ids, "which", None),
            "structure.eigenpairs": self.structure.eigenpairs,
            "encoder.num_heads": encoder.num_heads,
            "encoder.activation": encoder.activation,
            "encoder.norm": encoder.norm,
            "encoder.sparse_basis_residual": encoder.sparse_basis_residual,
            "encoder.sparse_basis_scale": encoder.sparse_basis_scale,
            "encoder.incidence": encoder.incidence,
            "sparse_basis": self.sparse_basis,
        }

    def attention_settings(self, kind: str) -> Mapping[str, Any]:
        """As the paper fine-tunes TokenGT (Lap) + Performer: without stochastic depth and eigenvector dropout."""
        settings = {"encoder.attention.kind": kind, "encoder.drop_path": 0.0}
        return settings | ({"identifiers.dropout": 0.0} if isinstance(self.identifiers, LaplacianIds) else {})

    def describe(self) -> Description:
        encoder, ids, head = self.encoder, self.identifiers, self.head
        named = ids.kind if isinstance(ids, NoIds) else f"{ids.kind} {ids.dim}"
        named = f"{named}, {self.structure}" if self.structure.used else named
        summary = (
            f"{encoder.num_layers} layers x {self.dim}, {encoder.num_heads} heads, {named}, "
            f"{encoder.attention.kind} attention, {head.level} head of {head.out_dim}"
        )
        identifiers = ids.kind if isinstance(ids, NoIds) else f"{ids.kind}, {ids.dim} dimensions"
        details = {"identifiers": identifiers} | ({"structure": str(self.structure)} if self.structure.used else {})
        return Description("TokenGT", summary, details, ("graph-transformer",))

    def to_dict(self) -> dict[str, Any]:
        return configs.to_dict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TokenGTConfig":
        return configs.from_dict(cls, data)


class TokenGT(Model):
    """Tokenized Graph Transformer (Kim et al., NeurIPS 2022).

    ``model(batch)`` takes a :class:`GraphBatch`, a :class:`Graph`, a list of graphs, or a PyG ``Data`` / ``Batch`` as
    it is, and returns [graphs, out], [nodes, out], [edges, out] or [links, out] by head.
    """

    config: TokenGTConfig

    def __init__(self, config: TokenGTConfig) -> None:
        super().__init__()
        if not isinstance(config, TokenGTConfig):
            raise ValueError(f"a TokenGT is built from a TokenGTConfig, got {type(config).__name__}")
        # Checked here and not in the config, whose parts are changed one after the other before a model is built.
        if config.head.level == "graph" and config.head.readout == "token" and not config.tokens.graph_token:
            raise ValueError("a graph head reads the [graph] token; set tokens.graph_token=True or head.readout='sum'")
        if config.encoder.incidence != "never" and (config.tokens.order != 2 or config.tokens.hyperedges):
            raise ValueError(
                "encoder.incidence masks tokens of nodes and edges alone; set it to 'never' for other ones"
            )
        self.config = config
        late = descriptor_reader(config.descriptors, config.tokens.graph_features, config.head.level)
        self.tokenizer = Tokenizer(
            config.dim, config.tokens, config.identifiers, config.structure, descriptors=late is None
        )
        self.encoder = Encoder(config.dim, config.encoder)
        self.head = Head(config.dim, config.head, late)
        if config.domain is not None:
            self.tokenizer.register_forward_pre_hook(DomainGuard(config.domain, config.tokens.order))
        initialise(self)
        if config.proof_heads.layers:
            begin_with_proof_heads(config.proof_heads, self.tokenizer, self.encoder)

    def forward(
        self,
        batch: Any,
        node_ids: Tensor | None = None,
        generator: torch.Generator | None = None,
        *,
        pairs: Tensor | None = None,
        draw: int = 0,
    ) -> Float[Tensor, "rows out"]:
        """Predict.

        Args:
            batch: the graphs.
            node_ids: [all nodes, id_dim] identifiers to use instead of the model's own.
            generator: source of identifier draws; without one, training draws from torch's global generator and
                evaluation keys its draws by each graph, so that the same graph gives the same prediction.
            pairs: link head only: node numbers in the packed batch; by itself the pairs that come with the batch.
            draw: which keyed draw to use at evaluation.
        """
        packed = as_batch(batch)
        tokens, plan, links = self._tokens(packed, node_ids, generator, draw)
        return self._read(tokens, plan, links, packed, pairs)

    def from_tokens(self, batch: Any, tokens: TokenBatch) -> Float[Tensor, "rows out"]:
        """Predict from tokens of these graphs whose values may be others than :meth:`input_terms` gave."""
        packed = as_batch(batch)
        return self._read(tokens, self._plan(tokens), self._links(packed, tokens), packed, None)

    def _read(
        self,
        tokens: TokenBatch,
        plan: AttentionPlan,
        links: RowLinks | None,
        packed: GraphBatch,
        pairs: Tensor | None,
    ) -> Float[Tensor, "rows out"]:
        # The last block computes only the rows that the head reads, which leaves out most of its tokens.
        rows = self.head.rows(tokens)
        values = self.encoder(tokens.values, plan, links, rows)
        read = values if rows is not None else self.head.read(tokens.with_values(values))
        out: Tensor = self.head(read, packed, pairs)
        return out

    def encode(
        self,
        batch: Any,
        node_ids: Tensor | None = None,
        generator: torch.Generator | None = None,
        *,
        draw: int = 0,
    ) -> TokenBatch:
        """The encoder's output: ``.graph``, ``.nodes``, ``.edges`` or all ``.values``."""
        tokens, plan, links = self._tokens(as_batch(batch), node_ids, generator, draw)
        return tokens.with_values(self.encoder(tokens.values, plan, links))

    @torch.no_grad()
    def attention_maps(
        self, batch: Any, node_ids: Tensor | None = None, generator: torch.Generator | None = None
    ) -> list[list[Float[Tensor, "heads _ _"]]]:
        """Softmax weights at evaluation, ``maps[layer][graph]``; rows and columns are tokens as in :meth:`encode`."""
        with evaluating(self):
            tokens, plan, links = self._tokens(as_batch(batch), node_ids, generator, 0)
            return self.encoder.attention_weights(tokens.values, plan, links)

    def attention_inputs(
        self, batch: Any
    ) -> tuple[TokenBatch, Iterator[tuple[MultiheadAttention, Float[Tensor, "tokens dim"]]]]:
        """The tokens, and layer after layer its attention with the rows it is given: for maps that are not all kept."""
        tokens, plan, links = self._tokens(as_batch(batch), None, None, 0)
        return tokens, self.encoder.attention_inputs(tokens.values, plan, links)

    def input_terms(
        self, batch: Any, *, draw: int = 0
    ) -> tuple[TokenBatch, dict[str, Float[Tensor, "tokens dim"]], RowLinks | None]:
        """The tokens, the terms that their values are the sum of (:meth:`Tokenizer.terms`), and the links of rows."""
        packed = as_batch(batch)
        identifiers, eigenvectors = self._identified(packed, None, None, draw)
        tokens, terms = self.tokenizer.terms(packed, identifiers, eigenvectors=eigenvectors)
        return tokens, terms, self._links(packed, tokens)

    def predict(
        self,
        batch: Any,
        *,
        draws: int = 1,
        over: Over = "identifiers",
        node_ids: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> Prediction:
        """Evaluation-mode predictions averaged over ``draws``, with their standard deviation.

        A draw over identifiers has new random identifiers, or for Laplacian ones new signs (draw 0 has the canonical
        signs); a draw over dropout has another mask. With your own ``node_ids``, only dropout can be drawn.
        """
        check_passes(self, draws, over, given_ids=node_ids is not None)
        packed = as_batch(batch)
        return summarise(run_passes(self, draws, over, lambda draw: self(packed, node_ids, pairs=pairs, draw=draw)))

    def embed(self, batch: Any) -> Float[Tensor, "graphs dim"]:
        """The encoded [graph] token of every graph; the sum over its tokens for a model without one."""
        tokens = self.encode(batch)
        return tokens.pooled if tokens.graph_rows is None else tokens.graph

    @property
    def embedding_width(self) -> int:
        return self.config.dim

    @property
    def has_draws(self) -> bool:
        return not isinstance(self.config.identifiers, NoIds) or self.config.structure.eigenpairs > 0

    @property
    def takes_node_ids(self) -> bool:
        return True

    def costs(self, graphs: GraphBatch) -> Int[Tensor, " graphs"]:
        return self.config.token_counts(graphs)

    def prepared(self, graphs: GraphBatch) -> GraphBatch:
        """Where one token stands for both directions of an edge, these pairs are found once for all steps."""
        return with_merged_edges(graphs) if self._merges else graphs

    def sequence_rule(self) -> SequenceRule | None:
        """None with FAVOR+, which counts its steps, and elu + 1; and with the sparse basis, whose links differ in
        number."""
        config, tokens, encoder = self.config, self.config.tokens, self.config.encoder
        plain = isinstance(encoder.attention, SoftmaxConfig) and not encoder.sparse_basis_residual
        pairs = tokens.order == 2 and not tokens.hyperedges and not config.identifiers.first_order
        if not plain or not pairs or config.head.level == "link" or config.domain is not None:
            return None
        specials = tokens.graph_token + tokens.null_token
        return SequenceRule(graph=specials, node=1, edge=not self._merges, undirected=self._merges)

    def drawn_node_ids(self, nodes: Segments) -> Float[Tensor, "nodes id_dim"] | None:
        """Orthogonal random features: graphs of each size are solved together, and sizes differ from step to step."""
        ids = self.config.identifiers
        if not isinstance(ids, OrfIds):
            return None
        draws = GeneratorDraws(None, nodes.offsets.device)
        return orthogonal_random_features(nodes, ids.dim, draws).to(next(self.parameters()))

    def set_recompute(self, on: bool) -> bool:
        self.encoder.set_recompute(on)
        return on

    def pieces(self) -> Sequence[nn.Module]:
        return tuple(self.encoder.blocks)

    def sometimes_unused(self) -> Iterable[nn.Parameter]:
        """The tokenizer: in a batch of single atoms there are no edges, and their encoder gets no gradient."""
        return self.tokenizer.parameters()

    @property
    def _merges(self) -> bool:
        return self.config.tokens.layout == "undirected"

    def set_attention(self, attention: AttentionConfig) -> None:
        """Switch a trained model to another kind of attention; its weights stay."""
        self.encoder.configure_attention(attention)
        self.config = replace(self.config, encoder=replace(self.config.encoder, attention=attention))

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: torch.device | str = "cpu") -> "TokenGT":
        """Read what :meth:`save_pretrained` wrote, in evaluation mode; anything else is refused.

        ``folder`` is a folder of this machine, a saved model or a run of ours: nothing is downloaded.
        """
        description, state = read_model(Path(folder))
        if description.get("kind") != "tokengt":
            raise ValueError(f"{folder} holds a model of kind {description.get('kind')!r}, and no TokenGT")
        config = TokenGTConfig.from_dict(description)
        check_sizes(config, counted=False)
        model = restore(config.build, state, Path(folder), device)
        assert isinstance(model, TokenGT)
        model.remember_folder(Path(folder))
        return model

    @eager_only
    def _tokens(
        self, batch: GraphBatch, node_ids: Tensor | None, generator: torch.Generator | None, draw: int
    ) -> tuple[TokenBatch, AttentionPlan, RowLinks | None]:
        identifiers, eigenvectors = self._identified(batch, node_ids, generator, draw)
        if self.head.descriptors is not None:
            self.head.descriptors.check(batch)
        tokens: TokenBatch = self.tokenizer(batch, identifiers, eigenvectors=eigenvectors)
        # Computed and cached here, because compiled code would break its graph to compute it.
        _ = batch.nodes.ids
        return tokens, self._plan(tokens), self._links(batch, tokens)

    def _plan(self, tokens: TokenBatch) -> AttentionPlan:
        marks = None if self.config.encoder.incidence == "never" else tokens.endpoints.int()
        return self.encoder.plan(tokens.segments, marks)

    def _identified(
        self, batch: GraphBatch, node_ids: Tensor | None, generator: torch.Generator | None, draw: int
    ) -> tuple[Identifiers | None, Float[Tensor, "nodes pairs"] | None]:
        """The identifiers, and the eigenvectors of the structure, as this model draws them."""
        weight = next(self.parameters())
        if batch.device != weight.device:
            raise ValueError(f"the batch is on {batch.device} but the model is on {weight.device}; move one of them")
        ids = self.config.identifiers
        if node_ids is None:
            identifiers = identify(batch, ids, training=self.training, generator=generator, draw=draw)
        else:
            identifiers = given_identifiers(batch, ids, node_ids)
        identifiers = None if identifiers is None else identifiers.to(weight)
        return identifiers, self.config.structure.eigenvectors(batch, DrawSource(self.training, generator, draw))

    def _links(self, batch: GraphBatch, tokens: TokenBatch) -> RowLinks | None:
        """Which rows are added to which after every block, for a model with the sparse basis."""
        if not self.config.encoder.sparse_basis_residual:
            return None
        return RowLinks(*self.tokenizer.linked_rows(batch, tokens, self.config.sparse_basis))
