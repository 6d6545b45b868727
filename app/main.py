"""``python app.py``: read arguments, load a model, serve the page."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading

from mars_core import Engine, MarsError
from mars_core.options import add_model_options, load_from, set_up_logging

from .baseline import OneTokenBaseline
from .live import LiveRegistry
from .page import build_page, launch_options

logger = logging.getLogger(__name__)

FIRST_PORT = 7860


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
        "--port", type=int, metavar="PORT", help=f"port (default: the first free one from {FIRST_PORT})"
    )
    group.add_argument("--open", action="store_true", help="open the page in a browser")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the app until it is interrupted. Returns the exit status."""
    arguments = build_parser().parse_args(argv)
    set_up_logging(arguments.verbose)
    # A forward on a slow device can take seconds; nobody should have to wait for it to leave.
    signal.signal(signal.SIGINT, lambda *_: _leave())
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    try:
        print("Loading the model …", file=sys.stderr, flush=True)
        engine = Engine(load_from(arguments))
        print(f"Open {serve(engine, arguments)} in a browser. Ctrl-C ends.", file=sys.stderr, flush=True)
    except MarsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    threading.Event().wait()
    return 0


def serve(engine: Engine, arguments: argparse.Namespace) -> str:
    """Launch the page; returns its address when it answers. Raises `MarsError` where the port is taken."""
    demo = build_page(engine, LiveRegistry(), OneTokenBaseline())
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
