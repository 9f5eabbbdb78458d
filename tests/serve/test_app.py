"""What the server answers: the predictions of ``tokengt predict``, or one sentence."""

import asyncio
import csv
import io
import json
from pathlib import Path

import networkx as nx
import pytest

from tests.serve.client import Running, run_async, running
from tests.serve.conftest import path_graph
from tests.workflow.small import molecules, read_csv, train_small, write_csv
from tokengt.explain.page.words import number
from tokengt.inference import Predictor, load
from tokengt.serve import explaining
from tokengt.serve.app import create_app
from tokengt.workflow.fitting import TrainOptions
from tokengt.workflow.predicting import predict_file

TEXTS = molecules(12)[0]
TABLE = "name,smiles\n" + "".join(f"m{place},{text}\n" for place, text in enumerate([*TEXTS, "C1CC", "<b>C</b>"]))


def test_json_has_the_predictions_of_python_bit_for_bit(server: Running, predictor: Predictor) -> None:
    expected = predictor.predict([*TEXTS, "C1CC"])
    answer = server.post("/api/predict", {"smiles": [*TEXTS, "C1CC"], "alone": True})
    assert answer.status == 200
    content = answer.json()
    assert content["columns"] == ["smiles", "predicted_y", "predicted_z", "reason"]
    found = [[row["predicted_y"], row["predicted_z"]] for row in content["rows"]]
    assert found[:-1] == expected.mean[:-1].tolist()
    assert found[-1] == [None, None]
    assert content["rows"][-1]["reason"] == expected.problems[12]
    assert (content["predicted"], content["refused"]) == (12, 1)


def test_a_table_gives_the_bytes_of_predict(server: Running, run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(TABLE)
    predict_file(run, tmp_path / "in.csv", tmp_path / "out.csv", quiet=True, device="cpu")
    answer = server.table(TABLE)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert answer.body == (tmp_path / "out.csv").read_bytes()
    assert answer.body.count(b"cannot be read") == 2


@pytest.mark.parametrize(
    ("kind", "ending"),
    [("text/tab-separated-values", ".tsv"), ("text/plain", ".smi"), ("chemical/x-mdl-sdfile", ".sdf")],
)
def test_other_kinds_of_tables(server: Running, run: Path, tmp_path: Path, kind: str, ending: str) -> None:
    from rdkit import Chem

    if ending == ".sdf":
        text = "".join(Chem.MolToMolBlock(Chem.MolFromSmiles(each)) + "> <id>\n7\n\n$$$$\n" for each in TEXTS[:3])
    else:
        text = "".join(f"{each}\tname {place}\n" for place, each in enumerate(TEXTS[:3]))
        text = f"smiles\tname\n{text}"
    (tmp_path / f"in{ending}").write_text(text)
    predict_file(run, tmp_path / f"in{ending}", tmp_path / "out.csv", quiet=True, device="cpu")
    assert server.table(text, kind).body == (tmp_path / "out.csv").read_bytes()


def test_a_column_can_be_named(server: Running) -> None:
    text = TABLE.replace("name,smiles", "name,structure")
    refusal = server.table(text)
    assert refusal.status == 422
    assert "the table has no column 'smiles'" in refusal.error
    assert "/tmp" not in refusal.error
    answer = server.table(text, query="?smiles=structure")
    assert answer.body.replace(b"structure", b"smiles") == server.table(TABLE).body


def test_csv_is_given_to_whoever_accepts_it(server: Running) -> None:
    headers = {"Content-Type": "application/json", "Accept": "text/csv"}
    answer = server.ask("POST", "/api/predict", json.dumps({"smiles": TEXTS[:2], "alone": True}), headers)
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    assert [row["smiles"] for row in rows] == TEXTS[:2]
    assert answer.body == server.table("smiles\n" + "\n".join(TEXTS[:2])).body


def test_intervals_and_neighbours_are_those_of_predict(trusted: Path, trusted_server: Running, tmp_path: Path) -> None:
    text = TABLE + "pt,[Pt]\n"
    (tmp_path / "in.csv").write_text(text)
    predict_file(trusted, tmp_path / "in.csv", tmp_path / "out.csv", interval=0.9, quiet=True, device="cpu")
    assert trusted_server.table(text, query="?interval=0.9").body == (tmp_path / "out.csv").read_bytes()
    told = trusted_server.get("/api/run").json()
    assert told["beside"] == {
        "interval": 0.9,
        "neighbours": True,
        "columns": ["low_y", "high_y", "similarity", "distance", "unlike_training"],
    }
    asked = {"smiles": ["c1ccccc1CCCC", "[Pt]", "C1CC"], "alone": True, "interval": 0.9}
    content = trusted_server.post("/api/predict", asked).json()
    assert content["columns"] == ["smiles", *told["columns"], *told["beside"]["columns"], "reason"]
    expected = load(trusted, "cpu").predict(asked["smiles"], interval=0.9)
    assert expected.low is not None
    assert [row["low_y"] for row in content["rows"][:2]] == expected.low[:2, 0].tolist()
    assert [row["unlike_training"] for row in content["rows"]] == [False, True, None]
    assert content["rows"][2]["low_y"] is None
    plain = trusted_server.post("/api/predict", {"smiles": ["CCO"]}).json()
    assert plain["columns"] == ["smiles", "predicted_y", "reason"]


def test_what_the_run_cannot_tell_is_said(server: Running) -> None:
    """Four validation rows are too few for an interval."""
    told = server.get("/api/run").json()["beside"]
    assert (told["interval"], told["neighbours"]) == (None, True)
    for answer in (
        server.table(TABLE, query="?interval=0.9"),
        server.post("/api/predict", {"smiles": ["C"], "interval": 0.9}),
    ):
        assert (answer.status, answer.json()["field"]) == (422, "interval")
        assert "this run has no intervals: its validation part had too few labels" in answer.error
    for query in ("nan", "2", "-1", "x"):
        assert server.table(TABLE, query=f"?interval={query}").status == 422


def test_draws_have_a_spread(predictor: Predictor) -> None:
    with running(predictor, draws=3) as server:
        row = server.post("/api/predict", {"smiles": ["c1ccccc1O"]}).json()["rows"][0]
        expected = predictor.predict(["c1ccccc1O"], draws=3)
        assert expected.std is not None
        assert [row["predicted_y"], row["predicted_z"]] == expected.mean[0].tolist()
        assert [row["std_y"], row["std_z"]] == expected.std[0].tolist()
        assert server.get("/api/run").json()["spread"] is True


def test_classes_have_their_chances_and_descriptors_come_with_the_rows(tmp_path: Path) -> None:
    smiles, values = molecules(30)
    labels = ["low" if value < -3 else "middle" if value < -1.5 else "high" for value in values]
    rows = [(text, label, len(text), place / 3) for place, (text, label) in enumerate(zip(smiles, labels, strict=True))]
    source = write_csv(tmp_path / "data.csv", ("smiles", "class", "length", "third"), rows)
    options = TrainOptions(quiet=True, workers=1, descriptors=("length", "third"))
    trained = train_small(source, tmp_path / "run", "class", options=options, task="multiclass")
    names = trained.task.classes
    assert names is not None
    with running(trained) as server:
        assert "the columns length, third" in server.get("/api/run").json()["file_only"]
        numbers = [[len(text), 0.1] for text in smiles[:3]]
        asked = {"smiles": [*smiles[:3], "C1CC"], "descriptors": [*numbers, [1, 2]], "alone": True}
        answer = server.post("/api/predict", asked).json()["rows"]
        chances = trained.predict(smiles[:3], descriptors=numbers).mean
        assert [[row[f"probability_{name}"] for name in names] for row in answer[:3]] == chances.tolist()
        assert [row["predicted_class"] for row in answer[:3]] == [names[place] for place in chances.argmax(1)]
        assert answer[3]["predicted_class"] is None
        refusal = server.post("/api/predict", {"smiles": smiles[:3]})
        assert (refusal.status, refusal.json()["field"]) == (422, "descriptors")
        short = server.post("/api/predict", {"smiles": smiles[:3], "descriptors": [[1], [2], [3]]})
        assert "descriptors[0] has 1 numbers; expected 2 numbers: length, third" in short.error
        explaining.prepare(trained, tmp_path / "run", 100)
        page = explaining.page_of(explaining.Explained("CCO", 0, (3.0, 0.5)), 1)
        assert page.startswith(b"<!doctype html>")
        table = server.table("smiles,length,third\nCCO,3,x\nCCO,3,0.5\n")
        assert [line.count(b"expected a number") for line in table.body.splitlines()] == [0, 1, 0]


def test_graphs_are_predicted_as_their_files_are(graph_run: Path, graph_server: Running, tmp_path: Path) -> None:
    graphs = [nx.node_link_data(path_graph(nodes), edges="edges") for nodes in (3, 5, 4)]
    graphs.append({"nodes": [{"id": 0, "kind": 9}], "edges": []})  # A category that no graph of the training has.
    graphs.append({"nodes": [{"id": 0}], "edges": []})  # The attribute is missing.
    (tmp_path / "in").mkdir()
    for place, graph in enumerate(graphs):
        (tmp_path / "in" / f"{place}.json").write_text(json.dumps(graph))
    predict_file(graph_run, tmp_path / "in", tmp_path / "out.csv", quiet=True, device="cpu")
    expected = read_csv(tmp_path / "out.csv")
    answer = graph_server.post("/api/predict", {"graphs": graphs, "alone": True}).json()
    found = answer["rows"]
    assert [row["graph"] for row in found] == [1, 2, 3, 4, 5]
    for row, file in zip(found, expected, strict=True):
        cell = "" if row["predicted_length"] is None else f"{row['predicted_length']:.12g}"
        assert cell == file["predicted_length"]
        assert (row["reason"] is None) == (file["reason"] == "")
        assert (row["reason"] or "") in file["reason"]
    assert [row["reason"] is None for row in found] == [True, True, True, False, False]
    explaining.prepare(load(graph_run, "cpu"), None, 100)
    assert explaining.page_of(explaining.Explained(graphs[0]), 1).startswith(b"<!doctype html>")
    with pytest.raises(ValueError, match="node 0 has no attribute 'kind'"):
        explaining.page_of(explaining.Explained(graphs[4]), 1)
    wrong = graph_server.post("/api/predict", {"smiles": ["C"]})
    assert (wrong.status, wrong.json()["field"]) == (422, "smiles")
    assert "trained on graphs that are no molecules" in graph_server.table(TABLE).error
    large = {"nodes": [{"id": place, "kind": 0} for place in range(6000)], "edges": []}
    assert graph_server.post("/api/predict", {"graphs": [large]}).status == 413


def test_one_bad_graph_does_not_spoil_the_batch_of_others(graph_server: Running) -> None:
    """A graph that the model refuses is joined with those of other requests, and costs them nothing."""
    good = nx.node_link_data(path_graph(4), edges="edges")
    bad = {"nodes": [{"id": 0, "kind": 9}], "edges": []}
    alone = graph_server.post("/api/predict", {"graphs": [good], "alone": True}).json()["rows"][0]

    async def both() -> list[dict[str, object]]:
        asked = [asyncio.to_thread(graph_server.post, "/api/predict", {"graphs": [graph]}) for graph in (good, bad)]
        return [answer.json()["rows"][0] for answer in await asyncio.gather(*asked)]

    before = graph_server.metric("tokengt_batch_rows_count")
    with graph_server.app.state.service.batcher.coming():
        first, second = run_async(both())
    assert graph_server.metric("tokengt_batch_rows_count") == before + 1
    assert first["predicted_length"] == pytest.approx(alone["predicted_length"], abs=1e-5)
    assert second["predicted_length"] is None
    assert "categor" in str(second["reason"])


def test_the_application_needs_no_socket(predictor: Predictor) -> None:
    """It is a plain ASGI application, for tests and for servers of a user's own."""
    app = create_app(predictor)
    sent: list[dict[str, object]] = []

    async def once() -> None:
        body = json.dumps({"smiles": ["CCO"]}).encode()
        waiting = asyncio.Event()
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, object]:
            for message in messages:
                return message
            await waiting.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/api/predict",
            "raw_path": b"/api/predict",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)

    run_async(once())
    assert sent[0]["status"] == 200
    content = json.loads(b"".join(part["body"] for part in sent[1:]))  # type: ignore[misc]
    assert content["rows"][0]["predicted_y"] == float(predictor.predict(["CCO"]).mean[0, 0])


def test_the_description_knows_what_can_stand_beside_predictions(server: Running) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    body = paths["/api/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert {"interval", "neighbours"} <= set(body)
    assert {"smiles", "interval", "neighbours"} == {each["name"] for each in paths["/api/table"]["post"]["parameters"]}


def test_the_page_and_its_files(server: Running) -> None:
    page = server.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for name in ("page.js", "style.css", "molecule.js", "icon.svg"):
        assert server.get(f"/static/{name}").status == 200
    for name in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "app.py", "page.js%00", ""):
        assert server.get(f"/static/{name}").status == 404
    assert server.get("/health").json() == {"status": "ready"}


def test_an_explanation_says_how_far_to_trust(trusted: Path, trusted_server: Running) -> None:
    expected = load(trusted, "cpu").predict("[Pt]", interval=0.9)
    assert expected.low is not None
    page = trusted_server.get(
        f"/{trusted_server.post('/api/explain', {'smiles': '[Pt]'}).json()['page']}"
    ).body.decode()
    assert f'"interval":"{number(expected.low[0, 0])} to'.replace("\u2212", "\\u2212") in page
    assert '"warning":"Unlike anything trained on: ' in page


def test_an_explanation_is_a_page_of_its_own(server: Running) -> None:
    answer = server.post("/api/explain", {"smiles": "CCO"})
    assert answer.status == 200, answer.body
    page = server.get(f"/{answer.json()['page']}")
    assert page.headers["content-type"].startswith("text/html")
    assert "sandbox allow-scripts" in page.headers["content-security-policy"]
    assert b"CCO" in page.body
    assert server.get("/explanations/none").status == 404
    assert "cannot be read" in server.post("/api/explain", {"smiles": "C1CC"}).error
    large = server.post("/api/explain", {"smiles": "C" * 150})
    assert (large.status, "150 atoms; expected at most 100" in large.error) == (422, True)
    # A file of the server's machine is no molecule.
    assert "cannot be read" in server.post("/api/explain", {"smiles": "/etc/passwd"}).error
