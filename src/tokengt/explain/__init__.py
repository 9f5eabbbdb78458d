"""What a model looks at: arrays first, pictures from them.

``attention_maps``, ``attention_distance``, ``equivariance_profile`` and ``attribution`` each take a model and a graph
and return arrays; ``plot_*`` draw them, and notebooks show them as they are. :func:`explain_graph` gathers all of it.
"""

from tokengt.explain.attributions import Attribution, attribution, mean_attribution, occlusions, subject_of
from tokengt.explain.distance import Distances, attention_distance, graph_distances
from tokengt.explain.explanation import AttentionSummary, Explanation, Molecule, explain_graph
from tokengt.explain.maps import AttentionMaps, attention_maps
from tokengt.explain.patterns import Column
from tokengt.explain.pictures import (
    plot_attention_distance,
    plot_attention_maps,
    plot_attribution,
    plot_equivariance_profile,
)
from tokengt.explain.profile import EquivarianceProfile, equivariance_profile, graph_profiles, mean_profile
from tokengt.explain.tokens import Tokens

__all__ = [
    "AttentionMaps",
    "AttentionSummary",
    "Attribution",
    "Column",
    "Distances",
    "EquivarianceProfile",
    "Explanation",
    "Molecule",
    "Tokens",
    "attention_distance",
    "attention_maps",
    "attribution",
    "equivariance_profile",
    "explain_graph",
    "graph_distances",
    "graph_profiles",
    "mean_attribution",
    "mean_profile",
    "occlusions",
    "plot_attention_distance",
    "plot_attention_maps",
    "plot_attribution",
    "plot_equivariance_profile",
    "subject_of",
]
