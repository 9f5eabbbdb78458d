"""Published checkpoints of the authors' code (github.com/jw9730/tokengt) as :class:`TokenGT` models.

Their model adds to the paper: integer features share one table indexed ``x_j + 512 j + 2``, a [null] token, an MLP
head, a LayerNorm on the input, none at the end. Their layers that no output depends on (``masked_lm_pooler`` and the
encoder's ``final_layer_norm``) are left behind. Where their code types a self-loop as a node, ours types it as an edge.
"""

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokengt.attention import FavorConfig, SoftmaxConfig
from tokengt.block import EncoderConfig
from tokengt.data._pickles import load_torch
from tokengt.models.features import FeatureSpec
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.heads import HeadConfig
from tokengt.models.tokengt.identifiers import IdentifierConfig, LaplacianIds, NoIds, OrfIds, RandomIds
from tokengt.models.tokengt.model import TokenGT
from tokengt.models.tokengt.tokens import TokensConfig

# Every feature column has this many rows in their one table.
_ROWS_PER_COLUMN = 512
_GRAPH = "encoder.graph_encoder."
_FEATURE = _GRAPH + "graph_feature."
_ID_ENCODERS = ("lap", "orf", "rand")


def model_from_official(state_dict: Mapping[str, Tensor], args: Mapping[str, Any] | Namespace) -> TokenGT:
    """A model, in evaluation mode, that predicts what the authors' model with this state predicts.

    Args:
        state_dict: theirs (``checkpoint["model"]``).
        args: their hyper-parameters (``checkpoint["cfg"]["model"]`` or ``checkpoint["args"]``).
    """
    # An argument that is None was not set, so their defaults apply.
    options = {name: value for name, value in _as_dict(args).items() if value is not None}
    try:
        config = _config(state_dict, options)
        converted = convert_state(state_dict, config)
    except KeyError as error:
        raise ValueError(f"the state is not the authors' TokenGT: {error.args[0]} is missing") from error
    model = TokenGT(config)
    model.load_state_dict(_own_buffers(model) | converted)
    return model.eval()


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State and hyper-parameters of a fairseq checkpoint, read without running anything it holds."""
    import numpy as np
    from numpy._core import multiarray

    safe: list[Any] = [Namespace, np.dtype, np.ndarray, multiarray.scalar, multiarray._reconstruct]
    # NumPy before 2.0, which pickled the published files, called the module numpy.core.
    safe += [(getattr(multiarray, name), f"numpy.core.multiarray.{name}") for name in ("scalar", "_reconstruct")]
    safe += [type(np.dtype(name)) for name in ("float32", "float64", "int32", "int64", "bool")]
    try:
        checkpoint = load_torch(path, safe)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:
        # torch's own message is not passed on, because it advises unsafe loading.
        refused = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
        reason = f"it holds code ({refused[1]})" if refused else "it is no file that torch.save wrote"
        raise ValueError(f"{path} is no checkpoint that can be read safely: {reason}") from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        raise ValueError(f"{path} is no fairseq checkpoint: it has no 'model' state")
    settings = checkpoint.get("cfg")
    args = checkpoint.get("args") or (settings.get("model") if isinstance(settings, dict) else None)
    if args is None:
        raise ValueError(f"{path} holds no hyper-parameters: expected 'args' or 'cfg.model'")
    return checkpoint["model"], _as_dict(args)


def _as_dict(args: Any) -> dict[str, Any]:
    if isinstance(args, Namespace):
        return dict(vars(args))
    if not isinstance(args, Mapping):
        raise ValueError(f"the hyper-parameters are {type(args).__name__}; expected a dict or a Namespace")
    return dict(args)


def convert_state(state: Mapping[str, Tensor], config: TokenGTConfig) -> dict[str, Tensor]:
    """Their tensors under our names. Linear in the tensors, so it carries gradients over as well."""
    feature = {name.removeprefix(_FEATURE): tensor for name, tensor in state.items() if name.startswith(_FEATURE)}
    ours = {
        # Their index x_j + 512 j + 2 is our x_j + 512 j, so our table is theirs without rows 0 and 1, which they never
        # read; rolling them to the end keeps the number of rows.
        "tokenizer.node_encoder.table.weight": feature["atom_encoder.weight"].roll(-2, 0),
        "tokenizer.edge_encoder.table.weight": feature["edge_encoder.weight"].roll(-2, 0),
        "tokenizer.special_tokens": torch.cat([feature["graph_token.weight"], feature["null_token.weight"]]),
        "head.project.0.weight": state["encoder.lm_head_transform_weight.weight"],
        "head.project.0.bias": state["encoder.lm_head_transform_weight.bias"],
        "head.project.2.weight": state["encoder.layer_norm.weight"],
        "head.project.2.bias": state["encoder.layer_norm.bias"],
        "head.project.3.weight": state["encoder.embed_out.weight"],
        "head.project.3.bias": state["encoder.lm_output_learned_bias"].expand(config.head.out_dim),
    }
    for name in _ID_ENCODERS:
        if f"{name}_encoder.weight" in feature:
            ours["tokenizer.id_proj.weight"] = feature[f"{name}_encoder.weight"]
    if config.tokens.type_ids:
        # They number edges before nodes, we nodes before edges.
        ours["tokenizer.type_embedding.weight"] = feature["order_encoder.weight"].flip(0)
    if config.encoder.input_norm:
        for part in ("weight", "bias"):
            ours[f"encoder.input_norm.{part}"] = state[f"{_GRAPH}emb_layer_norm.{part}"]
    for layer in range(config.encoder.num_layers):
        ours |= _convert_block(state, layer)
    return ours


def _convert_block(state: Mapping[str, Tensor], layer: int) -> dict[str, Tensor]:
    theirs, block = f"{_GRAPH}layers.{layer}.", f"encoder.blocks.{layer}."
    ours = {}
    for part in ("weight", "bias"):
        projections = [state[f"{theirs}self_attn.{name}_proj.{part}"] for name in "qkv"]
        ours[f"{block}attention.qkv_proj.{part}"] = torch.cat(projections)
        ours[f"{block}attention.out_proj.{part}"] = state[f"{theirs}self_attn.out_proj.{part}"]
        ours[f"{block}attention_norm.{part}"] = state[f"{theirs}self_attn_layer_norm.{part}"]
        ours[f"{block}mlp_norm.{part}"] = state[f"{theirs}final_layer_norm.{part}"]
        ours[f"{block}mlp.up.{part}"] = state[f"{theirs}feedforward.fc1.{part}"]
        ours[f"{block}mlp.down.{part}"] = state[f"{theirs}feedforward.fc2.{part}"]
    projection = f"{theirs}self_attn.fast_attention.projection_matrix"
    if projection in state:
        ours[f"{block}attention.kernel.projection"] = state[projection]
    return ours


def _config(state: Mapping[str, Tensor], options: Mapping[str, Any]) -> TokenGTConfig:
    _check_supported(options)
    atoms, bonds = state[_FEATURE + "atom_encoder.weight"], state[_FEATURE + "edge_encoder.weight"]
    dropout = float(options.get("dropout", 0.0))
    projection = state.get(f"{_GRAPH}layers.0.self_attn.fast_attention.projection_matrix")
    performer = bool(options.get("performer")) or projection is not None
    prefix = _GRAPH + "layers."
    layers = len({name.removeprefix(prefix).split(".")[0] for name in state if name.startswith(prefix)})
    return TokenGTConfig(
        dim=atoms.shape[1],
        tokens=TokensConfig(
            node_features=_columns(atoms),
            edge_features=_columns(bonds),
            null_token=True,
            type_ids=_FEATURE + "order_encoder.weight" in state,
        ),
        identifiers=_identifiers(state, options),
        encoder=EncoderConfig(
            num_layers=layers,
            num_heads=int(options["encoder_attention_heads"]),
            mlp_dim=state[f"{_GRAPH}layers.0.feedforward.fc1.weight"].shape[0],
            attention=FavorConfig(
                num_features=None if projection is None else projection.shape[0],
                redraw_interval=options.get("performer_feature_redraw_interval", 1000),
            )
            if performer
            else SoftmaxConfig(dropout=float(options.get("attention_dropout", 0.0))),
            mlp_dropout=float(options.get("act_dropout", 0.0)),
            residual_dropout=dropout,
            input_dropout=dropout,
            drop_path=0.1 if options.get("stochastic_depth") else 0.0,
            input_norm=_GRAPH + "emb_layer_norm.weight" in state,
            final_norm=False,
            activation=options.get("activation_fn", "gelu"),
        ),
        head=HeadConfig(out_dim=state["encoder.embed_out.weight"].shape[0], mlp=True),
    )


def _check_supported(options: Mapping[str, Any]) -> None:
    if options.get("postnorm"):
        raise ValueError("the checkpoint was trained with postnorm; only the published prenorm models are supported")
    if options.get("performer_generalized_attention"):
        raise ValueError(
            "the checkpoint uses generalized Performer attention; only FAVOR+ softmax features are supported"
        )
    if not options.get("encoder_attention_heads"):
        raise ValueError("the checkpoint's hyper-parameters lack encoder_attention_heads")


def _identifiers(state: Mapping[str, Tensor], options: Mapping[str, Any]) -> IdentifierConfig:
    encoders = [name for name in _ID_ENCODERS if f"{_FEATURE}{name}_encoder.weight" in state]
    if len(encoders) > 1:
        raise ValueError(f"the checkpoint mixes {' and '.join(encoders)} identifiers; expected one kind")
    if not encoders:
        return NoIds()
    dim = state[f"{_FEATURE}{encoders[0]}_encoder.weight"].shape[1] // 2
    if encoders[0] != "lap":
        return OrfIds(dim) if encoders[0] == "orf" else RandomIds(dim)
    return LaplacianIds(
        dim=dim,
        sign_flip=bool(options.get("lap_node_id_sign_flip", False)),
        dropout=float(options.get("lap_node_id_eig_dropout", 0.0)),
    )


def _columns(table: Tensor) -> FeatureSpec:
    return FeatureSpec(categories=(_ROWS_PER_COLUMN,) * (len(table) // _ROWS_PER_COLUMN))


def _own_buffers(model: TokenGT) -> dict[str, Tensor]:
    """What FAVOR+ holds besides weights: their checkpoints lack the counter, and sometimes the features."""
    return {name: tensor for name, tensor in model.state_dict().items() if name.endswith(("draw_age", "projection"))}
