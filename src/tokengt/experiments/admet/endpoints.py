"""The 22 endpoints of TDC's ADMET group: what each measures, by which metric, and what others have published.

An endpoint is one table of molecules with one label each, such as whether a compound blocks the hERG channel. Metrics
are the official ones of the group (Huang et al. 2021). The published numbers are those that the authors of MiniMol
report for it (June 2024), and the best of the group's leaderboard at that time; nobody ran them here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokengt.config import near
from tokengt.data.manifest import TaskKind
from tokengt.training.metrics import Array, average_precision, mae, roc_auc, spearman
from tokengt.training.tasks import METRICS

Metric = Literal["mae", "spearman", "roc_auc", "average_precision"]
_MEASURES = {"mae": mae, "spearman": spearman, "roc_auc": roc_auc, "average_precision": average_precision}
SHORT: dict[str, str] = {"mae": "MAE", "spearman": "Spearman", "roc_auc": "AUROC", "average_precision": "AUPRC"}
PUBLISHED = "MiniMol (published)"


@dataclass(frozen=True)
class Endpoint:
    """One table of the group.

    Args:
        name: of its file.
        metric: the official one.
        minimol: what MiniMol's authors report on the same test part.
        board: the best number of the leaderboard at that time.
        skewed: whether its labels are so skewed that tokengt learns their logarithms by itself
            (:mod:`tokengt.training.scaling`). Trees learn them too: whoever fits them would think of it.
    """

    name: str
    metric: Metric
    minimol: float
    board: float
    skewed: bool = False

    @property
    def task(self) -> TaskKind:
        return "regression" if self.metric in METRICS["regression"] else "binary"

    @property
    def higher_is_better(self) -> bool:
        return METRICS[self.task][self.metric]

    def measure(self, predicted: Array, labels: Array) -> float:
        """The metric; NaN where it is not defined."""
        value = _MEASURES[self.metric](predicted, labels)
        return float("nan") if value is None else value


ENDPOINTS: dict[str, Endpoint] = {
    each.name: each
    for each in (
        Endpoint("caco2_wang", "mae", 0.350, 0.276),
        Endpoint("bioavailability_ma", "roc_auc", 0.689, 0.748),
        Endpoint("lipophilicity_astrazeneca", "mae", 0.456, 0.467),
        Endpoint("solubility_aqsoldb", "mae", 0.741, 0.761),
        Endpoint("hia_hou", "roc_auc", 0.993, 0.989),
        Endpoint("pgp_broccatelli", "roc_auc", 0.942, 0.938),
        Endpoint("bbb_martins", "roc_auc", 0.924, 0.916),
        Endpoint("ppbr_az", "mae", 7.70, 7.53),
        Endpoint("vdss_lombardo", "spearman", 0.535, 0.713, skewed=True),
        Endpoint("cyp2c9_veith", "average_precision", 0.823, 0.859),
        Endpoint("cyp2d6_veith", "average_precision", 0.719, 0.790),
        Endpoint("cyp3a4_veith", "average_precision", 0.877, 0.916),
        Endpoint("cyp2c9_substrate_carbonmangels", "average_precision", 0.474, 0.441),
        Endpoint("cyp2d6_substrate_carbonmangels", "average_precision", 0.695, 0.736),
        Endpoint("cyp3a4_substrate_carbonmangels", "roc_auc", 0.663, 0.662),
        Endpoint("half_life_obach", "spearman", 0.495, 0.562, skewed=True),
        Endpoint("clearance_hepatocyte_az", "spearman", 0.446, 0.498),
        Endpoint("clearance_microsome_az", "spearman", 0.628, 0.630),
        Endpoint("ld50_zhu", "mae", 0.585, 0.552),
        Endpoint("herg", "roc_auc", 0.846, 0.880),
        Endpoint("ames", "roc_auc", 0.849, 0.871),
        Endpoint("dili", "roc_auc", 0.956, 0.925),
    )
}


def endpoints_named(names: Sequence[str]) -> list[Endpoint]:
    """Endpoints by the names of their files, or by the beginning of a name that no other has.

    Raises:
        ValueError: there is no such endpoint, or several begin like that.
    """
    return list(dict.fromkeys(_named(name) for name in names))


def _named(name: str) -> Endpoint:
    if name in ENDPOINTS:
        return ENDPOINTS[name]
    fitting = [known for known in ENDPOINTS if name and known.startswith(name.lower())]
    if len(fitting) == 1:
        return ENDPOINTS[fitting[0]]
    if fitting:
        raise ValueError(f"endpoint {name!r} may be {' or '.join(fitting)}; expected the name of one")
    raise ValueError(f"endpoint {name!r} is unknown{near(name, ENDPOINTS)}; expected some of {', '.join(ENDPOINTS)}")
