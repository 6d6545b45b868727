"""What a visitor sets of one lane: its mode for the next race, τ and B at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from mars_core import LoadedModel, MarsError

from .dial import SCALES
from .lanes import LANE_MODES, LaneMode, lane_key
from .live import LiveRegistry
from .live_slider import on_turn, position
from .notices import fault

AR_THRESHOLD, AR_BLOCK_SIZE = 1.0, 1  # shown, and not to be turned
_SCALE = SCALES["probability"]


class LaneControls:
    """The components of lane `number`, in the place where it is made.

    Args:
        number: 0 is the left lane.
        side: its name.
        mode: where it starts.
        loaded: the model.
        registry: where running lanes are found.
    """

    def __init__(
        self, number: int, side: str, mode: LaneMode, loaded: LoadedModel, registry: LiveRegistry
    ) -> None:
        self.number, self.registry = number, registry
        self.block_size_at_start = loaded.block_size
        turns = mode != "AR"
        self.was_ar = gr.State(not turns)  # B = 1 does not tell: that may have been chosen
        name = side.capitalize()
        self.mode = gr.Radio(list(LANE_MODES), value=mode, label=f"{name} lane", elem_classes="lane-mode")
        with gr.Row(elem_classes="lane-dial"):
            self.threshold = gr.Slider(
                _SCALE.low,
                1.0,
                _SCALE.start if turns else AR_THRESHOLD,
                step=0.01,
                label=f"Threshold τ, {side} lane",
                interactive=turns,
                min_width=240,
                buttons=[],
                elem_id=f"compare-tau-{side}",
            )
            self.block_size = gr.Slider(
                1,
                max(8, 2 * loaded.block_size),
                loaded.block_size if turns else AR_BLOCK_SIZE,
                step=1,
                label=f"Block size B, {side} lane",
                interactive=turns,
                min_width=240,
                buttons=[],
            )

    @property
    def inputs(self) -> list[Any]:
        """Mode, τ and B."""
        return [self.mode, self.threshold, self.block_size]

    @property
    def shown(self) -> list[Any]:
        """What `show` gives updates for."""
        return [*self.inputs, self.was_ar]

    def connect(self) -> None:
        """Let τ and B act on what is running: outside the queue, the newest position only."""
        live: dict[str, Any] = dict(queue=False, show_progress="hidden", api_visibility="private")
        live["trigger_mode"] = "always_last"
        on_turn(self.threshold, self._turn_threshold, [self.threshold], **live)
        on_turn(self.block_size, self._turn_block_size, [self.block_size], **live)
        # not the mode itself: another may have been chosen meanwhile
        self.mode.input(self._choose, self.shown, self.shown[1:], **live)

    def show(self, mode: LaneMode, threshold: float, block_size: int) -> list[Any]:
        """Updates for `shown` with these settings: AR has no τ and no B to turn."""
        is_ar = mode == "AR"
        values = (AR_THRESHOLD, AR_BLOCK_SIZE) if is_ar else (threshold, block_size)
        return [mode, *(gr.update(value=value, interactive=not is_ar) for value in values), is_ar]

    def _choose(self, mode: LaneMode, threshold: float, block_size: int, was_ar: bool) -> list[Any]:
        """Where a lane turns from AR to another mode, τ and B go to where they start."""
        if was_ar:
            threshold, block_size = _SCALE.start, self.block_size_at_start
        return self.show(mode, threshold, block_size)[1:]

    def _turn_threshold(self, threshold: Any, request: gr.Request) -> None:
        if (at := _SCALE.position(threshold)) is not None:
            self._turn(request, threshold=at)

    def _turn_block_size(self, block_size: Any, request: gr.Request) -> None:
        if (at := position(block_size, 1, self.block_size.maximum)) is not None:
            self._turn(request, block_size=round(at))

    def _turn(self, request: gr.Request, **changes: Any) -> None:
        try:
            self.registry.update(lane_key(request.session_hash or "", self.number), **changes)
        except MarsError as error:
            raise fault(str(error)) from None


def swapped(lanes: Sequence[LaneControls], values: Sequence[Any]) -> list[Any]:
    """Updates for what two lanes show that have each other's values then.

    Args:
        values: mode, τ, B of the left lane, then of the right.
    """
    left, right = values[:3], values[3:]
    return [*lanes[0].show(*right), *lanes[1].show(*left)]
