"""When each call of a model began and ended: what a decoding loop does around its model shows in the rest."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import nn


class Call(NamedTuple):
    """One forward: moments of `time.perf_counter`, and how many rows it was fed."""

    begin: float
    end: float
    num_rows: int


class ModelClock:
    """While entered, notes every call of a model, from any thread.

    Hooks cost microseconds. A model that was compiled as a whole gets none (they would become part of the
    compilation): then there are no calls, and every question is answered by None.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.calls: list[Call] = []
        self._begin, self._num_rows = 0.0, 0
        self._handles: list[Any] = []

    def __enter__(self) -> ModelClock:
        self.calls = []
        if getattr(self.model, "_compiled_call_impl", None) is None:
            before = self.model.register_forward_pre_hook(self._before, with_kwargs=True)
            self._handles = [before, self.model.register_forward_hook(self._after)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def num_calls(self, since: float) -> int | None:
        """Calls that began after this moment."""
        return sum(call.begin > since for call in self.calls) if self.calls else None

    @property
    def num_rows(self) -> int | None:
        """Rows fed, summed over all calls."""
        return sum(call.num_rows for call in self.calls) if self.calls else None

    def seconds(self, since: float, num_calls: int | None) -> float | None:
        """Seconds inside the calls after this moment; None if they are not `num_calls` (the model was run
        past its hooks), or on a device that goes on computing when a call has returned."""
        if not self.calls or self.num_calls(since) != num_calls or not _on_cpu(self.model):
            return None
        return sum(call.end - call.begin for call in self.calls if call.begin > since)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self._num_rows = ids.shape[0] if isinstance(ids, torch.Tensor) else 0
        self._begin = time.perf_counter()

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.calls.append(Call(self._begin, time.perf_counter(), self._num_rows))


def _on_cpu(model: nn.Module) -> bool:
    return next(model.parameters()).device.type == "cpu"
