"""Learn how well molecules dissolve in water: a small TokenGT on the bundled ESOL data, about two minutes on two cores.

python examples/solubility.py --out runs/solubility
"""

import argparse
import copy
import math
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
from torch import Tensor, nn
from tqdm import tqdm

import tokengt
from tokengt import GraphBatch, TokenGT
from tokengt.data.datasets import esol
from tokengt.presets import small

matplotlib.use("Agg")
from matplotlib import pyplot as plt

BATCH_SIZE = 32
PEAK_RATE = 1e-3
WARMUP = 0.1


class Split(NamedTuple):
    """Places of the molecules to learn from, to choose the epoch by, and to report."""

    train: Tensor
    valid: Tensor
    test: Tensor


class History(NamedTuple):
    """Errors of every epoch, in log units."""

    train: list[float]
    valid: list[float]
    best_epoch: int


def random_split(count: int, seed: int) -> Split:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return Split(*order.split([count - 2 * (count // 10), count // 10, count // 10]))


def rate_at(progress: float) -> float:
    """Linear warm-up, then a cosine down to zero."""
    if progress < WARMUP:
        return progress / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (progress - WARMUP) / (1 - WARMUP)))


def rmse(prediction: Tensor, truth: Tensor) -> float:
    return float((prediction - truth).square().mean().sqrt())


def mae(prediction: Tensor, truth: Tensor) -> float:
    return float((prediction - truth).abs().mean())


def train(model: TokenGT, graphs: GraphBatch, target: Tensor, split: Split, epochs: int) -> History:
    """Minimise the squared error of the scaled target; leaves the model at its best epoch on the validation part."""
    mean, scale = target[split.train].mean(), target[split.train].std()
    steps = epochs * math.ceil(len(split.train) / BATCH_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at((step + 1) / steps))
    valid_graphs = graphs.select(split.valid)
    best, best_state = math.inf, model.state_dict()
    history = History([], [], 0)
    progress = tqdm(range(1, epochs + 1), desc="training", unit="epoch")
    for epoch in progress:
        model.train()
        squares = 0.0
        for chosen in split.train[torch.randperm(len(split.train))].split(BATCH_SIZE):
            loss = nn.functional.mse_loss(model(graphs.select(chosen)), (target[chosen] - mean) / scale)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            squares += float(loss.detach()) * len(chosen)
        history.train.append(float(scale) * math.sqrt(squares / len(split.train)))
        history.valid.append(rmse(model.predict(valid_graphs).mean * scale + mean, target[split.valid]))
        if history.valid[-1] < best:
            best, best_state, history = (
                history.valid[-1],
                copy.deepcopy(model.state_dict()),
                history._replace(best_epoch=epoch),
            )
        progress.set_postfix(train=f"{history.train[-1]:.2f}", valid=f"{history.valid[-1]:.2f}", best=f"{best:.2f}")
    model.load_state_dict(best_state)
    with torch.no_grad():
        # The head learns the scaled target; folded into its weights, the saved model predicts log units.
        model.head.project.weight.mul_(scale)
        model.head.project.bias.mul_(scale).add_(mean)
    return history


def plot(truth: Tensor, prediction: Tensor, history: History, file: Path) -> None:
    """Predicted against measured solubility, and the errors of every epoch."""
    figure, (parity, curves) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    low, high = float(truth.min()) - 0.5, float(truth.max()) + 0.5
    parity.plot([low, high], [low, high], color="0.6", linewidth=1)
    parity.scatter(truth, prediction, s=14, alpha=0.7, edgecolors="none")
    parity.set(
        xlim=(low, high),
        aspect="equal",
        xlabel="measured log solubility (mol/l)",
        ylabel="predicted log solubility (mol/l)",
    )
    parity.set_title(f"{len(truth)} test molecules, RMSE {rmse(prediction, truth):.2f}")
    epochs = range(1, len(history.train) + 1)
    curves.plot(epochs, history.train, label="training (with dropout)")
    curves.plot(epochs, history.valid, label="validation")
    curves.axvline(history.best_epoch, color="0.6", linewidth=1, linestyle="--", label="weights kept")
    curves.set(xlabel="epoch", ylabel="RMSE (log units)", ylim=(0, None), title="training")
    curves.legend(frameon=False)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the training")
    parser.add_argument("--out", type=Path, default=Path("runs/solubility"))
    args = parser.parse_args()

    smiles, target = esol()
    graphs = GraphBatch.collate([tokengt.from_smiles(text) for text in smiles])
    split = random_split(len(smiles), args.seed)
    torch.manual_seed(args.seed)
    model = TokenGT(small())
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{graphs.num_graphs:,} molecules, {graphs.num_nodes:,} atoms; a TokenGT of {parameters:,} parameters")
    history = train(model, graphs, target, split, args.epochs)

    truth, prediction = target[split.test], model.predict(graphs.select(split.test)).mean
    constant = target[split.train].mean().expand_as(truth)
    print(f"\nerror on {len(truth)} test molecules, log units (RMSE, MAE)")
    print(
        f"  TokenGT, weights of epoch {history.best_epoch}: {rmse(prediction, truth):.3f}, {mae(prediction, truth):.3f}"
    )
    print(f"  the training set's mean: {rmse(constant, truth):.3f}, {mae(constant, truth):.3f}\n")
    args.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.out / "model")
    plot(truth, prediction, history, args.out / "parity.png")
    print(f"open {args.out / 'parity.png'}: predicted against measured, and the training curve")
    print(f"load the model: tokengt.TokenGT.from_pretrained({str(args.out / 'model')!r})")


if __name__ == "__main__":
    main()
