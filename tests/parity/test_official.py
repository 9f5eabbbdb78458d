import json
import zipfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.parity.official_reference import State, predict, random_state
from tokengt import Graph, GraphBatch, TokenGT, presets
from tokengt.cli import main
from tokengt.interop.official import convert_state, model_from_official, read_checkpoint

HEADS = 4


def molecule_like(nodes: int, edges: int, seed: int) -> Graph:
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(0, nodes, (edges,), generator=generator)
    target = (source + 1 + torch.randint(0, max(nodes - 1, 1), (edges,), generator=generator)) % nodes
    keep = source != target
    return Graph(
        torch.randint(0, 100, (nodes, 9), generator=generator),
        torch.stack([source, target])[:, keep],
        torch.randint(0, 6, (edges, 3), generator=generator)[keep],
    )


GRAPHS = [molecule_like(*sizes) for sizes in [(5, 8, 1), (12, 30, 2), (1, 0, 3), (9, 0, 4)]]

CASES: dict[str, dict[str, object]] = {
    "laplacian": {"ids": "lap"},
    "orf": {"ids": "orf", "id_dim": 9},
    "random": {"ids": "rand"},
    "no identifiers": {"ids": None},
    "no identifiers, no types": {"ids": None, "types": False},
    "laplacian without types": {"ids": "lap", "types": False},
    "performer": {"ids": "lap", "features": 5},
    "several classes": {"ids": "lap", "classes": 3},
}


def options(**more: object) -> dict[str, object]:
    return {"encoder_attention_heads": HEADS, "prenorm": True, "activation_fn": "gelu", **more}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_authors_equations(case: str) -> None:
    state = random_state(heads=HEADS, **CASES[case])  # type: ignore[arg-type]
    model = model_from_official(state, options()).eval()
    batch = GraphBatch.collate(GRAPHS)
    config = model.config.identifiers
    ids = None if config.kind == "none" else torch.randn(batch.num_nodes, config.dim)
    outputs = model(batch, node_ids=ids)
    for place, graph in enumerate(GRAPHS):
        rows = slice(*batch.nodes.host[place : place + 2].tolist())
        own = None if ids is None else ids[rows]
        expected = predict(state, HEADS, graph.node_features, graph.edge_index, graph.edge_features, own)
        assert torch.allclose(outputs[place], expected, atol=5e-6), case


@pytest.mark.parametrize("case", ["laplacian", "orf", "no identifiers, no types", "performer"])
def test_gradients_equal_those_of_the_authors_equations(case: str) -> None:
    """The same path as the recorded fixtures, for those who do not have them."""
    plain = random_state(heads=HEADS, **CASES[case])  # type: ignore[arg-type]
    state = {name: tensor.double().requires_grad_(tensor.is_floating_point()) for name, tensor in plain.items()}
    model = model_from_official({name: tensor.detach() for name, tensor in state.items()}, options()).double()
    graph, ids = GRAPHS[1], torch.randn(12, model.config.identifiers.dim, dtype=torch.float64)
    own = None if model.config.identifiers.kind == "none" else ids
    expected = predict(state, HEADS, graph.node_features, graph.edge_index, graph.edge_features, own)
    expected.sum().backward()
    model(graph, node_ids=own).sum().backward()
    gradients = {name: torch.zeros_like(t) if t.grad is None else t.grad for name, t in state.items()}
    converted = convert_state(gradients, model.config)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        difference = (parameter.grad - converted[name]).abs().max()
        assert difference < 1e-10 * max(1.0, float(converted[name].abs().max())), name


@pytest.mark.parametrize("name", ["lap8", "orf16"])
def test_recorded_outputs_and_gradients(shared: Path, name: str) -> None:
    """The authors' own numbers: outputs to 2e-6, gradients to 2e-6 of the largest entry of their tensor (the fixture's
    float32 gradients are themselves up to 3.5e-6 from float64 where entries reach 17)."""
    record = load_file(shared / "oracle" / f"{name}.safetensors")
    description = json.loads((shared / "oracle" / f"{name}.json").read_text())
    state = _under("state/", record)
    model = model_from_official(state, description["args"]).eval()
    members = [
        Graph(record[f"graph/{i}/x"], record[f"graph/{i}/edge_index"], record[f"graph/{i}/edge_attr"]) for i in range(5)
    ]
    output = model(GraphBatch.collate(members), node_ids=record["node_ids"])
    assert (output - record["output"]).abs().max() < 2e-6
    (output[:, 0] - torch.tensor(description["targets"])).abs().sum().backward()
    gradients = _under("grad/", record)
    expected = convert_state({k: gradients.get(k, torch.zeros_like(v)) for k, v in state.items()}, model.config)
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None
        allowed = 2e-6 * max(1.0, float(expected[key].abs().max()))
        assert (parameter.grad - expected[key]).abs().max() < allowed, key


def _under(prefix: str, record: State) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in record.items() if name.startswith(prefix)}


def test_laplacian_ids_equal_the_recorded_ones_up_to_the_basis(shared: Path) -> None:
    """Projectors on the span of the identifiers, graph by graph: signs and degenerate bases are free."""
    from tokengt import LaplacianIds
    from tokengt.models.tokengt.identifiers import identify

    record = load_file(shared / "oracle" / "lap8.safetensors")
    members = [
        Graph(num_nodes=len(record[f"graph/{i}/x"]), edge_index=record[f"graph/{i}/edge_index"]) for i in range(5)
    ]
    batch = GraphBatch.collate(members)
    ours = identify(batch, LaplacianIds(8))
    assert ours is not None
    compared = 0
    for rows in torch.arange(batch.num_nodes).split(batch.nodes.host_lengths.tolist()):
        mine, theirs = ours.nodes[rows], record["node_ids"][rows].double()
        difference = (mine @ mine.T - theirs @ theirs.T).abs().max()
        compared += int(difference < 1e-4)
    assert compared >= 4, "at most one graph may have an eigenspace cut in two at the eighth eigenvalue"


def test_published_sizes() -> None:
    """12 x 768: the authors' 48,492,289 parameters less the 592,128 that no output depends on."""
    state = random_state(dim=768, layers=12, mlp=768, id_dim=16)
    assert sum(tensor.numel() for tensor in state.values()) == 48_492_289
    model = model_from_official(state, options(encoder_attention_heads=32))
    assert sum(parameter.numel() for parameter in model.parameters()) == 47_900_161
    for ids in ("laplacian", "orf"):
        blocks = TokenGT(presets.regression(ids)).encoder.blocks  # type: ignore[arg-type]
        assert sum(parameter.numel() for parameter in blocks.parameters()) == 42_559_488


@pytest.mark.parametrize(
    ("option", "value", "changed"),
    [
        ("dropout", 0.1, {"encoder.residual_dropout": 0.1, "encoder.input_dropout": 0.1}),
        ("attention_dropout", 0.2, {"encoder.attention.dropout": 0.2}),
        ("act_dropout", 0.3, {"encoder.mlp_dropout": 0.3}),
        ("stochastic_depth", True, {"encoder.drop_path": 0.1}),
        ("activation_fn", "relu", {"encoder.activation": "relu"}),
        ("lap_node_id_sign_flip", True, {"identifiers.sign_flip": True}),
        ("lap_node_id_eig_dropout", 0.4, {"identifiers.dropout": 0.4}),
    ],
)
def test_each_setting_of_theirs_is_read_into_its_own_place(
    option: str, value: object, changed: dict[str, object]
) -> None:
    """Weights that go on training under another dropout than the authors' would be another experiment."""
    state = random_state(heads=HEADS, ids="lap")
    plain = _flat(model_from_official(state, options()).config.to_dict())
    told = _flat(model_from_official(state, options(**{option: value})).config.to_dict())
    assert {name: told[name] for name in told if told[name] != plain[name]} == changed


@pytest.mark.parametrize("option", [{"act_dropout": 0.5}, {"lap_node_id_sign_flip": True}])
def test_settings_of_theirs_change_training_and_not_evaluation(option: dict[str, object]) -> None:
    """Two training passes differ by chance with the setting and are alike without it."""
    state, batch = random_state(heads=HEADS, ids="lap"), GraphBatch.collate(GRAPHS)

    def passes(model: TokenGT) -> list[torch.Tensor]:
        outputs = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            outputs.append(model(batch))
        return outputs

    assert torch.equal(*passes(model_from_official(state, options()).train()))
    with_option = model_from_official(state, options(**option))
    assert torch.equal(*passes(with_option))
    assert not torch.equal(*passes(with_option.train()))


def _flat(data: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in data.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


@pytest.mark.parametrize("place", ["args", "cfg"])
def test_import_official_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    state = random_state(heads=HEADS, features=5)
    arguments = Namespace(**options())
    checkpoint = {
        "args": arguments if place == "args" else None,
        "cfg": {"model": arguments} if place == "cfg" else None,
        "model": state,
        "optimizer_history": [{"num_updates": 3}],
        "extra_state": {"best": np.float64(0.1), "epoch": 3},
    }
    torch.save(checkpoint, tmp_path / "checkpoint_best.pt")
    assert main(["import-official", str(tmp_path / "checkpoint_best.pt"), "--out", str(tmp_path / "model")]) == 0
    assert "parameters" in capsys.readouterr().out
    batch = GraphBatch.collate(GRAPHS)
    loaded, direct = TokenGT.from_pretrained(tmp_path / "model").eval(), model_from_official(state, arguments).eval()
    assert torch.equal(loaded(batch), direct(batch))


def test_checkpoints_pickled_by_an_older_numpy(tmp_path: Path) -> None:
    """The authors' files are of 2022: NumPy called its module numpy.core then."""
    checkpoint = {"args": Namespace(**options()), "model": random_state(), "extra_state": {"best": np.float64(0.1)}}
    torch.save(checkpoint, tmp_path / "new.pt")
    with zipfile.ZipFile(tmp_path / "new.pt") as new, zipfile.ZipFile(tmp_path / "old.pt", "w") as old:
        for name in new.namelist():
            content = new.read(name)
            if name.endswith("data.pkl"):
                assert b"numpy._core.multiarray" in content
                content = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
            old.writestr(name, content)
    state, arguments = read_checkpoint(tmp_path / "old.pt")
    assert arguments["encoder_attention_heads"] == HEADS
    assert torch.equal(state["encoder.embed_out.weight"], checkpoint["model"]["encoder.embed_out.weight"])


class Exploit:
    """Unpickling this would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.mkdir, (str(self.path),)


def test_a_malicious_checkpoint_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": random_state(), "args": Exploit(tmp_path / "owned")}, tmp_path / "bad.pt")
    assert main(["import-official", str(tmp_path / "bad.pt"), "--out", str(tmp_path / "model")]) == 2
    assert "can be read safely" in capsys.readouterr().err
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"postnorm": True}, "postnorm"),
        ({"performer_generalized_attention": True}, "generalized"),
        ({"encoder_attention_heads": None}, "lack encoder_attention_heads"),
    ],
)
def test_unsupported_checkpoints(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        model_from_official(random_state(), options(**change))


def test_not_their_model() -> None:
    with pytest.raises(ValueError, match="is not the authors' TokenGT"):
        model_from_official({"weight": torch.zeros(1)}, options())
    mixed = random_state(ids="lap") | {"encoder.graph_encoder.graph_feature.orf_encoder.weight": torch.zeros(16, 4)}
    with pytest.raises(ValueError, match="mixes lap and orf"):
        model_from_official(mixed, options())


@pytest.mark.parametrize(
    "missing", ["encoder.layer_norm.weight", "encoder.graph_encoder.graph_feature.edge_encoder.weight"]
)
def test_an_incomplete_state_names_what_is_missing(missing: str) -> None:
    state = random_state()
    del state[missing]
    with pytest.raises(ValueError, match=f"{missing} is missing"):
        model_from_official(state, options())


def test_unset_arguments_and_unknown_tensors_do_no_harm() -> None:
    state = random_state(heads=HEADS)
    expected = model_from_official(state, options())(GRAPHS[0])
    odd = state | {"encoder.other_layers.weight": torch.zeros(1)}
    loaded = model_from_official(odd, options(dropout=None, attention_dropout=None, lap_node_id_eig_dropout=None))
    assert torch.equal(loaded(GRAPHS[0]), expected)
    assert not loaded.training


def test_a_performer_without_its_features_still_becomes_one() -> None:
    assert model_from_official(random_state(), options(performer=True)).config.encoder.attention.kind == "favor"


@pytest.mark.parametrize("checkpoint", [{"model": {}}, {"model": {}, "cfg": [1]}, {"model": {}, "args": 3}, [1], {}])
def test_odd_checkpoints_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], checkpoint: object
) -> None:
    torch.save(checkpoint, tmp_path / "odd.pt")
    assert main(["import-official", str(tmp_path / "odd.pt"), "--out", str(tmp_path / "model")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
