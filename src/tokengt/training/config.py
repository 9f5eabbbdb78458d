"""How a model is trained: one frozen config, each field can be set by ``--set training.FIELD=VALUE``."""

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from tokengt.config import near
from tokengt.data.batching import BatchingConfig
from tokengt.training.links import LinkTraining
from tokengt.training.scaling import LogTargets
from tokengt.training.tasks import HITS, METRIC_ALIASES, METRICS, USUAL_HITS, hits_at

Schedule = Literal["cosine", "linear", "steps", "constant"]
Recompute = Literal["auto", "always", "never"]
Precision = Literal["auto", "float32", "bfloat16", "float64"]
ForestWish = Literal["auto", "always", "never"]
Loss = Literal["mse", "mae", "huber", "quantile", "gaussian", "cross_entropy"]
# Whole numbers above this are slips of the pen; far larger ones could not be counted with.
_LARGEST = 2**31


@dataclass(frozen=True)
class TrainingConfig:
    """The recipe of a training run.

    Args:
        epochs: passes over the training part; 0 chooses by its size: 60 for a small one, down to 20 for a large one,
            half of that when training begins with trained weights, and for a tiny part as many as make 300 steps.
        batch_size: graphs per optimizer step, over all processes and accumulated parts.
        batch_tokens: when above 0, a step takes graphs until this many tokens instead.
        accumulate: parts that each process cuts its share of a step into, to save memory.
        learning_rate: the peak of the schedule.
        weight_decay: of AdamW, on all parameters as in the authors' code.
        beta2: decay of the second moment in AdamW.
        warmup: share of the training over which the rate rises linearly from 0.
        schedule: how it falls afterwards: to 0 along a cosine or a line, to a quarter whenever 30% more is done (steps,
            as message passing is trained for 100 epochs in the paper's Table 2), or not at all.
        layer_decay: what the rate is multiplied by from the head to the last block, and from each block to the one
            below it; 1 for the same rate everywhere. Weights that are trained already change less the deeper they lie.
        unfreeze: the share of the training after which all weights learn. Until then they begin one after another, from
            the head, which learns at once, down to the features; 0 for all at once.
        clip: largest norm of the gradient; 0 for no clipping.
        ema: decay of the exponential moving average of the weights that is validated and kept; 0 for none.
        metric: the validation metric that chooses the best epoch and is reported first, such as mae or spearman for
            numbers, average_precision (or prc), mrr or hits@K for yes or no; None for the usual one of the task.
        loss: what training makes small: mse, mae, huber, quantile or gaussian (a mean and a variance of each target)
            for numbers, cross_entropy for classes; None for the first.
        quantile: with the loss "quantile": which share of the labels is to lie below the prediction.
        log_targets: whether the logarithm of numbers is learned, which makes relative errors small instead of absolute
            ones: "auto" for targets that are positive and very skewed, such as half-lives, "always" or "never".
            Predictions have the target's own unit.
        forest: whether a random forest is grown on the features of whole graphs, such as RDKit's descriptors, and
            averaged with the model, about half and half, as the validation part says: "auto" for models whose head
            reads descriptors and fingerprints of molecules, "always" or "never".
        target_weights: how much each target counts in the loss, in their order; none for all alike.
        balance: let all classes of a target count alike, however many rows each has.
        auxiliary_weight: how much the squared error of auxiliary numbers counts, where a training has such.
        patience: epochs without a better validation metric after which training stops; 0 for never.
        minutes: when above 0, no epoch is begun that would end after so many minutes of training, as long as those
            before it took; the first always is. The schedule falls over the epochs that fit. Such a run does not
            repeat bit for bit: it depends on how fast the machine is.
        precision: "auto" is bfloat16 (mixed) on a GPU and float32 on a CPU.
        compile: put the Transformer's blocks through ``torch.compile``: a wait at the start, for what our own kernels
            do not cover.
        cuda_graphs: on a GPU, record the kernels of whole training steps and replay them, where the model allows it.
            Batches are filled up to one of few sizes for this. False launches each kernel of the same steps from the
            host, slower: the results have the same bits.
        recompute: whether activations are computed again for the gradient instead of kept, which takes less memory and
            a third more work: "always", "never", or "auto": where keeping them would take more than half of the memory
            that is free. Gradients are the same. Some models cannot.
        memory: when above 0, GiB of memory that a step may take, in place of what is free on the device: it decides
            about ``recompute``, and a model that would need more is refused before it starts.
        checkpoint_seconds: time between two checkpoints, which are written beside training, and at its end. A resumed
            run repeats the unbroken one from any of them: more of them save time after a kill and nothing else.
        links: how links are learned: in how many folds, with how many negatives.
    """

    epochs: int = 0
    batch_size: int = 32
    batch_tokens: int = 0
    accumulate: int = 1
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    beta2: float = 0.999
    warmup: float = 0.1
    schedule: Schedule = "cosine"
    layer_decay: float = field(default=1.0, metadata={"late": True})
    unfreeze: float = field(default=0.0, metadata={"late": True})
    clip: float = 1.0
    ema: float = 0.0
    metric: str | None = field(default=None, metadata={"late": True})
    loss: Loss | None = field(default=None, metadata={"late": True})
    quantile: float = field(default=0.5, metadata={"late": True})
    log_targets: LogTargets = field(default="auto", metadata={"late": True})
    forest: ForestWish = field(default="auto", metadata={"late": True})
    target_weights: tuple[float, ...] = field(default=(), metadata={"late": True})
    balance: bool = field(default=False, metadata={"late": True})
    auxiliary_weight: float = field(default=0.3, metadata={"late": True})
    patience: int = 0
    minutes: float = field(default=0.0, metadata={"late": True})
    precision: Precision = "auto"
    compile: bool = False
    cuda_graphs: bool = True
    checkpoint_seconds: float = 60.0
    recompute: Recompute = field(default="auto", metadata={"late": True})
    memory: float = field(default=0.0, metadata={"late": True})
    links: LinkTraining = field(default=LinkTraining(), metadata={"late": True})

    def __post_init__(self) -> None:
        for name, low, high in (
            ("epochs", 0, None),
            ("learning_rate", 0, None),
            ("weight_decay", 0, None),
            ("beta2", 0, 1),
            ("warmup", 0, 1),
            ("clip", 0, None),
            ("ema", 0, 1),
            ("unfreeze", 0, 1),
            ("auxiliary_weight", 0, None),
            ("patience", 0, None),
            ("minutes", 0, None),
            ("memory", 0, None),
        ):
            value = getattr(self, name)
            if not value >= low or (high is not None and value >= high):
                below = "" if high is None else f" and below {high}"
                raise ValueError(f"training.{name} is {value}; expected {low} or more{below}")
        if not 0 < self.quantile < 1:
            raise ValueError(f"training.quantile is {self.quantile}; expected above 0 and below 1")
        if any(not 0 <= weight < _LARGEST for weight in self.target_weights) or not sum(self.target_weights or (1,)):
            raise ValueError(f"training.target_weights are {self.target_weights}; expected 0 or more, and one above 0")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"training.layer_decay is {self.layer_decay}; expected above 0 and at most 1")
        for name in ("epochs", "batch_size", "batch_tokens", "patience"):
            if getattr(self, name) > _LARGEST:
                raise ValueError(f"training.{name} is {getattr(self, name)}; expected at most {_LARGEST:,}")
        for name, allowed in (
            ("schedule", get_args(Schedule)),
            ("precision", get_args(Precision)),
            ("recompute", get_args(Recompute)),
            ("loss", (None, *get_args(Loss))),
            ("log_targets", get_args(LogTargets)),
            ("forest", get_args(ForestWish)),
        ):
            if getattr(self, name) not in allowed:
                words = ", ".join(map(str, allowed))
                raise ValueError(f"training.{name} is {getattr(self, name)!r}; expected one of {words}")
        if self.metric is not None:
            object.__setattr__(self, "metric", _metric_name(self.metric))
        _ = self.batching  # Building it checks batch_size, batch_tokens and accumulate.

    def for_graphs(self, count: int, *, begun: bool = False) -> "TrainingConfig":
        """The same with the epochs that suit so many training graphs, unless they are given.

        ``begun``: all weights but the head's are trained already, and learn on.
        """
        if self.epochs:
            return self
        steps = -(-count // self.batch_size)
        # About 120,000 graphs are seen in all: few graphs need many passes, and many graphs need few.
        passes = min(60, max(20, 120_000 // count)) // (2 if begun else 1)
        return replace(self, epochs=max(passes, 300 // steps))

    @property
    def batching(self) -> BatchingConfig:
        return BatchingConfig(self.batch_size, self.batch_tokens, self.accumulate)


def _metric_name(written: str) -> str:
    """A metric of some kind of task, by the name that we have for it; which kind it must be is not known yet."""
    name = written.strip().lower().replace("-", "_")
    name = METRIC_ALIASES.get(name, name)
    known = {metric: None for metrics in METRICS.values() for metric in metrics}
    if name not in known and hits_at(name) is None:
        meant = near(name, (*known, *METRIC_ALIASES))
        listed = f"{', '.join(known)} or {HITS}K such as {HITS}{USUAL_HITS[0]}"
        raise ValueError(f"training.metric is {written!r}{meant}; expected one of {listed}")
    return name
