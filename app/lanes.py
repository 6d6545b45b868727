"""The lanes of a comparison: how each decodes, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from mars_core import DecodeSettings, MarsError

from .dial import DialValues

LaneMode = Literal["AR", "MARS", "MARS + verify"]
LANE_MODES: tuple[LaneMode, ...] = get_args(LaneMode)
DEFAULT_MODES: tuple[LaneMode, LaneMode] = ("AR", "MARS + verify")
SIDES = ("left", "right")


def lane_settings(lanes: Sequence[Sequence[Any]], shared: Sequence[Any]) -> list[DecodeSettings]:
    """What the engine is given for each lane, from the components' raw values.

    Args:
        lanes: for each lane its mode, τ (on probability) and B. `AR` is τ = 1 without verification: one
            token a forward, whatever τ says.
        shared: max new tokens, temperature and seed of all lanes. Where text is sampled and no seed was given
            one is drawn, the same for all.

    Raises:
        MarsError: a value is missing, no number or out of range.
    """
    settings = [_settings(*lane, *shared) for lane in lanes]
    return [replace(lane, seed=settings[0].seed) for lane in settings]


def _settings(
    mode: LaneMode, threshold: Any, block_size: Any, max_new_tokens: Any, temperature: Any, seed: Any
) -> DecodeSettings:
    if mode not in LANE_MODES:
        raise MarsError(f"The lane's mode is {mode!r}; allowed are {', '.join(LANE_MODES)}.")
    one_token, verify = mode == "AR", mode == "MARS + verify"
    values = (1.0 if one_token else threshold, verify, block_size, "probability")
    dial = DialValues.read([*values, max_new_tokens, temperature, 1.0, seed, ""])
    return replace(dial.settings(), mode="ar" if one_token else "mars")


def mode_of(settings: DecodeSettings) -> LaneMode:
    """What a lane with these settings does."""
    if settings.mode == "ar":
        return "AR"
    return "MARS + verify" if settings.verify else "MARS"


def lane_names(settings: Sequence[DecodeSettings]) -> list[str]:
    """A name for each lane, no two alike: lanes of one mode by their τ and B too, or by where they stand.

    Example: ``AR`` and ``MARS + verify``; ``MARS τ 0.90 B 4`` and ``MARS τ 0.60 B 4``; ``AR (left)`` and
    ``AR (right)``.
    """
    modes = [mode_of(lane) for lane in settings]
    detailed = [
        f"{mode} τ {lane.threshold:.2f} B {lane.block_size}"
        for mode, lane in zip(modes, settings, strict=True)
    ]
    if len(set(modes)) == len(modes):
        return list(modes)
    if len(set(detailed)) == len(detailed) and "AR" not in modes:
        return detailed
    return [f"{mode} ({side})" for mode, side in zip(modes, SIDES, strict=True)]


def lane_key(session: str, number: int) -> str:
    """The name a lane of a session runs under, beside what the session's chat has running."""
    return f"{session} lane {number}"
