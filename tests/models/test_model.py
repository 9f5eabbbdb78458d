import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graphs import graphs, hypergraph, odd_graphs, random_graph, random_ids, small_model, tokens_config
from tokengt import (
    EncoderConfig,
    FavorConfig,
    FeatureSpec,
    Graph,
    GraphBatch,
    HeadConfig,
    IdentifierConfig,
    LaplacianIds,
    NearOrthonormalIds,
    NoIds,
    OrfIds,
    SoftmaxConfig,
    TokenGT,
    TokenGTConfig,
    TokensConfig,
    load,
    presets,
)
from tokengt.models.pretrained import write_sealed
from tokengt.models.tokengt.identifiers import identifiers_of_kind
from tokengt.structure.laplacian import laplacian_fact

KINDS = ["orf", "laplacian", "near_orthonormal", "random", "orf_first_order", "random_first_order", "none"]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def attention_encoder(kind: str, **options: object) -> EncoderConfig:
    attention = FavorConfig() if kind == "favor" else SoftmaxConfig()
    return EncoderConfig(num_layers=2, num_heads=3, mlp_dim=32, attention=attention, **options)  # type: ignore[arg-type]


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    allowed = TOLERANCE[found.dtype] * max(1.0, float(expected.detach().abs().max()))
    assert float((found - expected).detach().abs().max()) <= allowed


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("attention", ["softmax", "favor"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_equals_its_graphs_one_at_a_time_in_any_order(kind: str, attention: str, dtype: torch.dtype) -> None:
    model = small_model(ids=identifiers_of_kind(kind, 6), encoder=attention_encoder(attention), dtype=dtype)  # type: ignore[arg-type]
    members = odd_graphs()
    batch = GraphBatch.collate(members)
    together = model(batch)
    assert_close(together, torch.cat([model(graph) for graph in members]))
    order = torch.randperm(len(members))
    assert_close(model(batch.select(order)), together[order])


@pytest.mark.parametrize("attention", ["softmax", "favor"])
@given(members=st.lists(graphs(), min_size=1, max_size=4))
@settings(max_examples=15)
def test_neighbours_never_matter(attention: str, members: list[Graph]) -> None:
    model = small_model(ids=OrfIds(6), encoder=attention_encoder(attention), dtype=torch.float64)
    crowd = GraphBatch.collate([*members, random_graph(20, 60)])
    assert_close(model(crowd)[: len(members)], torch.cat([model(graph) for graph in members]))


@pytest.mark.parametrize("layout", ["directed", "undirected"])
def test_node_and_edge_rows_are_batched_alike(layout: str) -> None:
    members = [random_graph(5, 8, 1, undirected=True), random_graph(1, 0, 2), random_graph(12, 20, 3, undirected=True)]
    for level in ("node", "edge"):
        model = small_model(tokens=tokens_config(layout=layout), head=HeadConfig(level=level), dtype=torch.float64)  # type: ignore[arg-type]
        together = model(GraphBatch.collate(members))
        assert_close(together, torch.cat([model(graph) for graph in members]))


def test_hypergraphs_and_order_three() -> None:
    members = [hypergraph(0), hypergraph(1)]
    tokens = TokensConfig.for_batch(GraphBatch.collate(members))
    model = small_model(tokens=tokens, dtype=torch.float64)
    assert_close(model(GraphBatch.collate(members)), torch.cat([model(graph) for graph in members]))
    triples = [
        Graph.from_hyperedges([[0, 1, 2], [1, 3], [0, 1, 2, 3]], torch.randn(4, 2), order=3),
        Graph.from_hyperedges([[0], [1, 0]], torch.randn(2, 2), order=3),
    ]
    tokens = TokensConfig(node_features=FeatureSpec(width=2), order=3, hyperedges=True)
    model = small_model(tokens=tokens, dtype=torch.float64)
    assert_close(model(GraphBatch.collate(triples)), torch.cat([model(graph) for graph in triples]))


def test_same_graph_same_prediction() -> None:
    for kind in KINDS:
        model = small_model(ids=identifiers_of_kind(kind, 6))  # type: ignore[arg-type]
        batch = GraphBatch.collate(odd_graphs())
        assert torch.equal(model(batch), model(batch)), kind


@pytest.mark.slow
def test_orf_predictions_depend_on_node_order_and_average_out() -> None:
    from tokengt.testing import permute_graph

    model, graph = small_model(ids=OrfIds(8)), random_graph(8, 14, 5)
    moved = permute_graph(graph, torch.randperm(8))
    assert not torch.allclose(model(graph), model(moved), atol=1e-4)
    many = model.predict(graph, draws=200), model.predict(moved, draws=200)
    spread = many[0].std.max() / math.sqrt(200)
    assert (many[0].mean - many[1].mean).abs().max() < 6 * spread


def test_predict_averages_draws_and_returns_their_spread() -> None:
    model = small_model(ids=OrfIds(6)).train()
    batch = GraphBatch.collate(odd_graphs())
    mean, std = model.predict(batch, draws=4)
    assert model.training
    model.eval()
    runs = torch.stack([model(batch, draw=draw) for draw in range(4)])
    assert torch.allclose(mean, runs.mean(0))
    assert torch.allclose(std, runs.std(0), atol=1e-6)
    single = model.predict(batch)
    assert torch.equal(single.mean, model(batch))
    assert single.std is None
    canonical = small_model(ids=LaplacianIds(6))
    assert canonical.predict(batch, draws=3).std.max() > 0
    blind = small_model(ids=NoIds())
    with pytest.raises(ValueError, match="no identifiers to draw; take the draws over dropout"):
        blind.predict(batch, draws=3)
    own = torch.randn(batch.num_nodes, canonical.config.identifiers.dim)
    assert torch.equal(canonical.predict(batch, node_ids=own).mean, canonical(batch, own))
    with pytest.raises(ValueError, match="node_ids are given"):
        canonical.predict(batch, node_ids=own, draws=2)


def test_callers_identifiers_are_used() -> None:
    model, batch = small_model(), GraphBatch.collate(odd_graphs())
    ids = random_ids(batch)
    assert not torch.allclose(model(batch, node_ids=ids), model(batch))
    assert torch.equal(model(batch, node_ids=ids), model(batch, ids))
    with pytest.raises(ValueError, match=r"node_ids is float32 of shape \[44, 4\]; expected floats of shape \[44, 5\]"):
        model(batch, node_ids=ids[:, :4])
    with pytest.raises(ValueError, match="NaN or an infinity"):
        model(batch, node_ids=ids * float("nan"))
    with pytest.raises(ValueError, match="model with 'none' identifiers, which takes none"):
        small_model(ids=NoIds())(batch, node_ids=ids)


def test_generators_decide_fresh_draws() -> None:
    model, batch = small_model(ids=OrfIds(6)), GraphBatch.collate(odd_graphs())
    one, same, other = (model(batch, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize(
    ("ids", "fresh"),
    [
        (OrfIds(5), True),
        (NearOrthonormalIds(5), True),
        (LaplacianIds(5), True),
        (LaplacianIds(5, sign_flip=False, dropout=0.4), True),
        (LaplacianIds(5, sign_flip=False), False),
        (NoIds(), False),
    ],
)
def test_training_draws_identifiers_anew_at_every_pass(ids: IdentifierConfig, fresh: bool) -> None:
    """There is no other chance in this model. At evaluation the same graph has the same identifiers every time."""
    model, graph = small_model(ids=ids), random_graph(9, 20)
    still = model(graph)
    assert torch.equal(model(graph), still)
    model.train()
    assert torch.equal(model(graph), model(graph)) != fresh
    assert torch.equal(model.eval()(graph), still)


def test_directions_of_edges_matter() -> None:
    """Swapping [P_u, P_v] shows when the two directions carry different features."""
    graph = random_graph(6, 9, 2)
    model = small_model(dtype=torch.float64)
    ids = random_ids(graph, dtype=torch.float64)
    swapped = Graph(graph.node_features, graph.edge_index.flip(0), graph.edge_features)
    assert (model(graph, node_ids=ids) - model(swapped, node_ids=ids)).abs().max() > 1e-3


def test_attention_maps_are_what_the_encoder_uses() -> None:
    model = small_model(encoder=EncoderConfig(num_layers=1, num_heads=3), dtype=torch.float64)
    batch = GraphBatch.collate(odd_graphs())
    (maps,) = model.attention_maps(batch)
    lengths = model.encode(batch).segments.host_lengths.tolist()
    assert [tuple(m.shape) for m in maps] == [(3, n, n) for n in lengths]
    assert torch.allclose(maps[5].sum(-1), torch.ones(3, lengths[5], dtype=torch.float64))
    block = model.encoder.blocks[0]
    tokens, _, _ = model._tokens(batch, None, None, 0)
    values = block.attention.heads.split(block.attention.qkv_proj(block.attention_norm(tokens.values)))[2].split(
        lengths
    )[5]
    mixed = (maps[5] @ values.transpose(0, 1)).transpose(0, 1).flatten(1)
    after = tokens.values.split(lengths)[5] + block.attention.out_proj(mixed)
    expected = model.encoder.final_norm(after + block.mlp(block.mlp_norm(after)))
    assert torch.allclose(model.encode(batch).values.split(lengths)[5], expected, atol=1e-10)


def test_switching_attention_on_a_trained_model() -> None:
    """Same weights; with many features FAVOR+ comes close to softmax, and switching back restores it."""
    model, batch = small_model(dtype=torch.float64), GraphBatch.collate(odd_graphs())
    with torch.no_grad():
        for block in model.encoder.blocks:
            block.attention.qkv_proj.weight.mul_(0.3)
    exact = model(batch)
    model.set_attention(FavorConfig(num_features=4000, eps=0.0))
    near = model(batch)
    assert 0 < (near - exact).abs().max() < 0.05 * exact.abs().max()
    assert model.config.encoder.attention.kind == "favor"
    model.set_attention(SoftmaxConfig())
    assert torch.equal(model(batch), exact)


def test_head_and_value_sizes_are_free() -> None:
    encoder = EncoderConfig(num_layers=1, num_heads=5, head_dim=7, value_dim=3)
    model = small_model(dim=16, encoder=encoder)
    assert model.encoder.blocks[0].attention.qkv_proj.weight.shape == (5 * 17, 16)
    assert torch.isfinite(model(random_graph(5, 6))).all()
    with pytest.raises(ValueError, match="dim 16 is no multiple of num_heads 5"):
        small_model(dim=16, encoder=EncoderConfig(num_heads=5))


@pytest.mark.parametrize("attention", ["softmax", "favor"])
def test_save_and_load(tmp_path: Path, attention: str) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = small_model(encoder=attention_encoder(attention), dtype=dtype)
        model.save_pretrained(tmp_path, overwrite=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
        loaded = TokenGT.from_pretrained(tmp_path).eval()
        assert loaded.config == model.config
        batch = GraphBatch.collate(odd_graphs())
        assert torch.equal(loaded(batch), model(batch))


def test_a_saved_model_is_not_lost_to_another(tmp_path: Path) -> None:
    """A loop saves its model again and again; a second model, or another program's config.json, has to be told."""
    folder, model = tmp_path / "model", small_model()
    model.save_pretrained(folder)
    with torch.no_grad():
        model.head.project.bias.add_(1.0)
    model.save_pretrained(folder)
    assert torch.equal(TokenGT.from_pretrained(folder).head.project.bias, model.head.project.bias)
    before, other = (folder / "model.safetensors").read_bytes(), small_model(head=HeadConfig(out_dim=5))
    with pytest.raises(
        ValueError, match=r"already holds config\.json and model\.safetensors of another .*overwrite=True"
    ):
        other.save_pretrained(folder)
    assert (folder / "model.safetensors").read_bytes() == before
    read = TokenGT.from_pretrained(folder)
    other.save_pretrained(folder, overwrite=True)
    for stale in (model, read):  # neither knows of the model that lies there now
        with pytest.raises(ValueError, match="of another model"):
            stale.save_pretrained(folder)
    TokenGT.from_pretrained(folder).save_pretrained(folder)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"already holds config\.json of another model"):
        model.save_pretrained(foreign)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "notes.txt").write_text("mine")
    model.save_pretrained(tmp_path / "beside")
    assert (tmp_path / "beside" / "notes.txt").read_text() == "mine"
    with pytest.raises(ValueError, match=r"notes\.txt is a file; expected a folder"):
        model.save_pretrained(tmp_path / "beside" / "notes.txt")


def test_a_name_of_a_hub_is_told_what_is_taken() -> None:
    with pytest.raises(ValueError, match=r"user/name does not exist; expected a folder .*nothing is downloaded"):
        TokenGT.from_pretrained("user/name")
    with pytest.raises(ValueError, match=r"user/name does not exist; expected a run's folder .*nothing is downloaded"):
        load("user/name")


def test_load_refuses_everything_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        TokenGT.from_pretrained(tmp_path)
    small_model().save_pretrained(tmp_path)
    description = json.loads((tmp_path / "config.json").read_text())
    description.pop("checksum")

    def rewrite(**changes: object) -> None:
        write_sealed(tmp_path / "config.json", description | changes)

    rewrite(format="pickle")
    with pytest.raises(ValueError, match="has format 'pickle'"):
        TokenGT.from_pretrained(tmp_path)
    rewrite(model=description["model"] | {"dims": 3})
    with pytest.raises(
        ValueError, match=r"dims is unknown for kind tokengt \(did you mean dim\?\); expected one of kind, dim, tokens"
    ):
        TokenGT.from_pretrained(tmp_path)
    for wrong in (None, 3, {"dim": 48}, {"tokens": 3}):
        rewrite(model=description["model"] | wrong if isinstance(wrong, dict) else wrong)
        with pytest.raises(ValueError, match=r"config\.json|tokens is 3"):
            TokenGT.from_pretrained(tmp_path)
    rewrite()
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:-1] + b"\x00")
    with pytest.raises(ValueError, match="does not match its checksum"):
        TokenGT.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        TokenGT.from_pretrained(tmp_path)


def test_bfloat16_and_autocast_stay_close() -> None:
    batch = GraphBatch.collate(odd_graphs())
    exact = small_model(dtype=torch.float64)(batch)
    half = small_model(dtype=torch.bfloat16)(batch)
    assert half.dtype == torch.bfloat16
    assert (half.double() - exact).abs().max() < 0.1 * exact.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = small_model()(batch)
    assert (mixed.double() - exact).abs().max() < 0.1 * exact.abs().max()


def test_initialisation() -> None:
    model = TokenGT(replace(presets.small(), dim=256, encoder=EncoderConfig(num_layers=1, num_heads=8)))
    for name, weight in model.named_parameters():
        parameter = weight.detach()
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif parameter.numel() > 2000:
            assert abs(float(parameter.std()) - 0.02) < 0.002, name
            assert abs(float(parameter.mean())) < 0.002, name
    assert model.tokenizer.special_tokens.abs().max() > 0


@pytest.mark.slow
def test_training_overfits_four_graphs() -> None:
    """Graph labels that only structure tells: cycle or two triangles, path or star."""
    cycle = [[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]
    triangles = [[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]]
    path, star = [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]], [[0, 0, 0, 0, 0], [1, 2, 3, 4, 5]]
    members = []
    for index in (cycle, triangles, path, star):
        directed = torch.tensor(index)
        members.append(Graph(edge_index=torch.cat([directed, directed.flip(0)], 1), num_nodes=6))
    batch, target = GraphBatch.collate(members), torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    torch.manual_seed(0)
    model = TokenGT(
        TokenGTConfig(
            dim=32,
            identifiers=LaplacianIds(6),
            encoder=EncoderConfig(num_layers=2, num_heads=4, mlp_dim=64),
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(300):
        loss = (model(batch) - target).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-20:]) / 20 < 0.2 * losses[0]


COMPILE = """
import torch
from tests.graphs import odd_graphs, random_graph, small_model
from tokengt import EncoderConfig, GraphBatch

model = small_model(encoder=EncoderConfig(num_layers=2, num_heads=3, drop_path=0.1))
compiled = torch.compile(model, backend="inductor")
for members in (odd_graphs(), odd_graphs()[2:], [random_graph(30, 70)]):
    batch = GraphBatch.collate(members)
    assert torch.allclose(compiled(batch), model(batch), atol=1e-5)
    expected = torch.autograd.grad(model(batch).sum(), model.parameters(), allow_unused=True)
    found = torch.autograd.grad(compiled(batch).sum(), model.parameters(), allow_unused=True)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.allclose(mine, theirs, atol=1e-3), (mine - theirs).abs().max()
model.train()
assert torch.isfinite(compiled(batch)).all()
"""


@pytest.mark.slow
def test_compile_gives_the_same_numbers() -> None:
    """In a process of its own: dynamo cannot trace the shape checks that the tests put around every function."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", COMPILE], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_wrong_device_is_named() -> None:
    with pytest.raises(ValueError, match="the batch is on cpu but the model is on meta"):
        small_model().to("meta")(random_graph(2, 1))


@pytest.mark.parametrize("training", [True, False])
def test_shapes_without_numbers(training: bool) -> None:
    """The meta device has shapes only, and no autocast: a whole forward asks it for nothing else."""
    graphs = GraphBatch.collate([random_graph(5, 8, seed) for seed in range(3)]).narrowed()
    with_vectors = graphs.with_fact(laplacian_fact(4, "lowest"), torch.randn(15, 4)).to("meta")
    model = small_model(ids=LaplacianIds(4)).to("meta").train(training)
    assert model(with_vectors.select([2, 0])).shape == (2, model.config.head.out_dim)


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="Graph"):
        small_model()([1, 2, 3])


def test_the_papers_presets_have_the_papers_sizes() -> None:
    assert (presets.regression("laplacian").identifiers.dim, presets.regression("orf").identifiers.dim) == (16, 64)
    assert (presets.basis("laplacian").identifiers.dim, presets.basis("orf").identifiers.dim) == (20, 24)
    basis = presets.basis()
    assert (basis.dim, basis.encoder.num_heads, basis.encoder.head_dim) == (1024, 15, 128)
    assert TokenGTConfig.from_dict(json.loads(json.dumps(basis.to_dict()))) == basis


def test_predict_and_maps_leave_the_mode_as_it_was() -> None:
    model = small_model(ids=OrfIds(5), encoder=attention_encoder("softmax", mlp_dropout=0.5)).train()
    graph = random_graph(4, 5)
    first, second = model.attention_maps(graph), model.attention_maps(graph)
    assert torch.equal(first[1][0], second[1][0])
    with pytest.raises(ValueError, match="draws is 0"):
        model.predict(graph, draws=0)
    with pytest.raises(ValueError, match="node_features is none"):
        model.predict(Graph(num_nodes=2))
    assert model.training
    model.encoder.blocks[0].eval()
    model.predict(graph)
    assert not model.encoder.blocks[0].training
    assert model.encoder.blocks[1].training


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: TokenGTConfig(dim=0), "dim is 0"),
        (lambda: EncoderConfig(head_dim=0), "head_dim is 0"),
        (lambda: EncoderConfig(mlp_dim=-1), "mlp_dim is -1"),
        (lambda: FavorConfig(eps=-1.0), "eps is -1"),
        (lambda: FeatureSpec(width=-3), "width of 0 or more"),
        (lambda: FeatureSpec(categories=(0, 4)), "1 or more each"),
        (lambda: TokenGT(TokenGTConfig(tokens=TokensConfig(graph_token=False))), "reads the .graph. token"),
    ],
)
def test_configs_refuse_nonsense(build: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()


def test_bare_tokens_in_double_precision() -> None:
    tokens = TokensConfig(type_ids=False, graph_token=False)
    head = HeadConfig(level="node")
    model = small_model(tokens=tokens, ids=NoIds(), head=head, dtype=torch.float64)
    assert model(Graph(num_nodes=3)).dtype == torch.float64


@pytest.mark.parametrize("layout", ["directed", "undirected"])
@pytest.mark.parametrize(("graph_token", "null_token"), [(True, False), (False, True), (True, True), (False, False)])
def test_the_rule_says_how_long_sequences_are(layout: str, graph_token: bool, null_token: bool) -> None:
    tokens = tokens_config(layout=layout, graph_token=graph_token, null_token=null_token)
    head = HeadConfig() if graph_token else HeadConfig(readout="sum")
    model = small_model(tokens=tokens, head=head)
    graphs = [random_graph(nodes, nodes, nodes, undirected=True) for nodes in (1, 2, 7, 12)]
    batch = model.prepared(GraphBatch.collate([*graphs, random_graph(4, 0)]))
    rule = model.sequence_rule()
    assert rule is not None
    undirected = batch.merged.segments.lengths if batch.merged is not None else torch.zeros(5, dtype=torch.int64)
    counted = rule.graph + rule.node * batch.nodes.lengths + rule.edge * batch.edges.lengths
    lengths = model.encode(batch).segments.lengths
    assert torch.equal(counted + rule.undirected * undirected, lengths)


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder": EncoderConfig(num_layers=1, num_heads=2, attention=FavorConfig())},
        {"encoder": EncoderConfig(num_layers=1, num_heads=2, sparse_basis_residual=True)},
        {"head": HeadConfig(level="link")},
        {"tokens": TokensConfig(hyperedges=True)},
        {"tokens": TokensConfig(order=3)},
        {"identifiers": identifiers_of_kind("orf_first_order", 4)},
        {"identifiers": identifiers_of_kind("random_first_order", 4)},
    ],
    ids=str,
)
def test_steps_that_differ_from_each_other_have_no_rule(changes: dict[str, object]) -> None:
    plain = TokenGTConfig(dim=8, encoder=EncoderConfig(num_layers=1, num_heads=2), identifiers=OrfIds(4))
    assert TokenGT(plain).sequence_rule() is not None
    assert TokenGT(replace(plain, **changes)).sequence_rule() is None  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_identifiers_drawn_beforehand_are_those_of_the_step(kind: str) -> None:
    """Of orthogonal random features; all others can be drawn inside of a recording."""
    model = small_model(ids=identifiers_of_kind(kind, 5), dtype=torch.float64).train()  # type: ignore[arg-type]
    batch = GraphBatch.collate(odd_graphs())
    torch.manual_seed(3)
    drawn = model.drawn_node_ids(batch.nodes)
    assert (drawn is None) == (kind != "orf")
    if drawn is not None:
        torch.manual_seed(3)
        torch.testing.assert_close(model(batch, node_ids=drawn), model(batch), rtol=0, atol=0)
