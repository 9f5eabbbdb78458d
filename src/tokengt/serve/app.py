"""The application: routes, each of which parses, calls the service and writes an answer.

It can be tested without a socket, and mounted in a server of your own; ``tokengt serve`` runs it with uvicorn
(:mod:`tokengt.serve.running`).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

from tokengt._version import __version__
from tokengt.inference import Predictor
from tokengt.serve import asking, schemas
from tokengt.serve.answering import Answer
from tokengt.serve.guarding import CLOSE, Guard, Hosts, read_body
from tokengt.serve.limits import Limits
from tokengt.serve.metrics import CONTENT_TYPE, Metrics
from tokengt.serve.problems import Problem
from tokengt.serve.service import Service
from tokengt.serve.static_files import INDEX, read_static
from tokengt.workflow.beside import Beside

T = TypeVar("T")
CSV = "text/csv"
# Every character of an address may take twelve bytes, and all headers together have 64 KiB.
_LONGEST_IN_ADDRESS = 2000
# What can be wrong with any request that has a body and makes work.
_WORKING = (400, 408, 409, 413, 415, 422, 503, 504)


def create_app(
    predictor: Predictor,
    limits: Limits | None = None,
    *,
    draws: int = 1,
    hosts: Hosts | None = None,
    folder: Path | None = None,
) -> FastAPI:
    """The web page of a run and its API.

    Args:
        predictor: the run.
        limits: what may be asked for.
        draws: passes of each model that are averaged, over identifiers; more than one give predictions a spread.
        hosts: under which names the server may be asked.
        folder: where the run lies, so that explanations can be compared with its data.

    Raises:
        ValueError: one sentence: the run's models cannot be drawn from so.
    """
    limits, metrics = limits or Limits(), Metrics()
    service = Service(predictor, limits, draws, metrics, folder)

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        await service.open()
        yield
        await service.close()

    app = FastAPI(
        title="tokengt serve",
        version=__version__,
        lifespan=living,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.add_middleware(Guard, hosts=hosts or Hosts(), metrics=metrics)
    for kind in (Problem, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _refused)
    _add_pages(app, service)
    _add_predictions(app, service)
    _add_drawings(app, service)
    _add_explanations(app, service)
    app.openapi = partial(_described, app)  # type: ignore[method-assign]
    return app


def _add_pages(app: FastAPI, service: Service) -> None:
    static = read_static()

    @app.get("/", summary="The web page", responses=schemas.answers("text/html", None))
    async def index() -> Response:
        return static[INDEX].response()

    @app.get("/static/{name}", include_in_schema=False)
    async def static_file(name: str) -> Response:
        if name not in static:
            raise Problem(404, "there is no such file", "name")
        return static[name].response()

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> Response:
        return _json(app.openapi())

    @app.get("/health", summary="Whether it works", responses=schemas.answers("application/json", schemas.HEALTH))
    async def health() -> Response:
        return _json({"status": "ready"})

    @app.get("/metrics", summary="Counters, for Prometheus", responses=schemas.answers("text/plain", None))
    async def metrics() -> Response:
        return Response(service.metrics.text(service.gauges()), media_type=CONTENT_TYPE)

    @app.get("/api/run", summary="The run", responses=schemas.answers("application/json", schemas.RUN))
    async def run() -> Response:
        return _json(service.describe())


def _add_predictions(app: FastAPI, service: Service) -> None:
    @app.post(
        "/api/predict",
        summary="Predict molecules or graphs",
        openapi_extra=schemas.body(schemas.prediction(service.needs, service.limits)),
        responses=schemas.answers("application/json", schemas.ROWS, *_WORKING, also=CSV),
    )
    async def predict(request: Request) -> Response:
        body = await _json_body(request, service)
        asked = asking.asked_prediction(body, service.needs, service.limits)
        answer = await _within(request, service, service.predict(asked))
        if CSV in request.headers.get("accept", ""):
            return _csv(answer)
        return _json(answer.json())

    @app.post(
        "/api/table",
        summary="Predict a table: what tokengt predict writes for such a file",
        openapi_extra=schemas.table_body(),
        responses=schemas.answers(CSV, {"type": "string"}, *_WORKING),
    )
    async def table(
        request: Request,
        smiles: str | None = Query(None, max_length=1000),
        interval: float | None = None,
        neighbours: bool = False,
    ) -> Response:
        ending = asking.TABLE_TYPES.get(asking.media_type(request.headers.get("content-type")))
        if ending is None:
            raise _unsupported(request, *asking.TABLE_TYPES)
        body = await read_body(request, service.limits.body, service.limits.slow_seconds)
        work = service.predict_table(body, ending, smiles, Beside(interval, neighbours))
        answer = await _within(request, service, work)
        return _csv(answer)


def _add_drawings(app: FastAPI, service: Service) -> None:
    @app.post(
        "/api/sketch",
        summary="The SMILES of a drawing",
        openapi_extra=schemas.body(schemas.SKETCH),
        responses=schemas.answers("application/json", schemas.ONE_SMILES, *_WORKING),
    )
    async def sketch(request: Request) -> Response:
        drawing = asking.asked_sketch(await _json_body(request, service))
        return _json({"smiles": await _within(request, service, service.smiles_of(drawing))})

    @app.post(
        "/api/layout",
        summary="The drawing of a SMILES",
        openapi_extra=schemas.body(schemas.ONE_SMILES),
        responses=schemas.answers("application/json", schemas.DRAWN, *_WORKING),
    )
    async def layout(request: Request) -> Response:
        smiles = asking.asked_layout(await _json_body(request, service))
        return _json(await _within(request, service, service.drawing_of(smiles)))

    @app.get(
        "/api/picture",
        summary="A small picture of a molecule",
        responses=schemas.answers("image/svg+xml", {"type": "string"}, 409, 422, 503, 504),
    )
    async def picture(
        request: Request, smiles: str = Query(max_length=_LONGEST_IN_ADDRESS), dark: bool = False
    ) -> Response:
        svg = await _within(request, service, service.picture_of(smiles, dark))
        return Response(svg, media_type="image/svg+xml", headers=_PICTURE)


def _add_explanations(app: FastAPI, service: Service) -> None:
    @app.post(
        "/api/explain",
        summary="Explain the prediction of one molecule or graph",
        openapi_extra=schemas.body(schemas.explanation(service.needs)),
        responses=schemas.answers("application/json", schemas.EXPLAINED, *_WORKING),
    )
    async def explain(request: Request) -> Response:
        body = await _json_body(request, service)
        work = service.explain(asking.asked_explanation(body, service.needs, service.limits))
        name = await _within(request, service, work, "explain_seconds")
        return _json({"page": f"explanations/{name}"})

    @app.get(
        "/explanations/{name}",
        summary="An explanation that was asked for a while ago",
        responses=schemas.answers("text/html", None, 404),
    )
    async def explanation(name: str) -> Response:
        page = service.pages.get(name)
        if page is None:
            raise Problem(404, "there is no such explanation any more; ask for it again", "name")
        return Response(page, media_type="text/html", headers=_EXPLANATION)


# A page that explains runs its own script, whose checksum it names itself; it has no origin, so that it can neither ask
# this server for anything nor read what others have asked.
_EXPLANATION = {
    "Content-Security-Policy": "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
}
# A picture may style itself, and nothing else.
_PICTURE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "Cache-Control": "private, max-age=3600",
}


async def _json_body(request: Request, service: Service) -> bytes:
    if asking.media_type(request.headers.get("content-type")) != asking.JSON_TYPE:
        raise _unsupported(request, asking.JSON_TYPE)
    return await read_body(request, service.limits.body, service.limits.slow_seconds)


def _unsupported(request: Request, *types: str) -> Problem:
    given = request.headers.get("content-type", "missing")
    expected = f"one of {', '.join(types)}" if len(types) > 1 else types[0]
    return Problem(415, f"the Content-Type is {given[:60]!r}; expected {expected}", "Content-Type", expected, CLOSE)


async def _within(request: Request, service: Service, work: Coroutine[Any, Any, T], limit: str = "seconds") -> T:
    """What the work gives, unless time is over or the client has gone before; then it is dropped.

    Raises:
        Problem: says which of the two.
    """
    seconds: float = getattr(service.limits, limit)
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        service.metrics.gave_up("gone" if gone.done() else "late")
        if gone.done():
            # Nobody reads this.
            raise Problem(400, "the client has gone")
        raise Problem(504, f"the answer took longer than {seconds:g} seconds (the limit {limit})")
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(content: Any) -> Response:
    # NaN and half characters have no place in JSON; neither is ever part of an answer.
    return Response(json.dumps(content, allow_nan=False), media_type="application/json")


def _csv(answer: Answer) -> Response:
    return Response(answer.csv(), media_type=f"{CSV}; charset=utf-8")


async def _refused(_: Request, error: Exception) -> Response:
    """Whatever a route or FastAPI itself refuses, as one sentence."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        field = str(first["loc"][-1])[:60]
        problem = Problem(422, f"{field}: {first['msg']}", field, str(first["msg"]))
    elif isinstance(error, HTTPException):
        problem = Problem(error.status_code, f"{error.detail}".lower(), headers=error.headers)
    else:
        assert isinstance(error, Problem)
        problem = error
    return Response(problem.body(), problem.status, problem.headers, "application/json")


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, in which problems look as ours do and not as FastAPI's."""
    found = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    components = found.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        components.pop(name, None)
    components["Problem"] = schemas.PROBLEM
    return found


_ABOUT = "Predictions of a trained tokengt run. Every refusal is one sentence, with the field and what was expected."
