"""What a row's next forward verifies and predicts: its drafts, and its masks.

Drafts come from the masks of the forward before, or from the text itself (`lookup.py`); how many of them,
and of masks, the window has is as the settings say, or as the planner finds best.
"""

from __future__ import annotations

from collections.abc import Sequence

from .acceptance import Prediction, Sampler
from .lookup import NgramIndex
from .planner import NOMINAL_COSTS, LookupPlanner, Plan, Planner, Situation
from .settings import LiveValues, never_accepts
from .window import RowWindow

MOST_LOOKED_UP = 10  # drafts from a lookup, where the settings name no other number


class Proposals:
    """One row's drafts.

    Args:
        sampler: the row's; None is greedy.
        last_mask: the checkpoint's own answer where the settings leave `last_mask` open.
    """

    def __init__(self, sampler: Sampler | None, last_mask: bool) -> None:
        self.drafts: list[int] = []  # predicted by the last forward's masks
        self._sampler = sampler
        self._last_mask = last_mask
        self._planner, self._lookup_planner = Planner(), LookupPlanner()
        self._index = NgramIndex()
        self._looked_up = False  # where the drafts of the window under way came from
        self._accepts = False  # predictions of the window under way may be committed for their confidence

    def drop(self) -> None:
        """Nothing is to be verified: the next forward is a plain one."""
        self.drafts, self._looked_up, self._accepts = [], False, False

    def next(
        self, live: LiveValues, tokens: Sequence[int], room: int, situation: Situation
    ) -> tuple[list[int], list[int]]:
        """Drafts, and how many masks continue after the last committed token and after each draft.

        Args:
            tokens: prompt and all that was committed.
            room: tokens that this forward may commit beside the first; no draft or mask is fed beyond
                it, since nothing it says could be committed.
            situation: where the row is.
        """
        accepts = self._accepts = not never_accepts(live.threshold, live.metric)
        if accepts or self._sampler is not None:
            # here a plan may change the text, which must depend on nothing but the request
            situation = Situation(lambda: NOMINAL_COSTS, 0, 1)
        plan = self._plan(live, accepts, situation)
        drafts = self.drafts[: min(plan.num_drafts, room)]
        masks = [min(plan.num_masks, room - after) for after in range(len(drafts) + 1)]
        groups = masks if plan.full else [0] * len(drafts) + masks[-1:]
        found = self._find(live, tokens, room)
        if found and live.layout == "auto":
            instead = self._planner.promise(situation, len(drafts), sum(groups))
            num = self._lookup_planner.num_drafts(situation, len(found), plan.num_masks, instead)
            found = found[:num]
        self._looked_up = bool(found)
        if not found:
            return drafts, groups
        if self._sampler is not None:
            self._sampler.drafts_are_certain()
        return found, [0] * len(found) + [min(plan.num_masks, room - len(found))]

    def _plan(self, live: LiveValues, accepts: bool, situation: Situation) -> Plan:
        if live.proposer == "lookup":
            return Plan(0, 0, False)
        masks = live.block_size - 1 + (self._last_mask if live.last_mask is None else live.last_mask)
        if not live.verify:
            return Plan(0, masks, False)
        most = masks if live.max_drafts is None else min(masks, live.max_drafts)
        if not accepts:
            masks = most  # more would be predicted and never looked at
        if live.layout != "auto":
            return Plan(most, masks, live.layout == "full")
        return self._planner.plan(situation, masks, most, accepts)

    def _find(self, live: LiveValues, tokens: Sequence[int], room: int) -> list[int]:
        """What a lookup finds to verify."""
        if live.proposer == "masks" or not live.verify:
            return []
        self._index.extend(tokens[len(self._index) :])
        return self._index.propose(min(room, MOST_LOOKED_UP if live.max_drafts is None else live.max_drafts))

    def learn(self, window: RowWindow, num_verified: int, num_accepted: int) -> None:
        """Note what came of a window that these proposals made."""
        rates = self._lookup_planner if self._looked_up else self._planner
        rates.verified.learn(num_verified, len(window.drafts))
        if window.groups and self._accepts:
            self._planner.accepted.learn(num_accepted, window.groups[num_verified])

    def keep(self, positions: slice, predictions: Sequence[Prediction], live: LiveValues) -> None:
        """What was predicted behind masks and not committed is the next forward's drafts."""
        self.drafts = [prediction.id for prediction in predictions[positions]] if live.verify else []
        if self._sampler is not None and self.drafts:
            self._sampler.keep(positions)
