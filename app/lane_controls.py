"""What a visitor sets of one lane: its mode for the next race, τ and B at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from mars_core import LoadedModel, MarsError

from .dial import SCALES
from .lanes import LANE_MODES, LaneMode, lane_key
from .live import LiveRegistry
from .notices import fault

AR_THRESHOLD, AR_BLOCK_SIZE = 1.0, 1  # shown, and not to be turned
_SCALE = SCALES["probability"]


class LaneControls:
    """The components of lane `number`, in the place where it is made; `inputs` is mode, τ, B.

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
        return [self.mode, self.threshold, self.block_size]

    def connect(self) -> None:
        """Let τ and B act on what is running: outside the queue, the newest position only."""
        live: dict[str, Any] = dict(queue=False, show_progress="hidden", api_visibility="private")
        self.threshold.input(self._turn_threshold, self.threshold, trigger_mode="always_last", **live)
        self.block_size.input(self._turn_block_size, self.block_size, trigger_mode="always_last", **live)
        self.mode.input(self.show, self.inputs, self.inputs, **live)

    def show(self, mode: LaneMode, threshold: float, block_size: int) -> list[Any]:
        """Updates for `inputs` that show these settings: AR has no τ and no B to turn. Where a lane turns
        from AR to another mode they go to where they start."""
        if mode == "AR":
            fixed = (AR_THRESHOLD, AR_BLOCK_SIZE)
            return [mode, *(gr.update(value=value, interactive=False) for value in fixed)]
        if block_size == AR_BLOCK_SIZE:
            threshold, block_size = _SCALE.start, self.block_size_at_start
        return [
            mode,
            gr.update(value=threshold, interactive=True),
            gr.update(value=block_size, interactive=True),
        ]

    def _turn_threshold(self, threshold: float, request: gr.Request) -> None:
        self._turn(request, threshold=threshold)

    def _turn_block_size(self, block_size: float, request: gr.Request) -> None:
        self._turn(request, block_size=int(block_size))

    def _turn(self, request: gr.Request, **changes: Any) -> None:
        try:
            self.registry.update(lane_key(request.session_hash or "", self.number), **changes)
        except MarsError as error:
            raise fault(str(error)) from None


def swapped(lanes: Sequence[LaneControls], values: Sequence[Any]) -> list[Any]:
    """Updates for the inputs of two lanes that have each other's values then.

    Args:
        values: mode, τ, B of the left lane, then of the right.
    """
    left, right = values[:3], values[3:]
    return [*lanes[0].show(*right), *lanes[1].show(*left)]
