"""Which graphs a TokenGT tells apart, measured: its outputs are random, so distributions are compared, with a null.

A graph's output is a random variable: it depends on its identifiers (random rows, or random signs of eigenvectors),
which are drawn anew for every pass (a draw), and on its node numbers. Two graphs are separated when that variable has
another law on each. The test: sample both, fit a linear readout on one half of the samples (Fisher's discriminant),
and ask by permutation whether it tells the other half apart. Samples are independent and the other half is new, so the
same graph relabelled is called separated with probability ``level`` at most, whatever the model. That a pair is *not*
separated says only: not by this model in this many draws.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.attention import MultiheadAttention
from tokengt.batch import GraphBatch
from tokengt.block import Block, EncoderConfig
from tokengt.graph import Graph
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.heads import HeadConfig
from tokengt.models.tokengt.identifiers import IdentifierKind, identifiers_of_kind
from tokengt.models.tokengt.model import TokenGT
from tokengt.models.tokengt.tokens import Tokenizer, TokensConfig
from tokengt.theory.construction.layout import Layout
from tokengt.theory.construction.lemma import pour_basis

# Sums in float64 that run in another order differ by less than this share of their size: closer outputs count as equal.
TOLERANCE = 1e-9
# How many random splits a test makes; its smallest possible p-value is then one in a thousand.
PERMUTATIONS = 999
# Added to the diagonal of the covariance matrix, which has no inverse where channels depend on each other.
_RIDGE = 1e-2


@dataclass(frozen=True)
class SeparationConfig:
    """A random TokenGT to tell graphs apart with.

    Args:
        kind: its node identifiers.
        id_dim: d_p; the rows of "orf" and "laplacian" are orthonormal when it is n or more.
        attention: "basis", queries and keys of Lemma 1, so that with orthonormal identifiers heads see exactly which
            tokens share nodes; or "random" ones.
        width: channels of X that the layers compute on; identifiers travel beside them.
        num_layers: T.
        id_features: channels of X that begin as random functions of the identifiers. One tells most: others are noise
            to it.
        sharpness: a of Lemma 1.
        sparse_basis_residual: SEB: nodes add the tokens of their edges.
    """

    kind: IdentifierKind = "orf"
    id_dim: int = 16
    attention: Literal["basis", "random"] = "basis"
    width: int = 8
    num_layers: int = 3
    id_features: int = 1
    sharpness: float = 200.0
    sparse_basis_residual: bool = False

    def __post_init__(self) -> None:
        if self.attention not in ("basis", "random"):
            raise ValueError(f"attention is {self.attention!r}; expected 'basis' or 'random'")
        if not 0 <= self.id_features <= self.width:
            raise ValueError(f"id_features is {self.id_features}; expected 0 to width {self.width}")


@dataclass(frozen=True)
class Separation:
    """What a test found.

    Args:
        statistic: the difference of the readout's means on new draws, in standard errors.
        p_value: how often a random split of those draws gives as large a difference.
        separated: whether ``p_value`` is at most the level.
    """

    statistic: float
    p_value: float
    separated: bool


def separation(
    model: TokenGT,
    first: Graph,
    second: Graph,
    *,
    draws: int = 256,
    seed: int = 0,
    level: float = 0.01,
    relabel: bool = True,
) -> Separation:
    """Whether a graph-level model in evaluation mode tells two graphs apart.

    The null is ``separation(model, graph, relabelled graph)``.

    Args:
        model: any TokenGT with a graph head; its outputs are what the readout is fitted on.
        first: one graph.
        second: the other.
        draws: samples of each graph for the fit, and as many for the test.
        seed: of draws, relabellings and permutations.
        level: the probability of separating what is the same.
        relabel: renumber nodes at random in every sample. Without, a model may tell numberings apart, not graphs.
    """
    generator = torch.Generator().manual_seed(seed)
    samples = [sample_outputs(model, graph, 2 * draws, generator, relabel=relabel) for graph in (first, second)]
    return compare_samples(samples[0], samples[1], generator, level=level)


@torch.no_grad()
def sample_outputs(
    model: TokenGT, graph: Graph, count: int, generator: torch.Generator, *, relabel: bool = True
) -> Float[Tensor, "count out"]:
    """Outputs of ``count`` renumbered copies of a graph, each with identifiers of its own, on the CPU in float64."""
    device = next(model.parameters()).device
    # A CPU is fastest with few copies, which stay in its cache; a GPU needs many to be busy.
    chunk = 512 if device.type == "cuda" else 8
    one = GraphBatch.collate([graph])
    outputs = []
    for start in range(0, count, chunk):
        copies = one.select([0] * min(chunk, count - start))
        batch = renumber_each(copies, generator) if relabel else copies
        outputs.append(model(batch.to(device), generator=generator).double().cpu())
    return torch.cat(outputs)


def renumber_each(batch: GraphBatch, generator: torch.Generator) -> GraphBatch:
    """Every graph of a batch (on the CPU) under a uniformly random renumbering of its nodes."""
    order = torch.rand(batch.num_nodes, generator=generator, dtype=torch.float64) + batch.nodes.ids
    number = torch.empty_like(batch.nodes.ids)
    old = torch.argsort(order)
    number[old] = torch.arange(batch.num_nodes)
    return replace(
        batch,
        node_features=None if batch.node_features is None else batch.node_features[old],
        edge_numbers=batch.edge_numbers.renumbered(number[batch.edge_index]),
        member_numbers=batch.member_numbers.renumbered(number[batch.hyperedge_nodes]),
    )


def compare_samples(
    first: Float[Tensor, "count out"],
    second: Float[Tensor, "other out"],
    generator: torch.Generator,
    *,
    level: float = 0.01,
    permutations: int = PERMUTATIONS,
) -> Separation:
    """A two-sample test: Fisher's discriminant of the first halves, a permutation test of its means on the others.

    Exact: under equal laws P(p_value <= level) <= level, as far as ``permutations`` resolve it.

    Raises:
        ValueError: too few samples, a level that no p-value can reach, or outputs that are not finite.
    """
    check_test(min(len(first), len(second)), level, permutations)
    if not bool(torch.isfinite(first).all() & torch.isfinite(second).all()):
        raise ValueError("an output of the model is not finite; there is nothing to compare")
    (fit_a, new_a), (fit_b, new_b) = first.tensor_split(2), second.tensor_split(2)
    pooled = torch.cat([fit_a, fit_b])
    centre, spread = pooled.mean(0), pooled.std(0)
    constant = spread <= TOLERANCE * pooled.abs().amax(0).clamp_min(1e-300)
    # A channel that varies by rounding only is left out: scaled to unit deviation it would look like a difference.
    scale = torch.where(constant, 0.0, 1 / torch.where(constant, 1.0, spread))
    fit_a, fit_b, new_a, new_b = ((part - centre) * scale for part in (fit_a, fit_b, new_a, new_b))
    within = (fit_a.T.cov() + fit_b.T.cov()).view(len(scale), -1) / 2
    difference = fit_a.mean(0) - fit_b.mean(0)
    readout = torch.linalg.solve(within + _RIDGE * torch.eye(len(scale), dtype=within.dtype), difference)
    scores_a, scores_b = new_a @ readout, new_b @ readout
    statistic, p_value = mean_permutation_test(scores_a, scores_b, generator, permutations)
    return Separation(statistic, p_value, p_value <= level)


def check_test(samples: int, level: float, permutations: int = PERMUTATIONS) -> None:
    """Refuse a test that cannot be done, or whose answer would not depend on the samples."""
    if samples < 4:
        raise ValueError(f"{samples} samples of a graph; expected at least 4: two to fit and two to test (draws=2)")
    if not 1 / (1 + permutations) <= level < 1:
        raise ValueError(f"level is {level}; expected 1/{1 + permutations} or more, the smallest p-value, and below 1")


def mean_permutation_test(
    first: Float[Tensor, " count"], second: Float[Tensor, " other"], generator: torch.Generator, permutations: int
) -> tuple[float, float]:
    """How much larger the first mean is, in standard errors, and the share of random splits with as large a difference.

    One-sided, the observed split among the ``permutations`` + 1. Ties count against a difference.
    """
    scores = torch.cat([first, second])
    orders = torch.rand(permutations, len(scores), generator=generator).argsort(1)[:, : len(first)]
    # The total is the same for every split, so a larger mean of the first part is a larger difference of the means.
    means = scores[orders].mean(1)
    slack = 1e-12 * float(scores.abs().max())
    at_least = int((means >= first.mean() - slack).sum())
    error = math.sqrt(float(first.var() / len(first) + second.var() / len(second)))
    difference = float(first.mean() - second.mean())
    return 0.0 if difference == 0 else difference / max(error, 1e-300), (1 + at_least) / (1 + permutations)


def random_model(config: SeparationConfig, seed: int) -> TokenGT:
    """A production TokenGT in float64 with random weights; tokens are laid out as in the proofs, without LayerNorm.

    With "basis" attention, queries and keys are Lemma 1's in every layer. Identifiers pass unchanged through all
    layers and a random feature of them is part of X: a random order-2 network on a graph with a random node feature.
    """
    layout = Layout(2, config.width, config.id_dim, "one_hot")
    model = TokenGT(
        TokenGTConfig(
            dim=layout.dim,
            tokens=TokensConfig(graph_token=False),
            identifiers=identifiers_of_kind(config.kind, config.id_dim),
            encoder=EncoderConfig(
                num_layers=config.num_layers,
                num_heads=layout.num_heads,
                head_dim=layout.head_dim,
                value_dim=config.width,
                mlp_dim=4 * config.width,
                norm=False,
                final_norm=False,
                sparse_basis_residual=config.sparse_basis_residual,
            ),
            head=HeadConfig(readout="sum", out_dim=(1 + layout.num_classes) * config.width),
        )
    ).double()
    normal = _Normal(torch.Generator().manual_seed(seed))
    # The free channels are X and those that heads write to; identifiers and types lie between and stay as they are.
    free = torch.cat([torch.arange(config.width), torch.arange(layout.input_dim, layout.dim)])
    with torch.no_grad():
        _pour_tokens(model.tokenizer, layout, free, normal, config.id_features)
        for block in model.encoder.blocks:
            assert isinstance(block, Block)
            _pour_heads(block.attention, layout, free, normal, config)
            _pour_linear(block.mlp.up, slice(None), free, normal, 4.0)
            _pour_linear(block.mlp.down, free, slice(None), normal, 1.0)
        assert isinstance(model.head.project, nn.Linear)
        _pour_linear(model.head.project, slice(None), free, normal, 1.0)
    return model.eval()


@dataclass(frozen=True)
class _Normal:
    generator: torch.Generator

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)


def _pour_tokens(tokenizer: Tokenizer, layout: Layout, free: Tensor, normal: _Normal, id_features: int) -> None:
    """[X, P_u, P_v, E] with X a random map of type and identifiers; first-order identifiers stand in both places."""
    assert tokenizer.type_embedding is not None
    types = tokenizer.type_embedding.weight
    types.zero_()
    types[:, layout.type_id] = layout.identifiers
    types[:, free] = normal(len(types), len(free))
    if tokenizer.id_proj is None:
        return
    ids, eye = tokenizer.id_proj.weight, torch.eye(layout.id_dim, dtype=torch.float64)
    ids.zero_()
    ids[layout.node_id(0), : layout.id_dim] = eye
    ids[layout.node_id(1), -layout.id_dim :] = eye
    ids[free[:id_features]] = normal(id_features, ids.shape[1])


def _pour_heads(
    attention: MultiheadAttention, layout: Layout, free: Tensor, normal: _Normal, config: SeparationConfig
) -> None:
    """Queries and keys of Lemma 1, or random ones; values and w^O random between the free channels."""
    pour_basis(attention, layout, config.sharpness)
    weight, bias = attention.qkv_proj.weight, attention.qkv_proj.bias
    values = 2 * layout.num_heads * layout.head_dim
    if config.attention == "random":
        weight[:values] = normal(values, layout.dim) * math.sqrt(2 / layout.dim)
        bias[:values] = normal(values)
    weight[values:] = 0.0
    weight[values:, free] = normal(len(weight) - values, len(free)) / math.sqrt(len(free))
    into = attention.out_proj.in_features
    attention.out_proj.weight[free] = normal(len(free), into) * (2 / math.sqrt(into))


def _pour_linear(
    linear: nn.Linear, rows: Tensor | slice, columns: Tensor | slice, normal: _Normal, gain: float
) -> None:
    """Gaussian weights between chosen channels, zero elsewhere."""
    inputs = torch.arange(linear.in_features)[columns]
    outputs = torch.arange(linear.out_features)[rows]
    linear.weight.zero_()
    linear.weight[outputs[:, None], inputs] = normal(len(outputs), len(inputs)) * (gain / math.sqrt(len(inputs)))
    linear.bias.zero_()
