"""The order of a benchmark's runs, and what is left when it is stopped or a method fails."""

from __future__ import annotations

import pytest

from mars_core.bench.continuous import CannotRun
from mars_core.bench.measure import measure
from mars_core.bench.methods import OUR_AR, Bench, Method
from mars_core.bench.outcome import Outcome
from mars_core.bench.plan import SpeedPlan
from tests.tiny import tiny_loaded

ANSWER = Outcome(((1, 2),), 1.0, 0.5, 1, 1, 2)


class Script:
    """Methods that note each call, and raise where the test says so."""

    def __init__(self, fault=None, at=None):
        self.calls, self.made = [], []
        self.fault, self.at = fault, at

    def method(self, name):
        def run(prompts, most):
            self.calls.append((name, prompts[0][0], most))
            if len(self.calls) == self.at:
                raise self.fault
            return ANSWER

        def make(bench):
            self.made.append(name)
            return run

        return Method(name, make, OUR_AR)

    def measure(self, names="abc", num_groups=3, **plan):
        bench = Bench(
            SpeedPlan(max_new_tokens=20, **plan),
            loaded,
            loaded,
            [[[65 + group]] for group in range(num_groups)],
        )
        self.exits = []
        bench.on_exit.callback(lambda: self.exits.append(True))
        return measure([self.method(name) for name in names], bench, "test")


loaded = tiny_loaded()


def test_every_method_answers_every_group_after_a_warm_up():
    script = Script()
    result = script.measure(warmup_tokens=5)
    assert script.calls[:3] == [("a", 65, 5), ("b", 65, 5), ("c", 65, 5)]
    measured = script.calls[3:]
    assert [group for _, group, _ in measured] == [65] * 3 + [66] * 3 + [67] * 3
    assert all(most == 20 for *_, most in measured)
    for group in range(3):
        assert {name for name, *_ in measured[3 * group : 3 * group + 3]} == set("abc")
    assert script.made == ["a", "b", "c"] and script.exits == [True]
    assert {name: sorted(found) for name, found in result.outcomes.items()} == dict.fromkeys("abc", [0, 1, 2])


def test_the_order_changes_with_the_group_and_the_seed_and_is_the_same_again():
    def order(seed):
        script = Script()
        script.measure(names="abcdef", num_groups=4, seed=seed)
        return [name for name, *_ in script.calls[6:]]

    first = order(1)
    assert first == order(1) != order(2)
    assert len({tuple(first[start : start + 6]) for start in range(0, 24, 6)}) > 1


def test_control_c_keeps_the_groups_that_all_have_answered():
    script = Script(KeyboardInterrupt(), at=3 + 3 + 2)
    result = script.measure()
    assert result.interrupted and script.exits == [True]
    assert [sorted(found) for found in result.outcomes.values()] == [[0]] * 3


def test_control_c_in_the_first_group_keeps_what_there_is():
    result = Script(KeyboardInterrupt(), at=3 + 2).measure()
    assert result.interrupted
    assert sum(len(found) for found in result.outcomes.values()) == 1


def test_control_c_during_the_warm_up_leaves_nothing():
    result = Script(KeyboardInterrupt(), at=1).measure()
    assert result.interrupted and not any(result.outcomes.values())


@pytest.mark.parametrize(
    "fault, kind, why",
    [(CannotRun("no kernel"), "skipped", "no kernel"), (ValueError("bad"), "failed", "ValueError: bad")],
)
def test_a_method_that_raises_is_not_asked_again_and_the_others_go_on(fault, kind, why, capsys):
    script = Script(fault, at=2)
    result = script.measure()
    assert getattr(result, kind) == {"b": why} and not result.interrupted
    assert [name for name, *_ in script.calls].count("b") == 1
    assert [len(found) for found in result.outcomes.values()] == [3, 0, 3]
    captured = capsys.readouterr()
    assert ("b failed" in captured.err) == (kind == "failed") and captured.out == ""


def test_an_interruption_counts_only_the_methods_that_still_run():
    # b is out from its warm-up on; the second group is stopped halfway
    calls = []
    script = Script()
    bench = Bench(SpeedPlan(), loaded, loaded, [[[65]], [[66]]])

    def broken(bench):
        raise CannotRun("no")

    def stopping(prompts, most):
        calls.append(prompts)
        if prompts == [[66]]:
            raise KeyboardInterrupt
        return ANSWER

    methods = [script.method("a"), Method("b", broken, OUR_AR), Method("c", lambda bench: stopping, OUR_AR)]
    result = measure(methods, bench, "test")
    assert sorted(result.outcomes["a"]) == [0] == sorted(result.outcomes["c"])
