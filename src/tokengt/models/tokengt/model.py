"""TokenGT: identifiers, tokens, a plain Transformer, a head. Composition only."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokengt import config as configs
from tokengt.attention import AttentionConfig
from tokengt.batch import GraphBatch
from tokengt.block import EncoderConfig
from tokengt.interop.pyg import as_batch
from tokengt.models.legacy import model_from_v1
from tokengt.models.pretrained import read_model, write_model
from tokengt.models.tokengt.heads import Head, HeadConfig
from tokengt.models.tokengt.identifiers import IdentifierConfig, LaplacianIds, given_identifiers, identify
from tokengt.models.tokengt.initialise import initialise
from tokengt.models.tokengt.tokens import TokenBatch, Tokenizer, TokensConfig
from tokengt.tracing import eager_only
from tokengt.transformer import Encoder, RowLinks


@dataclass(frozen=True)
class TokenGTConfig:
    """Everything that makes a model, each part beside its owner.

    Args:
        dim: d, the token width.
        tokens: features, order, layout, special tokens, type identifiers.
        identifiers: node identifiers.
        encoder: the Transformer.
        head: what is predicted.
    """

    kind: Literal["tokengt"] = field(default="tokengt", init=False)
    dim: int = 128
    tokens: TokensConfig = field(default_factory=TokensConfig)
    identifiers: IdentifierConfig = field(default_factory=LaplacianIds)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    head: HeadConfig = field(default_factory=HeadConfig)

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ValueError(f"dim is {self.dim}; expected at least 1")

    def to_dict(self) -> dict[str, Any]:
        return configs.to_dict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TokenGTConfig":
        return configs.from_dict(cls, data)


class Prediction(NamedTuple):
    """Mean over identifier draws, and their standard deviation (zero for one draw)."""

    mean: Float[Tensor, "rows out"]
    std: Float[Tensor, "rows out"]


class TokenGT(nn.Module):
    """Tokenized Graph Transformer (Kim et al., NeurIPS 2022).

    ``model(batch)`` takes a :class:`GraphBatch`, a :class:`Graph`, a list of graphs, or a PyG ``Data`` / ``Batch`` as
    it is, and returns [graphs, out], [nodes, out] or [edges, out] by head.
    """

    def __init__(self, config: TokenGTConfig) -> None:
        super().__init__()
        if not isinstance(config, TokenGTConfig):
            raise ValueError(f"a TokenGT is built from a TokenGTConfig, got {type(config).__name__}")
        # Asked of the model, not of its config: settings and the fit to the data change a config one after the other.
        if config.head.level == "graph" and config.head.readout == "token" and not config.tokens.graph_token:
            raise ValueError("a graph head reads the [graph] token; set tokens.graph_token=True or head.readout='sum'")
        self.config = config
        self.tokenizer = Tokenizer(config.dim, config.tokens, config.identifiers)
        self.encoder = Encoder(config.dim, config.encoder)
        self.head = Head(config.dim, config.head)
        initialise(self)

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
            pairs: link head only: node numbers in the packed batch.
            draw: which keyed draw to use at evaluation.
        """
        packed = as_batch(batch)
        tokens, links = self._tokens(packed, node_ids, generator, draw)
        # The last block need not compute what no head reads: most of its tokens.
        rows = self.head.rows(tokens)
        values = self.encoder(tokens.values, tokens.segments, links, rows)
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
        tokens, links = self._tokens(as_batch(batch), node_ids, generator, draw)
        return tokens.with_values(self.encoder(tokens.values, tokens.segments, links))

    @torch.no_grad()
    def attention_maps(
        self, batch: Any, node_ids: Tensor | None = None, generator: torch.Generator | None = None
    ) -> list[list[Float[Tensor, "heads _ _"]]]:
        """Softmax weights at evaluation, ``maps[layer][graph]``; rows and columns are tokens as in :meth:`encode`."""
        with self._evaluating():
            tokens, links = self._tokens(as_batch(batch), node_ids, generator, 0)
            return self.encoder.attention_weights(tokens.values, tokens.segments, links)

    @torch.no_grad()
    def predict(self, batch: Any, *, draws: int = 1, pairs: Tensor | None = None) -> Prediction:
        """Evaluation-mode predictions averaged over ``draws`` identifier draws, with their spread.

        A draw is a new random identifier, or for Laplacian ones new signs (draw 0: the canonical ones).
        """
        if draws < 1:
            raise ValueError(f"draws is {draws}; expected at least 1")
        packed = as_batch(batch)
        with self._evaluating():
            outputs = torch.stack([self(packed, pairs=pairs, draw=draw) for draw in range(draws)])
        return Prediction(outputs.mean(0), outputs.std(0, unbiased=draws > 1))

    def set_attention(self, attention: AttentionConfig) -> None:
        """Switch a trained model between softmax and FAVOR+; its weights stay."""
        self.encoder.configure_attention(attention)
        self.config = replace(self.config, encoder=replace(self.config.encoder, attention=attention))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``model.safetensors`` and ``config.json`` (with the weights' checksum)."""
        write_model(Path(folder), self.config.to_dict(), self.state_dict())

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: torch.device | str = "cpu") -> "TokenGT":
        """Read what :meth:`save_pretrained` wrote, in evaluation mode; anything else is refused."""
        description, state = read_model(Path(folder))
        try:
            known = description if "kind" in description else model_from_v1(description)
            model = cls(TokenGTConfig.from_dict(known))
            model.to(next((t.dtype for t in state.values() if t.is_floating_point()), torch.float32))
            model.load_state_dict(state)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{folder}: config.json does not describe the weights beside it ({reason})") from error
        return model.to(device).eval()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode inside, whatever happens there; then as it was."""
        modes = {module: module.training for module in self.modules()}
        self.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    @eager_only
    def _tokens(
        self, batch: GraphBatch, node_ids: Tensor | None, generator: torch.Generator | None, draw: int
    ) -> tuple[TokenBatch, RowLinks | None]:
        weight = next(self.parameters())
        if batch.device != weight.device:
            raise ValueError(f"the batch is on {batch.device} but the model is on {weight.device}; move one of them")
        ids = self.config.identifiers
        if node_ids is None:
            found = identify(batch, ids, training=self.training, generator=generator, draw=draw)
        else:
            found = given_identifiers(batch, ids, node_ids)
        tokens: TokenBatch = self.tokenizer(batch, None if found is None else found.to(weight))
        _ = batch.nodes.ids  # cached here: compiled code would leave its graph to compute it
        self.encoder.prepare(tokens.segments)
        links = (
            RowLinks(*self.tokenizer.incident_rows(batch, tokens))
            if self.config.encoder.sparse_basis_residual
            else None
        )
        return tokens, links
