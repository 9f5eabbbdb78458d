"""tokengt: graphs in, predictions out, with a plain Transformer (Tokenized Graph Transformer).

The names below are imported when they are first used, so that ``import tokengt`` and ``tokengt --help`` stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tokengt._version import __version__ as __version__

if TYPE_CHECKING:
    from tokengt.attention import AttentionConfig as AttentionConfig
    from tokengt.attention import EluConfig as EluConfig
    from tokengt.attention import FavorConfig as FavorConfig
    from tokengt.attention import SoftmaxConfig as SoftmaxConfig
    from tokengt.batch import GraphBatch as GraphBatch
    from tokengt.block import EncoderConfig as EncoderConfig
    from tokengt.data.node_tables import NodeFiles as NodeFiles
    from tokengt.graph import Graph as Graph
    from tokengt.inference import Predictor as Predictor
    from tokengt.inference import load as load
    from tokengt.interop.networkx import from_networkx as from_networkx
    from tokengt.interop.networkx import to_networkx as to_networkx
    from tokengt.interop.pyg import from_pyg as from_pyg
    from tokengt.interop.pyg import to_pyg as to_pyg
    from tokengt.interop.smiles import from_smiles as from_smiles
    from tokengt.models.features import FeatureSpec as FeatureSpec
    from tokengt.models.tokengt.config import TokenGTConfig as TokenGTConfig
    from tokengt.models.tokengt.heads import HeadConfig as HeadConfig
    from tokengt.models.tokengt.identifiers import FirstOrderOrfIds as FirstOrderOrfIds
    from tokengt.models.tokengt.identifiers import FirstOrderRandomIds as FirstOrderRandomIds
    from tokengt.models.tokengt.identifiers import IdentifierConfig as IdentifierConfig
    from tokengt.models.tokengt.identifiers import LaplacianIds as LaplacianIds
    from tokengt.models.tokengt.identifiers import NearOrthonormalIds as NearOrthonormalIds
    from tokengt.models.tokengt.identifiers import NoIds as NoIds
    from tokengt.models.tokengt.identifiers import OrfIds as OrfIds
    from tokengt.models.tokengt.identifiers import RandomIds as RandomIds
    from tokengt.models.tokengt.model import TokenGT as TokenGT
    from tokengt.models.tokengt.tokens import TokensConfig as TokensConfig
    from tokengt.training.config import TrainingConfig as TrainingConfig
    from tokengt.workflow.comparing import compare as compare
    from tokengt.workflow.comparing_results import Comparison as Comparison
    from tokengt.workflow.evaluating import evaluate as evaluate
    from tokengt.workflow.fitting import TrainOptions as TrainOptions
    from tokengt.workflow.fitting import finetune as finetune
    from tokengt.workflow.fitting import train as train
    from tokengt.workflow.pretraining import prepare_pretraining as prepare_pretraining
    from tokengt.workflow.pretraining import pretrain as pretrain

# The module of each public name: only that module is imported when the name is first used.
_HOMES = {
    "AttentionConfig": "tokengt.attention",
    "Comparison": "tokengt.workflow.comparing_results",
    "EluConfig": "tokengt.attention",
    "EncoderConfig": "tokengt.block",
    "FavorConfig": "tokengt.attention",
    "FeatureSpec": "tokengt.models.features",
    "FirstOrderOrfIds": "tokengt.models.tokengt.identifiers",
    "FirstOrderRandomIds": "tokengt.models.tokengt.identifiers",
    "Graph": "tokengt.graph",
    "GraphBatch": "tokengt.batch",
    "HeadConfig": "tokengt.models.tokengt.heads",
    "IdentifierConfig": "tokengt.models.tokengt.identifiers",
    "LaplacianIds": "tokengt.models.tokengt.identifiers",
    "NearOrthonormalIds": "tokengt.models.tokengt.identifiers",
    "NoIds": "tokengt.models.tokengt.identifiers",
    "NodeFiles": "tokengt.data.node_tables",
    "OrfIds": "tokengt.models.tokengt.identifiers",
    "Predictor": "tokengt.inference",
    "ProofHeads": "tokengt.models.tokengt.proof_heads",
    "RandomIds": "tokengt.models.tokengt.identifiers",
    "SoftmaxConfig": "tokengt.attention",
    "StructureConfig": "tokengt.models.tokengt.structure",
    "TokenGT": "tokengt.models.tokengt.model",
    "TokenGTConfig": "tokengt.models.tokengt.config",
    "TokensConfig": "tokengt.models.tokengt.tokens",
    "TrainOptions": "tokengt.workflow.fitting",
    "TrainingConfig": "tokengt.training.config",
    "compare": "tokengt.workflow.comparing",
    "evaluate": "tokengt.workflow.evaluating",
    "finetune": "tokengt.workflow.fitting",
    "from_networkx": "tokengt.interop.networkx",
    "from_pyg": "tokengt.interop.pyg",
    "from_smiles": "tokengt.interop.smiles",
    "load": "tokengt.inference",
    "prepare_pretraining": "tokengt.workflow.pretraining",
    "pretrain": "tokengt.workflow.pretraining",
    "to_networkx": "tokengt.interop.networkx",
    "to_pyg": "tokengt.interop.pyg",
    "train": "tokengt.workflow.fitting",
}

# What ``from tokengt import *`` brings: not load, which torch and json have too, and not __version__, which is the
# importing module's own. Both are there as tokengt.load and tokengt.__version__.
__all__ = sorted(_HOMES.keys() - {"load"})


# Modules that are reached as attributes (tokengt.presets) without an import statement of their own.
_ROOMS = (
    "accelerate",
    "attention",
    "data",
    "explain",
    "interop",
    "models",
    "presets",
    "structure",
    "testing",
    "training",
    "transformer",
    "workflow",
)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"tokengt.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tokengt' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(("__version__", *_HOMES, *_ROOMS))
