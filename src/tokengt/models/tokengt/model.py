"""TokenGT: identifiers, tokens, a plain Transformer, a head. Composition only."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.attention import AttentionConfig, AttentionPlan, MultiheadAttention, SoftmaxConfig
from tokengt.batch import GraphBatch
from tokengt.draws import GeneratorDraws
from tokengt.interop.pyg import as_batch
from tokengt.models.contract import Model, SequenceRule, check_sizes
from tokengt.models.passes import Over, Prediction, check_passes, evaluating, run_passes, summarise
from tokengt.models.pretrained import read_model, restore
from tokengt.models.tokengt.config import TokenGTConfig as TokenGTConfig
from tokengt.models.tokengt.guard import DomainGuard
from tokengt.models.tokengt.heads import Head, descriptor_reader
from tokengt.models.tokengt.identifiers import DrawSource, Identifiers, NoIds, OrfIds, given_identifiers, identify
from tokengt.models.tokengt.initialise import initialise
from tokengt.models.tokengt.orthogonal import orthogonal_random_features
from tokengt.models.tokengt.proof_heads import begin_with_proof_heads
from tokengt.models.tokengt.token_batch import TokenBatch
from tokengt.models.tokengt.tokens import Tokenizer
from tokengt.ragged import Segments
from tokengt.structure.tuples import with_merged_edges
from tokengt.tracing import eager_only
from tokengt.transformer import Encoder, RowLinks


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
            raise ValueError(
                "a graph head reads the [graph] token; set tokens.graph_token=True or head.readout='sum' or 'mean'"
            )
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
        return self.tokenizer.row_links(batch, tokens, self.config.sparse_basis)
