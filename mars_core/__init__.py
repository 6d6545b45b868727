"""MARS (Mask AutoRegreSsion, arXiv 2604.07023): several tokens a forward from an ordinary causal LM."""

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
