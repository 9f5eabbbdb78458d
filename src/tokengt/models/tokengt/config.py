"""TokenGTConfig: all settings of a TokenGT, how they fit themselves to a data set, and what they say of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from jaxtyping import Int
from torch import Tensor

from tokengt import config as configs
from tokengt.batch import GraphBatch
from tokengt.block import EncoderConfig
from tokengt.data.store import Store
from tokengt.interop.descriptors import is_feature
from tokengt.models.contract import Description, ModelConfig
from tokengt.models.features import FeatureSpec
from tokengt.models.tokengt.fitting import fit_head, fit_identifiers, fit_structure, fit_tokens
from tokengt.models.tokengt.guard import Domain
from tokengt.models.tokengt.heads import DescriptorConfig, HeadConfig, HeadDescriptors, TokenDescriptors
from tokengt.models.tokengt.identifiers import IdentifierConfig, LaplacianIds, NoIds
from tokengt.models.tokengt.proof_heads import ProofHeads
from tokengt.models.tokengt.structure import StructureConfig
from tokengt.models.tokengt.tokens import SparseBasis, TokensConfig
from tokengt.structure.facts import StructureFact

if TYPE_CHECKING:
    from tokengt.models.tokengt.model import TokenGT


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
        # Here and not above, because the model's file imports this one.
        from tokengt.models.tokengt.model import TokenGT

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
