"""What is known about a graph as a whole, read by the head alone: the encoder sees what it saw without it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.effects import Effects, assert_dropped
from tests.graphs import odd_graphs, random_graph, small_model, tokens_config
from tests.models.test_graph_features import described, known
from tokengt import EncoderConfig, FeatureSpec, Graph, GraphBatch, HeadConfig, NoIds, TokenGT, TokenGTConfig
from tokengt.explain.attributions import attribution
from tokengt.explain.token_subject import TokenSubject
from tokengt.models.tokengt.heads import DescriptorReader, HeadDescriptors, TokenDescriptors
from tokengt.testing import assert_permutation_invariant

effects = Effects(TokenDescriptors, HeadDescriptors)
LATE = HeadDescriptors(width=6)


def config(spec: FeatureSpec | None = None, **options: object) -> TokenGTConfig:
    tokens = tokens_config(graph_features=spec or FeatureSpec(width=2))
    encoder = EncoderConfig(num_layers=2, num_heads=4)
    settings = {"identifiers": NoIds(), "descriptors": LATE, **options}
    return TokenGTConfig(dim=16, tokens=tokens, encoder=encoder, **settings)  # type: ignore[arg-type]


def model(spec: FeatureSpec | None = None, **options: object) -> TokenGT:
    torch.manual_seed(0)
    return TokenGT(config(spec, **options)).double().eval()


def test_a_config_from_before_there_was_a_choice_means_the_graph_token_and_is_written_as_it_was() -> None:
    early = config(descriptors=TokenDescriptors())
    written = early.to_dict()
    assert "descriptors" not in written
    assert TokenGTConfig.from_dict(written) == early
    late = config().to_dict()
    assert late.pop("descriptors") == {"kind": "head", "width": 6, "feature_dropout": 0.5, "dropout": 0.5}
    assert late == written
    assert TokenGTConfig.from_dict(config().to_dict()) == config()


def test_models_without_features_have_the_weights_they_had() -> None:
    """A new weight would change the numbers that all later ones are drawn from, and break saved models."""
    assert not [name for name in small_model().state_dict() if "descriptors" in name]


def test_the_head_reads_what_the_formula_says() -> None:
    """[h_graph, GELU(LN(W x))] times the projection; nothing is dropped at evaluation."""
    subject, graph = model(), known(random_graph(5, 7), 0.5, -2.0)
    reader = subject.head.descriptors
    assert reader is not None
    assert reader.encoder.linear is not None
    given = torch.tensor([[0.5, -2.0]], dtype=torch.float64) @ reader.encoder.linear.weight.T
    normed = (given - given.mean()) / (given.var(correction=0) + 1e-5).sqrt()
    read = torch.cat([subject.encode(graph).graph, F.gelu(normed)], 1)
    project = subject.head.project
    assert isinstance(project, torch.nn.Linear)
    torch.testing.assert_close(subject(graph), read @ project.weight.T + project.bias)


def test_they_change_the_output_and_nothing_before_it() -> None:
    subject, graph = model(), random_graph(6, 8)
    low, high = (known(graph, value, 1.0) for value in (0.0, 3.0))
    assert (subject(low) - subject(high)).abs().max() > 1e-4
    assert torch.equal(subject.encode(low).values, subject.encode(high).values)
    assert torch.equal(subject.embed(low), subject.embed(high))


def test_every_setting_here_has_a_test_of_its_effect() -> None:
    assert effects.missing == []


@effects.of(HeadDescriptors, "width")
def test_width_is_how_many_numbers_the_head_makes_of_them() -> None:
    for width in (3, 7):
        subject = model(descriptors=HeadDescriptors(width=width))
        reader, project = subject.head.descriptors, subject.head.project
        assert reader is not None
        assert isinstance(project, torch.nn.Linear)
        assert reader(GraphBatch.collate(described())).shape == (7, width)
        assert project.in_features == 16 + width


@effects.of(HeadDescriptors, "feature_dropout", "dropout")
def test_features_and_what_is_made_of_them_are_dropped_in_training_alone() -> None:
    """With one of the two off and all maps the identity, what is left shows the other."""
    numbers, batch = 500, GraphBatch.collate([known(Graph(num_nodes=1), *(1.0 + place for place in range(500)))])
    for rate in (0.2, 0.5):
        read = HeadDescriptors(numbers, feature_dropout=rate, dropout=0.0)
        reader = DescriptorReader(FeatureSpec(width=numbers), read)
        assert reader.encoder.linear is not None
        torch.nn.init.eye_(reader.encoder.linear.weight)
        plain = batch.graph_features
        assert plain is not None
        assert_dropped(reader.train().encoder(plain), plain, rate)
        assert torch.equal(reader.eval().encoder(plain), plain)
        made = DescriptorReader(FeatureSpec(width=numbers), HeadDescriptors(numbers, feature_dropout=0.0, dropout=rate))
        assert_dropped(made.train()(batch), made.eval()(batch), rate)


def test_every_graph_has_its_own() -> None:
    subject, graphs = model(), described()
    together = subject(graphs)
    alone = torch.cat([subject(graph) for graph in graphs])
    torch.testing.assert_close(together, alone, atol=1e-10, rtol=1e-10)


def test_numbering_does_not_matter() -> None:
    assert_permutation_invariant(model(), known(random_graph(7, 12), 1.0, -2.0))


def test_the_sum_over_tokens_is_read_beside_them_too() -> None:
    subject, graph = model(head=HeadConfig(readout="sum")), random_graph(6, 8)
    assert subject(known(graph, 0.0, 1.0)).item() != subject(known(graph, 3.0, 1.0)).item()


def test_categories_are_looked_up() -> None:
    subject, graph = model(FeatureSpec(categories=(3,))), random_graph(4, 4)
    parts = (graph.node_features, graph.edge_index, graph.edge_features)
    answers = [subject(Graph(*parts, graph_features=torch.tensor([[kind]]))).item() for kind in range(3)]
    assert len(set(answers)) == 3
    with pytest.raises(ValueError, match="this model expects 0 to 2"):
        subject(Graph(*parts, graph_features=torch.tensor([[3]])))


def test_features_that_are_missing_or_others_are_refused_in_one_sentence() -> None:
    for graph in (random_graph(4, 5), known(random_graph(4, 5), 1.0)):
        with pytest.raises(ValueError, match=r"graph_features is .*; this model expects 2 floats") as caught:
            model()(graph)
        assert "\n" not in str(caught.value)


def test_what_a_head_cannot_read_is_refused() -> None:
    with pytest.raises(ValueError, match="a head of level 'node' reads no features of whole graphs"):
        TokenGT(config(head=HeadConfig(level="node")))
    with pytest.raises(ValueError, match="there are none"):
        TokenGT(replace(config(), tokens=tokens_config()))
    with pytest.raises(ValueError, match="width of descriptors is 0"):
        HeadDescriptors(width=0)
    with pytest.raises(ValueError, match=r"feature_dropout of descriptors is 1\.0; expected 0 or more and below 1"):
        HeadDescriptors(feature_dropout=1.0)


def test_explanations_tell_what_they_have_done_and_sum_up() -> None:
    """Scores of tokens and of the numbers beside them are the whole way from the baseline to the prediction."""
    subject, graph = model(), known(odd_graphs()[5], 1.0, -2.0)
    found = attribution(subject, graph, "integrated_gradients")
    assert found.prediction == pytest.approx(subject(graph).item(), abs=1e-6)
    assert float(found.scores.sum()) == pytest.approx(found.prediction - found.reference, abs=found.tolerance or 0)
    assert found.against.endswith("; numbers about the whole graph are zero, as they are scaled")
    done = subject(graph).item() - subject(known(odd_graphs()[5], 0.0, 0.0)).item()
    assert abs(done) > 1e-4
    assert found.by_part["descriptors"].sum() == pytest.approx(done, rel=0.02)
    assert not found.by_part["descriptors"][1:].any()


def test_what_is_left_out_of_a_graph_does_not_change_them() -> None:
    """Occlusion asks the model without a token, with the numbers of the whole graph as they are."""
    subject, graph = model(), known(random_graph(4, 3), 1.0, -2.0)
    found = attribution(subject, graph, "occlusion")
    asked = TokenSubject(subject, GraphBatch.collate([graph]))
    nothing = torch.zeros(1, len(asked.tokens), dtype=torch.bool)
    assert asked.without(nothing).item() == pytest.approx(subject(graph).item(), abs=1e-9)
    assert found.prediction == pytest.approx(subject(graph).item(), abs=1e-9)
