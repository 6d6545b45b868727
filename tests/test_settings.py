"""What a caller may set, and what is refused in the caller's words."""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
from typing import Any

import pytest

from mars_core.errors import MarsError
from mars_core.settings import DecodeSettings, LiveSettings, LiveValues, one_token_mode

BAD_VALUES: list[tuple[str, Any]] = [
    ("mode", "MARS"),
    ("mode", None),
    ("threshold", math.nan),
    ("threshold", math.inf),
    ("threshold", -0.1),
    ("threshold", "0.9"),
    ("threshold", True),
    ("metric", "confidence"),
    ("block_size", 0),
    ("block_size", 65),
    ("block_size", 4.0),
    ("block_size", True),
    ("verify", 1),
    ("layout", "round"),
    ("layout", None),
    ("max_drafts", -1),
    ("max_drafts", 65),
    ("max_drafts", True),
    ("proposer", "guess"),
    ("proposer", None),
    ("last_mask", 1),
    ("last_mask", "yes"),
    ("max_new_tokens", 0),
    ("max_new_tokens", None),
    ("temperature", -1),
    ("temperature", 11),
    ("temperature", 1e-40),
    ("temperature", math.nan),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("num_alternatives", 33),
    ("seed", -1),
    ("seed", 2**63),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", ("a",)),
    ("stop_token_ids", 5),
    ("stop_strings", ("",)),
    ("stop_strings", (5,)),
    ("stop_strings", "###"),
    ("stop_strings", None),
]


@pytest.mark.parametrize("name, value", BAD_VALUES)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(name, value):
    with pytest.raises(MarsError, match=f"^{name} is .*allowed"):
        DecodeSettings(**{name: value})


def test_lookups_without_verification_are_refused_with_what_to_do():
    for settings_of in (DecodeSettings, LiveValues):
        with pytest.raises(MarsError, match="proposer is 'lookup'.*set verify to True"):
            settings_of(proposer="lookup")
        assert settings_of(proposer="lookup", verify=True).proposer == "lookup"
        assert settings_of(proposer="both").proposer == "both"


def test_verification_cannot_be_turned_off_under_lookups():
    live = LiveSettings(LiveValues(proposer="lookup", verify=True))
    with pytest.raises(MarsError, match="set verify to True"):
        live.update(verify=False)
    assert live.read().verify
    assert live.update(verify=False, proposer="both") == LiveValues(proposer="both")


def test_what_may_change_while_it_runs_is_handed_on_whole():
    values = {"layout": "full", "max_drafts": 2, "proposer": "both", "last_mask": True, "verify": True}
    assert DecodeSettings(**values).live_values() == LiveValues(**values)


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError):
        DecodeSettings(steps=128)  # type: ignore[call-arg]


def test_settings_cannot_be_changed_behind_the_engines_back():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DecodeSettings().threshold = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    "mode, threshold, metric, expected",
    [
        ("ar", 0.0, "probability", True),
        ("mars", 1.0, "probability", True),
        ("mars", 1.5, "margin", True),
        ("mars", 0.999999, "probability", False),
        ("mars", 0.0, "entropy", True),
        ("mars", 1.0, "entropy", False),
        ("mars", 0.0, "margin", False),
    ],
)
def test_one_token_mode_is_the_sure_end_of_each_metric(mode, threshold, metric, expected):
    assert one_token_mode(mode, threshold, metric) == expected


def test_a_bad_live_change_raises_and_changes_nothing():
    live = LiveSettings(LiveValues(0.5))
    with pytest.raises(MarsError, match="threshold is nan"):
        live.update(block_size=8, threshold=math.nan)
    assert live.read() == LiveValues(0.5)


def test_threads_that_turn_different_values_never_undo_each_other():
    live, lost = LiveSettings(), []

    def turn(name: str, values: list[Any]) -> None:
        for _ in range(400):
            for value in values:
                live.update(**{name: value})
                if getattr(live.read(), name) != value:
                    lost.append(name)

    threads = [
        threading.Thread(target=turn, args=("threshold", [0.1, 0.2])),
        threading.Thread(target=turn, args=("block_size", [2, 3])),
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not lost
