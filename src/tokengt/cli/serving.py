"""serve."""

import argparse
from pathlib import Path
from typing import Any


def add_verbs(verbs: Any) -> None:
    verb = verbs.add_parser(
        "serve",
        help="predict in a browser: a small web page on this machine",
        description="A page to type, draw or drop molecules, and get predictions and explanations; Ctrl-C ends it.",
    )
    verb.add_argument("model", type=Path, metavar="RUN", help="a trained run")
    verb.add_argument("--port", type=int, default=8000, metavar="N", help="0 for any that is free (default: 8000)")
    verb.add_argument(
        "--host", default="127.0.0.1", metavar="NAME", help="the address to listen on (default: 127.0.0.1)"
    )
    verb.add_argument(
        "--draws",
        type=int,
        default=1,
        metavar="K",
        help="the mean of K draws of each model, with their spread (default: 1)",
    )
    verb.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a limit: rows, atoms, body, seconds, ... (see the guide)",
    )
    verb.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    verb.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    from tokengt.cli.settings import named_values
    from tokengt.config import override
    from tokengt.serve.limits import Limits

    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError("tokengt serve needs FastAPI and uvicorn: pip install 'tokengt[serve]'") from error
    from tokengt.serve.running import serve

    limits = override(Limits(), named_values(options.limit, "--limit", "rows=500"), "limit")
    serve(
        options.model, host=options.host, port=options.port, limits=limits, draws=options.draws, device=options.device
    )
    return 0
