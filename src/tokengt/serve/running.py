"""``tokengt serve``: the application on a port of this machine, until Ctrl-C; what is in flight is finished first."""

import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import uvicorn

from tokengt.data.datasets import find_run
from tokengt.inference import Predictor
from tokengt.serve.app import create_app
from tokengt.serve.guarding import Hosts
from tokengt.serve.limits import Limits
from tokengt.serve.patience import impatient_protocol
from tokengt.training.processes import Device

PORT = 8000
# Python lets a thread that computes go on for so many seconds before another may. The thread of the model gives way
# after every operation of torch, and would wait its turn hundreds of times in each batch.
_SWITCH_SECONDS = 0.0002


def serve(
    run: Predictor | str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    limits: Limits | None = None,
    draws: int = 1,
    device: Device = "auto",
) -> None:
    """Serve a run until Ctrl-C.

    Args:
        run: a run, or its folder.
        host: the address to listen on; other machines reach it only if it is not that of loopback.
        port: the port; 0 for any that is free.
        limits: what clients may ask for.
        draws: passes of each model that are averaged, over identifiers.
        device: where the model runs.

    Raises:
        ValueError: one sentence: there is no such run, or the port is taken.
    """
    limits, hosts = limits or Limits(), Hosts(host)
    listener = _listen(host, port)
    with listener:
        predictor = run if isinstance(run, Predictor) else Predictor.load(run, device)
        predictor.refuse_links("the server")
        _check_installed("networkx" if predictor.spec.molecules is None else "rdkit")
        folder = None if isinstance(run, Predictor) else find_run(run)
        app = create_app(predictor, limits, draws=draws, hosts=hosts, folder=folder)
        if not hosts.is_loopback:
            _say(
                f"warning: {host} can be reached from other machines, and there is no password: anybody who reaches it "
                "can ask this model"
            )
        config = uvicorn.Config(
            app,
            http=impatient_protocol(limits.slow_seconds),
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.connections,
            timeout_graceful_shutdown=round(limits.seconds) + 1,
        )
        address, number = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        print(f"serving {predictor.spec.source.name} at http://{shown}:{number} (Ctrl-C stops it)", flush=True)
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            # uvicorn has finished what was in flight, and passes the signal on.
            _say("stopped")
        finally:
            sys.setswitchinterval(before)


def _check_installed(package: str) -> None:
    """Refuse to start without what reads the inputs of the run."""
    if find_spec(package) is None:
        needed = "NetworkX: pip install networkx" if package == "networkx" else "RDKit: pip install 'tokengt[chem]'"
        raise ImportError(f"this run's inputs are read by {needed}")


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 1 << 16:
        raise ValueError(f"the port is {port}; expected 0 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {host} port {port} ({error.strerror}); choose another with --port, or 0 for any free one"
        ) from None


def _say(sentence: str) -> None:
    print(f"tokengt: {sentence}", file=sys.stderr, flush=True)
