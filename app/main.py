"""``python app.py``: read arguments, load a model, serve the page; without a model, one of recorded runs."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import signal
import socket
import sys
import threading
from functools import partial

from mars_core import Engine, MarsError
from mars_core.costs import known_costs
from mars_core.options import add_model_options, load_from, set_up_logging

from .baseline import OneTokenBaseline
from .live import LiveRegistry
from .page import build_page, launch_options

logger = logging.getLogger(__name__)

FIRST_PORT = 7860
LAST_PORT = 65535


def build_parser() -> argparse.ArgumentParser:
    """The options of ``python app.py``."""
    parser = argparse.ArgumentParser(
        prog="python app.py",
        description="Chat with a MARS model in the browser and see which tokens each forward committed.",
    )
    add_model_options(parser)
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    group.add_argument(
        "--port", type=_port, metavar="PORT", help=f"port (default: the first free one from {FIRST_PORT})"
    )
    group.add_argument("--open", action="store_true", help="open the page in a browser")
    group.add_argument(
        "--replay-only", action="store_true", help="load no model: recorded runs and explanations only"
    )
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= LAST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a whole number from 0 to {LAST_PORT}")
    return int(text)


def main(argv: list[str] | None = None) -> int:
    """Run the app until it is interrupted. Returns the exit status."""
    arguments = build_parser().parse_args(argv)
    set_up_logging(arguments.verbose)
    # A forward on a slow device can take seconds; nobody should have to wait for it to leave.
    signal.signal(signal.SIGINT, lambda *_: _leave())
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    try:
        arguments.port = open_port(arguments.host, arguments.port)
        engine, trouble = find_engine(arguments)
        address = serve(engine, arguments, trouble)
        print(f"Open {address} in a browser. Ctrl-C ends.", file=sys.stderr, flush=True)
    except MarsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    threading.Event().wait()
    return 0


def find_engine(arguments: argparse.Namespace) -> tuple[Engine | None, str]:
    """The engine of the model that the options name, running; or None, and why where that was not asked for.

    Where nothing about the model was asked for, a page of recorded runs is better than none.

    Raises:
        MarsError: where what was asked for cannot be had.
    """
    if arguments.replay_only and names_a_model(arguments):
        raise MarsError("--replay-only loads no model: leave it out, or the options about the model.")
    if arguments.replay_only:
        return None, ""
    print("Loading the model …", file=sys.stderr, flush=True)
    try:
        loaded = load_from(arguments)
    except MarsError as error:
        if names_a_model(arguments):
            raise
        print(f"error: {error}\nWithout a model, the page shows recorded runs.", file=sys.stderr, flush=True)
        return None, f"The model could not be loaded, so this page shows recorded runs only. {error}"
    engine = Engine(loaded, costs=partial(known_costs, loaded))
    engine.costs()
    engine.start_worker()
    return engine, ""


def names_a_model(arguments: argparse.Namespace) -> bool:
    """True where an option about the model is not what it is by default."""
    defaults = argparse.ArgumentParser()
    add_model_options(defaults)
    unnamed = vars(defaults.parse_args([])) | {"verbose": arguments.verbose}
    return any(getattr(arguments, name) != value for name, value in unnamed.items())


def open_port(host: str | None, port: int | None) -> int | None:
    """Check, before a model is loaded, that the page can be served there; 0 becomes a port that is free.

    Raises:
        MarsError: where `host` is no address of this machine, or `port` cannot be opened.
    """
    address = host or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    try:
        found = socket.getaddrinfo(address.strip("[]"), port or 0, type=socket.SOCK_STREAM)
        # IPv4 comes before IPv6, which a name may have without the machine having it
        family, kind, protocol, _, where = min(found)
        with socket.socket(family, kind, protocol) as probe:
            # else a port that was in use a minute ago would count as taken; Windows means another thing by it
            if os.name == "posix":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            # without a port the page takes the first free one itself
            return port if port is None else probe.getsockname()[1]
    except (OSError, UnicodeError) as error:
        raise MarsError(_why_not_open(address, port, getattr(error, "errno", None))) from error


def _why_not_open(address: str, port: int | None, reason: int | None) -> str:
    if port is not None and reason in (errno.EADDRINUSE, errno.EACCES):
        return f"Port {port} cannot be opened ({os.strerror(reason)}). Choose another one with --port."
    return (
        f"{address} is not an address of this machine. Choose one with --host: 127.0.0.1 for this machine "
        "only, 0.0.0.0 for all its networks."
    )


def serve(engine: Engine | None, arguments: argparse.Namespace, trouble: str = "") -> str:
    """Launch the page; returns its address when it answers. Raises `MarsError` where the port is taken.

    Args:
        engine: None for a page of recorded runs.
        trouble: why there is no engine, where one was wanted.
    """
    demo = build_page(engine, LiveRegistry(), OneTokenBaseline(), trouble)
    try:
        _, address, _ = demo.launch(
            server_name=arguments.host,
            server_port=arguments.port,
            inbrowser=arguments.open,
            prevent_thread_lock=True,
            share=False,
            quiet=True,
            **launch_options(),
        )
    except OSError as error:
        port = arguments.port or os.environ.get("GRADIO_SERVER_PORT", FIRST_PORT)
        raise MarsError(
            f"Port {port} cannot be opened; another program may be using it. Choose one with --port."
        ) from error
    return address


def _leave() -> None:
    print("\nStopped.", file=sys.stderr, flush=True)
    os._exit(130)
