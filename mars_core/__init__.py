"""MARS (Mask AutoRegreSsion, arXiv 2604.07023): several tokens a forward from an ordinary causal LM.

A name's module is imported when the name is first used: torch takes seconds, in which the command line
must already be able to end at Ctrl-C.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Engine
    from .errors import MarsError
    from .events import Statistics, StepEvent, TokenChoice, Trace, statistics
    from .generate import mars_generate
    from .loaded import LoadedModel
    from .models import load_model
    from .prompts import chat_prompt_ids, fit_prompt
    from .row import Request
    from .settings import DecodeSettings, LiveSettings, LiveValues

__all__ = [
    "DecodeSettings",
    "Engine",
    "LiveSettings",
    "LiveValues",
    "LoadedModel",
    "MarsError",
    "Request",
    "Statistics",
    "StepEvent",
    "TokenChoice",
    "Trace",
    "chat_prompt_ids",
    "fit_prompt",
    "load_model",
    "mars_generate",
    "statistics",
]

_NAMES_OF_MODULES = {
    "engine": ["Engine"],
    "errors": ["MarsError"],
    "events": ["Statistics", "StepEvent", "TokenChoice", "Trace", "statistics"],
    "generate": ["mars_generate"],
    "loaded": ["LoadedModel"],
    "models": ["load_model"],
    "prompts": ["chat_prompt_ids", "fit_prompt"],
    "row": ["Request"],
    "settings": ["DecodeSettings", "LiveSettings", "LiveValues"],
}
_MODULES = {name: module for module, names in _NAMES_OF_MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
