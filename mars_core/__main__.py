"""The command line: ``python -m mars_core generate | bench | sweep | train | distill | evaluate``."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys

_at_start = signal.getsignal(signal.SIGINT)
if __name__ == "__main__" and _at_start is not signal.SIG_IGN:
    # the imports below take seconds, in which Ctrl-C must not end in a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from .bench.command import add_bench_command  # noqa: E402
from .bench.sweep.command import add_sweep_command  # noqa: E402
from .errors import MarsError  # noqa: E402
from .evaluate.command import add_evaluate_command  # noqa: E402
from .options import set_up_logging  # noqa: E402
from .terminal import add_generate_command  # noqa: E402
from .train.command import add_distill_command, add_train_command  # noqa: E402


def build_parser() -> argparse.ArgumentParser:
    """The parser with all its commands."""
    parser = argparse.ArgumentParser(
        prog="python -m mars_core", description="Multi-token decoding with MARS."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_generate_command(commands)
    add_bench_command(commands)
    add_sweep_command(commands)
    add_train_command(commands)
    add_distill_command(commands)
    add_evaluate_command(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command. What the user should read comes as one line, without a traceback."""
    _accept_any_text()
    arguments = build_parser().parse_args(argv)
    set_up_logging(arguments.verbose)
    try:
        if sys.stdout is None:
            raise MarsError("Standard output is closed. Open it, or send it to a file with > FILE.")
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except MarsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # the reader (head, less) has seen enough
        _forget_output()
        return 1
    except OSError as error:
        _forget_output()
        print(f"error: Reading or writing failed ({error}). Check where the output goes.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _forget_output() -> None:
    """What is still to be written goes nowhere: else Python would complain of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _accept_any_text() -> None:
    """A character that the terminal or the pipe has no code for is no reason to stop halfway."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if stream is sys.stdin else "backslashreplace")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _at_start)
    sys.exit(main())
