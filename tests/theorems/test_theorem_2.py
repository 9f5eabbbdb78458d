"""Theorem 2 and Corollary 1: a plain TokenGT whose weights are a given k-IGN."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.theorems.curves import assert_falls_as_the_gap
from tokengt import Graph, TokenGT, TokenGTConfig
from tokengt.models.tokengt.guard import Domain, orthonormal_within
from tokengt.ragged import Segments
from tokengt.testing import assert_permutation_invariant
from tokengt.theory.construction import (
    activation_map,
    compile_ign,
    compile_layer,
    encode_tensor,
    ign_bound,
    logit_gap,
    tensor_graph,
)
from tokengt.theory.construction.compile import ign_recipe, reaches
from tokengt.theory.construction.gates import Activation
from tokengt.theory.construction.layout import Layout
from tokengt.theory.construction.measure import ign_agreement, orthonormal_ids, random_tensor, randomise
from tokengt.theory.ign import IGNConfig, InvariantGraphNetwork
from tokengt.theory.scoring import TypeKind
from tokengt.theory.tuples import Tuples

BOTH: tuple[Activation, ...] = ("relu", "gelu")


def random_ign(config: IGNConfig, seed: int = 0) -> InvariantGraphNetwork:
    ign = InvariantGraphNetwork(config).double()
    randomise(ign, torch.Generator().manual_seed(seed))
    return ign


def direct(ign: InvariantGraphNetwork, x: torch.Tensor) -> torch.Tensor:
    """F_k(X), by the IGN itself."""
    return ign(x.flatten(0, -2), Tuples.dense(Segments.uniform(1, len(x)), x.ndim - 1))


def close(found: torch.Tensor, wanted: torch.Tensor, relative: float = 1e-10) -> bool:
    return float((found - wanted).abs().max()) <= relative * float(wanted.abs().max())


@pytest.mark.parametrize("activation", BOTH)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("order", "nodes", "dims"), [(2, 4, (2, 4, 4, 3)), (3, 4, (2, 3, 2)), (1, 6, (3, 5, 4, 2)), (2, 6, (3, 3, 4, 2))]
)
def test_random_networks(order: int, nodes: int, dims: tuple[int, ...], activation: Activation, seed: int) -> None:
    agreement = ign_agreement(order, nodes, 400.0, dims=dims, ign_activation=activation, seed=seed)
    assert agreement.relative < 1e-10
    assert agreement.scale > 1
    assert agreement.holds


@given(
    order=st.integers(1, 3),
    nodes=st.integers(1, 4),
    dims=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    mlp_dims=st.lists(st.integers(1, 5), max_size=2),
    activation=st.sampled_from(BOTH),
    kind=st.sampled_from(("one_hot", "circle")),
    size=st.sampled_from((0.01, 1.0, 1000.0)),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15)
def test_any_network(
    order: int,
    nodes: int,
    dims: list[int],
    mlp_dims: list[int],
    activation: Activation,
    kind: TypeKind,
    size: float,
    seed: int,
) -> None:
    """Any widths and depths, one node to four, inputs small and large, with the model's own draws of identifiers."""
    ign = random_ign(
        IGNConfig(order, tuple(dims), activation, invariant_dim=2, mlp_dims=tuple(mlp_dims), out_dim=2), seed
    )
    x = random_tensor(nodes, order, dims[0], size, torch.Generator().manual_seed(seed))
    output = compile_ign(ign, nodes, 700.0, size, types=kind)(tensor_graph(x))
    wanted = direct(ign, x)
    assert float((output - wanted).abs().max()) <= ign_bound(ign, nodes, 700.0, size, types=kind)
    assert float((output - wanted).abs().max()) <= 1e-9 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize(("order", "nodes", "kind"), [(1, 5, "one_hot"), (2, 4, "one_hot"), (2, 3, "circle")])
def test_errors_fall_geometrically_until_float64_ends_it(order: int, nodes: int, kind: TypeKind) -> None:
    assert_falls_as_the_gap(
        lambda sharpness: ign_agreement(order, nodes, sharpness, types=kind, seed=4).relative,
        lambda sharpness: logit_gap(order, nodes, sharpness, kind),
        floor=1e-11,
    )


@pytest.mark.parametrize("sharpness", [0.1, 20.0, 100.0, 1e4])
def test_the_bound_holds_at_any_sharpness_and_falls_with_it(sharpness: float) -> None:
    for order, nodes, dims in ((1, 4, (2, 3, 2)), (2, 3, (2, 3, 3)), (3, 2, (2, 2, 2))):
        assert ign_agreement(order, nodes, sharpness, dims=dims, seed=1).holds
    ign = random_ign(IGNConfig(2, (2, 3, 2)))
    gaps = [logit_gap(2, 4, sharpness, "one_hot") for sharpness in (60.0, 90.0)]
    ratio = ign_bound(ign, 4, 60.0, 1.0) / ign_bound(ign, 4, 90.0, 1.0)
    assert ratio == pytest.approx(float(torch.exp(torch.tensor(gaps[1] - gaps[0]))), rel=0.01)


def test_relu_networks_on_a_gelu_encoder_cost_next_to_nothing() -> None:
    for seed in range(3):
        agreement = ign_agreement(2, 4, 400.0, activation="gelu", ign_activation="relu", seed=seed)
        assert agreement.relative < 1e-10
        assert agreement.holds


def test_gelu_networks_on_a_relu_encoder_cost_what_the_pieces_say() -> None:
    """The error is that of the interpolation: within the bound, and sixteen times less for four times the pieces."""
    errors = []
    for pieces in (32, 128, 512):
        agreement = ign_agreement(
            2, 3, 400.0, dims=(2, 3, 2), activation="relu", ign_activation="gelu", pieces=pieces, seed=2
        )
        assert agreement.holds
        errors.append(agreement.error)
    assert errors[0] > 8 * errors[1] > 64 * errors[2] > 0
    ratio = activation_map("gelu", "relu", 32).error / activation_map("gelu", "relu", 128).error
    assert ratio == pytest.approx(16, rel=1e-3)


def test_it_is_a_plain_model_that_can_be_saved(tmp_path: Path) -> None:
    ign = random_ign(IGNConfig(2, (2, 3, 2), "gelu", invariant_dim=3, mlp_dims=(4, 5), out_dim=2))
    x = random_tensor(4, 2, 2, 1.0, torch.Generator().manual_seed(0))
    model = compile_ign(ign, 4, 400.0, 1.0)
    assert type(model) is TokenGT
    model.save_pretrained(tmp_path)
    again = TokenGT.from_pretrained(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(tensor_graph(x)), model(tensor_graph(x)))
    assert close(again(tensor_graph(x)), direct(ign, x))


def test_a_copy_from_a_file_refuses_what_the_model_refuses(tmp_path: Path) -> None:
    """n, the bound and the sharpness are saved with the model: another n would give a wrong number without a word."""
    ign = random_ign(IGNConfig(2, (1, 3, 2)))
    compile_ign(ign, 4, 400.0, 1.0).save_pretrained(tmp_path)
    again, other = TokenGT.from_pretrained(tmp_path), torch.ones(5, 5, 1, dtype=torch.float64)
    assert again.config.domain == Domain(4, 1.0, 400.0)
    with pytest.raises(ValueError, match="every graph must have 4 nodes"):
        again(tensor_graph(other))
    with pytest.raises(ValueError, match=r"size 2 is above the input_bound of 1 "):
        again(tensor_graph(2 * other[:4, :4]))
    with pytest.raises(ValueError, match="node_ids are not orthonormal"):
        again(tensor_graph(other[:4, :4]), torch.ones(4, 4, dtype=torch.float64))


def test_configs_without_a_domain_are_written_as_before() -> None:
    """A field that only compiled models have changes no file and no checksum of any other."""
    assert "domain" not in TokenGTConfig().to_dict()
    config = compile_ign(random_ign(IGNConfig(2, (1, 2))), 3, 400.0, 1.0).config
    assert config.to_dict()["domain"] == {"num_nodes": 3, "input_bound": 1.0, "sharpness": 400.0}
    assert TokenGTConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("sharpness", [400.0, 1e6])
def test_identifiers_a_little_off_orthonormal_are_refused(sharpness: float) -> None:
    """5e-6 off, times a sharpness of 1e6, is 0.6 off in outputs of 3, where the bound says 1e-4."""
    ign = random_ign(IGNConfig(2, (1, 3, 2)))
    model, x = compile_ign(ign, 4, sharpness, 1.0), random_tensor(4, 2, 1, 1.0, torch.Generator().manual_seed(0))
    ids = orthonormal_ids(4, 4, torch.Generator().manual_seed(1))
    bound = ign_bound(ign, 4, sharpness, 1.0)
    assert float((model(tensor_graph(x), ids) - direct(ign, x)).abs().max()) <= bound
    tilted = ids.clone()
    tilted[0] += 5e-6 * ids[1]
    for off in (tilted, ids.float()):
        with pytest.raises(
            ValueError, match=rf"off by \d.+ the sharpness of {sharpness:g} multiplies".replace("+0", r"\+0")
        ):
            model(tensor_graph(x), off)


def test_identifiers_as_far_off_as_is_allowed_keep_to_the_bound() -> None:
    ign, sharpness = random_ign(IGNConfig(2, (1, 3, 2))), 1e6
    model, x = compile_ign(ign, 4, sharpness, 1.0), random_tensor(4, 2, 1, 1.0, torch.Generator().manual_seed(0))
    ids = torch.eye(4, dtype=torch.float64)
    ids[0] += 0.9 * orthonormal_within(4, torch.float64) * ids[1]
    bound = ign_bound(ign, 4, sharpness, 1.0)
    assert float((model(tensor_graph(x), ids) - direct(ign, x)).abs().max()) <= bound


def test_a_float32_model_takes_identifiers_of_its_own_precision() -> None:
    ign = random_ign(IGNConfig(2, (1, 3, 2)))
    x = random_tensor(4, 2, 1, 1.0, torch.Generator().manual_seed(0))
    model = compile_ign(ign, 4, 100.0, 1.0).float()
    for ids in (None, orthonormal_ids(4, 4, torch.Generator().manual_seed(1)).float()):
        assert close(model(tensor_graph(x.float()), ids), direct(ign, x), 1e-3)


def test_a_number_at_the_bound_is_taken_whatever_its_precision() -> None:
    """float32(0.1) is 1.5e-9 above 0.1: as a float32 tensor, and read as float64."""
    ign = random_ign(IGNConfig(2, (1, 3, 2)))
    model, x = compile_ign(ign, 3, 400.0, 0.1), torch.full((3, 3, 1), 0.1)
    assert float(x.double().max()) > 0.1
    assert close(model.double()(tensor_graph(x.double())), direct(ign, x.double()))
    assert close(compile_ign(ign, 3, 100.0, 0.1).float()(tensor_graph(x)), direct(ign, x.double()), 1e-3)
    with pytest.raises(ValueError, match="above the input_bound"):
        model(tensor_graph(1.001 * x.double()))


def test_too_little_sharpness_is_a_warning() -> None:
    """At 10 the outputs are off by a third; at 100 by next to nothing, and nobody is warned."""
    ign, layer = random_ign(IGNConfig(2, (1, 3, 2))), random_ign(IGNConfig(2, (1, 1))).layers[0]
    with pytest.warns(
        UserWarning, match=r"sharpness 10 is too small for 5 nodes: a head may give \d\d% .* from 181 on"
    ):
        compile_ign(ign, 5, 10.0, 1.0)
    with pytest.warns(UserWarning, match="sharpness 5 is too small for 5 nodes"):
        compile_layer(layer, 5, 5.0, 1.0)
    compile_ign(ign, 5, 100.0, 1.0)


def test_the_share_of_wrong_keys_in_closed_form() -> None:
    """Sets of n = 3, head (i; i): one right key and two wrong ones, each e^-gap, gap = 4 / sqrt(3 + 2)."""
    ign = random_ign(IGNConfig(1, (1, 1)))
    leak = 2 * math.exp(-4 / math.sqrt(5))
    assert ign_recipe(ign, 3, 4.0, 1.0).wrong_share == pytest.approx(leak / (1 + leak), rel=1e-12)


def test_the_bound_of_a_network_is_a_formula() -> None:
    """Sets, two layers of one channel, n = 4, |X| <= 5, and a linear readout: worked out by hand.

    Layer 1 has weights 2 and -3: at most (2 + 3 * 3) * 5 + 1 = 56 with its bias 1, off by 2 e^-gap (3 * 2 + 1 * 3) * 5.
    Layer 2 has weights 1 and 4: its |w| sum to 1 + 3 * 4 = 13, so it is off by 13 times that and by
    2 e^-gap (3 * 1 + 1 * 4) * 56. The sum over 4 nodes, L_{1->0} (7) and the MLP (10) multiply by 280.
    """
    ign = random_ign(IGNConfig(1, (1, 1, 1), "relu", invariant_dim=1, mlp_dims=(), out_dim=1))
    first, second = ign.layers
    first.weight.copy_(torch.tensor([2.0, -3.0]).view(2, 1, 1))
    second.weight.copy_(torch.tensor([1.0, 4.0]).view(2, 1, 1))
    first.bias.fill_(1.0)
    ign.invariant.weight.fill_(7.0)
    ign.mlp[0].weight.fill_(10.0)
    leak = math.exp(-logit_gap(1, 4, 40.0, "one_hot"))
    one = 2 * leak * (3 * 2 + 1 * 3) * 5
    two = 13 * one + 2 * leak * (3 * 1 + 1 * 4) * 56
    assert ign_bound(ign, 4, 40.0, 5.0) == pytest.approx(280 * two, rel=1e-3)


@pytest.mark.parametrize("order", [1, 2])
def test_the_bound_of_a_network_is_near_what_can_happen(order: int) -> None:
    """Positive weights and inputs of either sign: the worst of twenty is within a factor of 1,000 of the bound."""
    ign = random_ign(IGNConfig(order, (2, 3, 2), "relu", out_dim=1))
    for parameter in ign.parameters():
        parameter.abs_()
    sharpness = 12 / logit_gap(order, 4, 1.0, "one_hot")
    model, bound, worst = compile_ign(ign, 4, sharpness, 1.0), ign_bound(ign, 4, sharpness, 1.0), 0.0
    for seed in range(20):
        x = random_tensor(4, order, 2, 1.0, torch.Generator().manual_seed(seed)).sign()
        worst = max(worst, float((model(tensor_graph(x)) - direct(ign, x)).abs().max()))
    assert worst <= bound <= 1000 * worst


def test_any_orthonormal_identifiers_and_every_draw() -> None:
    ign = random_ign(IGNConfig(2, (2, 4, 2), "relu", out_dim=1))
    generator = torch.Generator().manual_seed(0)
    x = random_tensor(4, 2, 2, 1.0, generator)
    model, wanted = compile_ign(ign, 4, 600.0, 1.0, id_dim=7), direct(ign, x)
    for draw in range(3):
        assert close(model(tensor_graph(x), draw=draw), wanted)
        assert close(model(tensor_graph(x), generator=generator), wanted)
        assert close(model(tensor_graph(x), orthonormal_ids(4, 7, generator)), wanted)
    prediction = model.predict(tensor_graph(x), draws=4)
    assert float(prediction.std.max()) < 1e-10 * float(wanted.abs().max())


def test_it_is_invariant_as_the_network_is() -> None:
    ign = random_ign(IGNConfig(2, (2, 4, 2), "gelu"))
    x = random_tensor(5, 2, 2, 1.0, torch.Generator().manual_seed(0))
    model = compile_ign(ign, 5, 400.0, 1.0)
    assert_permutation_invariant(model, tensor_graph(x), atol=1e-8)


def test_several_graphs_at_once() -> None:
    ign = random_ign(IGNConfig(2, (2, 3, 2), out_dim=2))
    tensors = [random_tensor(3, 2, 2, 1.0, torch.Generator().manual_seed(seed)) for seed in range(3)]
    output = compile_ign(ign, 3, 400.0, 1.0)([tensor_graph(x) for x in tensors])
    assert close(output, torch.cat([direct(ign, x) for x in tensors]))


def test_a_float32_network_is_compiled_in_float64() -> None:
    ign = random_ign(IGNConfig(2, (1, 3, 2))).float()
    x = random_tensor(3, 2, 1, 1.0, torch.Generator().manual_seed(0))
    output = compile_ign(ign, 3, 400.0, 1.0)(tensor_graph(x))
    assert output.dtype == torch.float64
    assert close(output, direct(ign.double(), x))


def test_the_last_block_writes_every_class_into_its_own_channels() -> None:
    """Eq. 45: [0, C^gamma L(X) for every gamma], everything else cleared."""
    ign = random_ign(IGNConfig(3, (2, 2)))
    x = random_tensor(3, 3, 2, 1.0, torch.Generator().manual_seed(0))
    tuples, layout = Tuples.dense(Segments.uniform(1, 3), 3), Layout(3, 2, 3, "one_hot")
    out = ign.layers[0](x.flatten(0, -2), tuples, tuples)
    channels = encode_tensor(compile_ign(ign, 3, 500.0, 1.0), x).flatten(0, -2)
    assert float(channels[:, : layout.input_dim].abs().max()) == 0
    for gamma in range(5):
        own = (tuples.classes == gamma)[:, None]
        assert torch.allclose(channels[:, layout.sums(gamma)], out * own, atol=1e-10)


def test_what_it_was_not_compiled_for_is_refused() -> None:
    """Counts are those of n nodes, gates those of the bound: other inputs would give wrong numbers without a word."""
    ign = random_ign(IGNConfig(2, (1, 2, 2)))
    model, x = compile_ign(ign, 4, 400.0, 1.0), torch.rand(5, 5, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="every graph must have 4 nodes and its 12 other tuples once each"):
        model(tensor_graph(x))
    with pytest.raises(ValueError, match=r"an input of size 1\.5 is above the input_bound of 1"):
        model(batch=tensor_graph(torch.full((4, 4, 1), -1.5, dtype=torch.float64)))
    sparse = tensor_graph(x[:4, :4])
    with pytest.raises(ValueError, match="compile one for each size"):
        model([sparse, tensor_graph(x[:1, :1])])
    twice = Graph(sparse.node_features, sparse.edge_index[:, [0] * 12], sparse.edge_features)
    with pytest.raises(ValueError, match="once each"):
        model(twice)
    with pytest.raises(ValueError, match="node_ids are not orthonormal"):
        model(sparse, torch.rand(4, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="above the input_bound"):
        encode_tensor(model, 100 * x[:4, :4])


@pytest.mark.parametrize(
    ("sharpness", "bound", "sentence"),
    [
        (math.nan, 1.0, "expected positive finite numbers"),
        (400.0, math.inf, "expected positive finite numbers"),
        (400.0, 1e308, "grows beyond float64"),
    ],
)
def test_numbers_that_make_no_model_are_refused(sharpness: float, bound: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        compile_ign(random_ign(IGNConfig(2, (1, 2, 2))), 4, sharpness, bound)


@pytest.mark.parametrize("activation", BOTH)
def test_the_bound_on_every_layer_is_attained_and_held(activation: Activation) -> None:
    """Positive weights, X = its bound everywhere, edges 1,000 times louder than nodes: gates hold against all that."""
    ign = random_ign(IGNConfig(2, (2, 3, 3, 2), activation))
    for parameter in ign.layers.parameters():
        parameter.abs_()
    first, second = ign.layers[0], ign.layers[1]
    first.weight[5:] *= 1000
    tuples = Tuples.dense(Segments.uniform(1, 4), 2)
    x = torch.full((16, 2), 3.0, dtype=torch.float64)
    reach = reaches(list(ign.layers), 4, 3.0, 0.0)
    out = first(x, tuples, tuples)
    assert torch.allclose(out, reach[0][tuples.classes])
    loudest = reach[0].amax(0).expand(16, -1)
    assert torch.allclose(second(loudest, tuples, tuples), reach[1][tuples.classes])
    output = compile_ign(ign, 4, 400.0, 3.0)(tensor_graph(x.view(4, 4, 2)))
    assert close(output, direct(ign, x.view(4, 4, 2)))


def test_a_bound_far_too_large_costs_no_precision() -> None:
    ign = random_ign(IGNConfig(2, (2, 3, 2), "gelu"))
    x = random_tensor(4, 2, 2, 1.0, torch.Generator().manual_seed(0))
    assert close(compile_ign(ign, 4, 400.0, 1e6)(tensor_graph(x)), direct(ign, x), 1e-12)
