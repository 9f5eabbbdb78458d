"""What to time, and the model that this means."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from tokengt.attention import AttentionConfig, FavorConfig, SoftmaxConfig
from tokengt.attention.plan import SoftmaxBackend
from tokengt.bench.shapes import Shape
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.heads import HeadConfig
from tokengt.models.tokengt.identifiers import IdentifierConfig, NearOrthonormalIds, OrfIds
from tokengt.models.tokengt.tokens import TokensConfig
from tokengt.presets import Ids, regression, small
from tokengt.training.config import Precision, TrainingConfig
from tokengt.training.processes import Device, DeviceConfig

Layout = Literal["directed", "undirected"]
Phase = Literal["train", "infer"]
Preset = Literal["auto", "small", "regression"]
Attention = Literal["auto", "softmax", "favor"]

_BATCH = {  # Graphs per step: enough to fill a GPU, and as many as two CPU cores train on in about a second.
    "pcqm4mv2": {"cuda": 1024, "cpu": 256},
    "zinc": {"cuda": 1024, "cpu": 128},
    "peptides": {"cuda": 128, "cpu": 16},
    "physics": {"cuda": 1, "cpu": 1},
}
_WARMUP_RECORDED = 30
_LOW_RATE = 1e-5


@dataclass(frozen=True)
class BenchConfig:
    """One measurement: both systems, training, inference or both.

    Args:
        shape: the data set whose sizes the graphs have.
        device: "auto" takes a GPU when there is one.
        layout: two tokens per bond ("directed", as the paper) or one.
        ids: node identifiers; "orf" is near-orthonormal (random signs) on "physics", as in the paper.
        batch: graphs per step; 0 for what suits shape and device.
        steps: of training in one round, or so many batches of inference; 0 for 20 on a GPU and 5 on a CPU.
        rounds: of every system, in turns; the median counts.
        warmup: steps of each system before the clock runs, of batches with other lengths each.
        preset: "auto" is "regression" (the paper's 12 x 768) on a GPU and "small" (4 x 96) on a CPU.
        layers: instead of the preset's.
        dim: instead of the preset's; the MLP keeps its proportion.
        heads: instead of the preset's.
        dropout: of attention and MLP instead of the preset's.
        backend: of softmax attention.
        precision: as in training; "auto" is bfloat16 (mixed) on a GPU and float32 on a CPU.
        compile: both systems through ``torch.compile``.
        cuda_graphs: on a GPU: our training step is recorded and replayed, as in ``tokengt train``.
        phases: "train", "infer" or both.
        seed: of graphs, weights and draws.
        scale: "physics" only: share of its nodes and edges.
        attention: "auto" is softmax, and FAVOR+ on "physics", whose 530,000 tokens are too many for softmax but on a
            GPU with much patience.
        recipe: that of a training run, to time its very steps; None for one with this config's batch and precision.
    """

    shape: Shape = "pcqm4mv2"
    device: Device = "auto"
    layout: Layout = "directed"
    ids: Ids = "laplacian"
    batch: int = 0
    steps: int = 0
    rounds: int = 5
    warmup: int = 3
    preset: Preset = "auto"
    layers: int | None = None
    dim: int | None = None
    heads: int | None = None
    dropout: float | None = None
    backend: SoftmaxBackend = "auto"
    precision: Precision = "auto"
    compile: bool = False
    cuda_graphs: bool = True
    phases: tuple[Phase, ...] = ("infer", "train")
    seed: int = 0
    scale: float = 1.0
    attention: Attention = "auto"
    recipe: TrainingConfig | None = None

    def __post_init__(self) -> None:
        _ = self.where  # Building it checks the device.
        choices = {
            "shape": get_args(Shape),
            "layout": get_args(Layout),
            "ids": get_args(Ids),
            "preset": get_args(Preset),
            "precision": get_args(Precision),
            "attention": get_args(Attention),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}")
        for name, least in (("batch", 0), ("steps", 0), ("rounds", 1), ("warmup", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if not self.phases or not set(self.phases) <= set(get_args(Phase)):
            raise ValueError(f"phases are {self.phases}; expected 'train', 'infer' or both")
        if self.shape == "physics" and self.batch > 1:
            raise ValueError(f"batch is {self.batch} with shape 'physics', which is one graph; expected 1")

    @property
    def where(self) -> DeviceConfig:
        return DeviceConfig(self.device)

    @property
    def graphs_a_step(self) -> int:
        return self.batch or _BATCH[self.shape][self.where.resolved]

    @property
    def steps_a_round(self) -> int:
        """How many steps a round has: an idle GPU loses about one step at the start of a round, so a round is long."""
        return self.steps or (20 if self.where.resolved == "cuda" else 5)

    @property
    def mixed(self) -> bool:
        """Whether matrix products run in bfloat16."""
        return self.precision == "bfloat16" or (self.precision == "auto" and self.where.resolved == "cuda")

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.mixed else "float32" if self.precision == "auto" else self.precision

    @property
    def training(self) -> TrainingConfig:
        """A rate so low that the weights stay where the comparison left them."""
        if self.recipe is not None:
            return replace(self.recipe, learning_rate=_LOW_RATE)
        return TrainingConfig(
            epochs=1,
            batch_size=self.graphs_a_step,
            learning_rate=_LOW_RATE,
            precision=self.precision,
            compile=self.compile,
            cuda_graphs=self.cuda_graphs,
        )

    @property
    def warmup_steps(self) -> int:
        """Before the clock of training runs: enough that most sizes of batches have come twice and are recorded."""
        records = self.cuda_graphs and self.where.resolved == "cuda" and self.shape != "physics"
        return max(self.warmup, _WARMUP_RECORDED) if records else self.warmup


def model_config(config: BenchConfig, tokens: TokensConfig, classes: int) -> TokenGTConfig:
    """The model: a preset with what the measurement changes; one graph of many classes takes a node head."""
    large = config.shape == "physics"
    chosen = config.preset if config.preset != "auto" else "regression" if config.where.resolved == "cuda" else "small"
    base = small() if chosen == "small" or (large and config.preset == "auto") else regression()
    encoder = base.encoder
    preset = {"dim": base.dim, "layers": encoder.num_layers, "heads": encoder.num_heads}
    sizes = {name: size if getattr(config, name) is None else getattr(config, name) for name, size in preset.items()}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; expected at least 1")
    dim = sizes["dim"]
    mlp_dropout = encoder.mlp_dropout if config.dropout is None else config.dropout
    assert encoder.mlp_dim is not None
    encoder = replace(
        encoder,
        num_layers=sizes["layers"],
        num_heads=sizes["heads"],
        mlp_dim=max(1, encoder.mlp_dim * dim // base.dim),
        attention=_attention(config, encoder.attention),
        mlp_dropout=mlp_dropout,
    )
    encoder.head_widths(dim)  # Raises at once when the heads do not divide the width.
    return TokenGTConfig(
        dim=dim,
        tokens=replace(tokens, layout=config.layout),
        identifiers=_identifiers(config, base.identifiers),
        encoder=encoder,
        head=HeadConfig("node", classes) if large else HeadConfig(),
    )


def _identifiers(config: BenchConfig, laplacian: IdentifierConfig) -> IdentifierConfig:
    """The paper's widths: Lap 16, ORF 64."""
    if config.ids == "laplacian":
        return laplacian
    return NearOrthonormalIds(64) if config.shape == "physics" else OrfIds(64)


def _attention(config: BenchConfig, preset: AttentionConfig) -> AttentionConfig:
    """Softmax with the preset's dropout unless another is asked for, or FAVOR+, which has none."""
    if config.attention == "favor" or (config.attention == "auto" and config.shape == "physics"):
        if config.backend == "varlen":
            raise ValueError("backend 'varlen' is one of softmax attention; FAVOR+ has none of that name")
        return FavorConfig(backend=config.backend)
    assert isinstance(preset, SoftmaxConfig)
    return SoftmaxConfig(dropout=preset.dropout if config.dropout is None else config.dropout, backend=config.backend)
