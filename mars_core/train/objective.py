"""The MARS objective by its public names (arXiv 2604.07023, section on training).

`collate` lays examples out, `lean_losses` is what training runs, `plain_losses` the oracle it equals.
"""

from __future__ import annotations

from .batch import Batch, collate
from .examples import PHASES, Example, Phase
from .inside import BaseModel, base_of_adapter, frozen_base
from .lean import lean_losses
from .losses import OBJECTIVES, Losses, Objective, ObjectiveSettings
from .plain import plain_losses

__all__ = [
    "OBJECTIVES",
    "PHASES",
    "BaseModel",
    "Batch",
    "Example",
    "Losses",
    "Objective",
    "ObjectiveSettings",
    "Phase",
    "base_of_adapter",
    "collate",
    "frozen_base",
    "lean_losses",
    "plain_losses",
]
