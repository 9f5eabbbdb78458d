"""Atoms that are hidden from a model, and guessed by it."""

from dataclasses import replace

import pytest
import torch

from tokengt.batch import GraphBatch
from tokengt.interop.smiles import from_smiles
from tokengt.models.tokengt.masking import HIDDEN, HIDING, MaskedAtoms
from tokengt.models.tokengt.model import TokenGT
from tokengt.presets import small


def _model() -> MaskedAtoms:
    config = small()
    return MaskedAtoms(TokenGT(replace(config, dim=16, encoder=replace(config.encoder, num_layers=1, num_heads=2))))


def _batch() -> GraphBatch:
    return GraphBatch.collate([from_smiles(text) for text in ("CCOC(=O)c1ccccc1", "O", "CC(N)C(=O)O.Cl", "C" * 30)])


def test_the_same_seed_hides_the_same_atoms() -> None:
    model, batch = _model().train(), _batch()
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(model.hidden(batch))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_fifth_of_the_atoms_of_every_second_molecule_is_hidden() -> None:
    batch = GraphBatch.collate([from_smiles("C" * 50)] * 400)
    hidden = _model().train().hidden(batch).view(400, 50)
    assert float(hidden.float().mean()) == pytest.approx(HIDDEN * HIDING, abs=0.01)
    assert float((~hidden.any(1)).float().mean()) == pytest.approx(1 - HIDING, abs=0.08)


def test_hidden_atoms_say_nothing_but_what_is_lost() -> None:
    """Other features under the mask change no output; only the loss of guessing them, the last column, differs."""
    model, batch = _model().eval(), _batch()
    hidden = model.hidden(batch)
    assert hidden.any()
    assert not hidden.all()
    features = batch.node_features
    assert isinstance(features, torch.Tensor)
    other = batch.with_node_features(torch.where(hidden[:, None], torch.zeros_like(features), features))
    before, after = model(batch), model(other)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])
    # A model that has learned nothing is undecided: nearly the mean over columns of the logarithm of their sizes.
    undecided = torch.tensor(model.categories).float().log().mean()
    atoms = torch.zeros(4).index_add(0, batch.nodes.ids, hidden.float())
    assert torch.allclose(before[:, -1], atoms * undecided, rtol=0.05)


def test_what_is_hidden_at_evaluation_does_not_depend_on_the_batch() -> None:
    model, batch = _model().eval(), _batch()
    alone = torch.cat([model(batch.select([place])) for place in range(4)])
    assert torch.allclose(model(batch), alone, atol=1e-5)


def test_nodes_without_categories_are_refused() -> None:
    config = small()
    with pytest.raises(ValueError, match="guessed by their categories"):
        MaskedAtoms(TokenGT(replace(config, head=replace(config.head, level="node"))))
