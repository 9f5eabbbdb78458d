"""Who may ask, and the headers of every answer."""

import pytest

from tests.serve.client import Running
from tokengt.serve.guarding import Hosts


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "[::1]:80", "LOCALHOST", "127.9.9.9"])
def test_names_of_loopback(host: str) -> None:
    assert Hosts().allows(host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "127.0.0.1.evil.example", "10.0.0.1", "localhost@evil", "a b", "[::1", "127.0.0.1/x", "1"],
)
def test_other_names_are_refused(host: str) -> None:
    """A page of another site may have its own name resolve to this machine; it is that name which the header has."""
    assert not Hosts().allows(host)


def test_a_server_for_other_machines_has_their_addresses_and_its_name() -> None:
    hosts = Hosts("0.0.0.0")
    assert not hosts.is_loopback
    assert hosts.allows("10.0.0.1:8000")
    assert not hosts.allows("evil.example")
    assert Hosts("box.local").allows("box.local:8000")
    assert Hosts("::1").is_loopback


def test_names_and_pages_of_others_are_refused(server: Running) -> None:
    assert server.get("/health", Host="evil.example").status == 403
    own = f"127.0.0.1:{server.port}"
    body, json = '{"smiles": ["C"]}', "application/json"
    for headers, status in (
        ({"Origin": f"http://{own}"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ):
        answer = server.ask("POST", "/api/predict", body, {"Content-Type": json, **headers})
        assert answer.status == status, headers
    # A link on another page may lead here.
    assert server.get("/", **{"Sec-Fetch-Site": "cross-site"}).status == 200


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/api/run", "/nothing", "/metrics", "/api/picture?smiles=C"])
def test_every_answer_has_the_headers(server: Running, path: str) -> None:
    headers = server.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers or "uvicorn" in headers["server"]
    if not path.startswith("/api/picture"):
        assert "unsafe-inline" not in headers["content-security-policy"]


def test_the_page_has_no_inline_script_or_style(server: Running) -> None:
    page = server.get("/").body.decode()
    assert " style=" not in page
    assert "<style" not in page
    assert "onclick" not in page
    assert page.count("<script") == page.count('<script type="module" src=') == 1
    assert "http://" not in page
    assert "https://" not in page
