"""The command line: ``python -m mars_core generate | bench``."""

from __future__ import annotations

import argparse
import io
import os
import sys

from .bench.command import add_bench_command
from .errors import MarsError
from .options import set_up_logging
from .terminal import add_generate_command


def build_parser() -> argparse.ArgumentParser:
    """The parser with all its commands."""
    parser = argparse.ArgumentParser(
        prog="python -m mars_core", description="Multi-token decoding with MARS."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_generate_command(commands)
    add_bench_command(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command. What the user should read comes as one line, without a traceback."""
    _accept_any_text()
    arguments = build_parser().parse_args(argv)
    set_up_logging(arguments.verbose)
    try:
        return arguments.run(arguments)
    except MarsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # the reader (head, less) has seen enough; keep Python from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _accept_any_text() -> None:
    """A character that the terminal or the pipe has no code for is no reason to stop halfway."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if stream is sys.stdin else "backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
