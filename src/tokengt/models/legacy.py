"""Model configs as older versions wrote them, brought up to date.

Format 1 had one class for all kinds of attention and one for all kinds of identifiers, with fields that did nothing for
some kinds. Those fields are left out here: today's classes refuse them, and no prediction depended on them.
"""

from collections.abc import Mapping
from typing import Any

# The fields that had an effect, by kind.
_ATTENTION = {"softmax": ("dropout", "backend"), "favor": ("num_features", "redraw_interval", "eps", "backend")}
_IDENTIFIERS = {"laplacian": ("dim", "which", "sign_flip", "dropout"), "none": ()}
_FIRST_ORDER = ("orf_first_order", "random_first_order")


def model_from_v1(data: Mapping[str, Any]) -> dict[str, Any]:
    """The TokenGT config of a format-1 ``config.json`` or ``run.json`` (its "model") as today's ``from_dict`` reads it.

    A field that the old file leaves out is left out here too: its default has not changed.
    """
    identifiers = _identifiers(data.get("identifiers", {}))
    model = {"kind": "tokengt", **data, "identifiers": identifiers}
    # What is not a dict is left as it is, for from_dict to refuse by name.
    if isinstance(data.get("encoder"), Mapping):
        model["encoder"] = _encoder(data["encoder"])
    if isinstance(data.get("tokens"), Mapping) and isinstance(identifiers, Mapping):
        model["tokens"] = _tokens(data["tokens"], identifiers["kind"])
    if isinstance(data.get("head"), Mapping):
        model["head"] = _head(data["head"])
    return model


def _identifiers(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    kind = data.get("kind", "laplacian")
    return _kept({"kind": kind, **data}, _IDENTIFIERS.get(kind, ("dim",)))


def _encoder(data: Mapping[str, Any]) -> dict[str, Any]:
    attention = data.get("attention", {})
    if not isinstance(attention, Mapping):
        return dict(data)
    kind = attention.get("kind", "softmax")
    settings = _kept({"kind": kind, **attention}, _ATTENTION.get(kind, ()))
    if kind == "favor" and settings.get("backend") == "varlen":
        # "varlen" is a backend of softmax; FAVOR+ accepted it and took it for "none of our own kernels".
        settings["backend"] = "bucketed"
    return {**data, "attention": settings}


def _kept(data: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name in ("kind", *names)}


def _tokens(data: Mapping[str, Any], identifiers: str) -> dict[str, Any]:
    """Without ``pool_mlp`` where no token pools identifiers."""
    pooled = data.get("layout") == "undirected" or data.get("hyperedges", False)
    return _without(data, "pool_mlp" if not pooled or identifiers in ("none", *_FIRST_ORDER) else None)


def _head(data: Mapping[str, Any]) -> dict[str, Any]:
    """Without what another level reads, and without the activation of hidden layers that there are none of."""
    level = data.get("level", "graph")
    return _without(
        data,
        "readout" if level != "graph" else None,
        "symmetric" if level != "link" else None,
        "activation" if not data.get("hidden") else None,
    )


def _without(data: Mapping[str, Any], *names: str | None) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}
