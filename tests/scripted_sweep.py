"""A scripted model that can also be asked how likely a finished text is, as a sweep does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from mars_core.loaded import LoadedModel
from tests.scripted import Script, ScriptedModel, scripted_loaded


class ScorableModel(ScriptedModel):
    """Takes plain forwards of a whole text too; those are not noted in `fed`."""

    def forward(self, input_ids: torch.Tensor, **options: Any) -> SimpleNamespace:  # type: ignore[override]
        if options.get("cache") is not None:
            return super().forward(input_ids, **options)
        rows = [[self._logits(p, i) for p, i in enumerate(row)] for row in input_ids.tolist()]
        logits = torch.stack([torch.stack(row) for row in rows])
        return SimpleNamespace(logits=logits[:, -options["logits_to_keep"] :])


def scorable(script: Script, **changes: Any) -> LoadedModel:
    """As `scripted_loaded`, and a sweep can score its texts."""
    return scripted_loaded(script, model=ScorableModel(script), **changes)
