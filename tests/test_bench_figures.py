"""From runs to figures, worked out by hand."""

from __future__ import annotations

import json
import math

import pytest
import torch

from mars_core.bench.categories import by_category
from mars_core.bench.figures import figures_of, ratios, spread, tokens_per_forward
from mars_core.bench.measure import Measured
from mars_core.bench.memory_rate import copy_rate, weight_bytes
from mars_core.bench.methods import OUR_AR, TRANSFORMERS_AR, Method
from mars_core.bench.ours import run_engine
from mars_core.bench.outcome import Outcome, RunnerUp
from mars_core.bench.places import Places, shares
from mars_core.bench.report import BatchReport, as_json, markdown
from mars_core.bench.ties import differences, first_difference
from mars_core.engine import Engine
from mars_core.events import StepEvent, TokenChoice
from mars_core.packed import can_pack, pack_weights
from mars_core.settings import DecodeSettings
from tests.scripted import VOCABULARY, ScriptedModel, scripted_loaded
from tests.tiny import tiny_model


def outcome(*tokens, wall_s=3.0, prefill_s=1.0, prefill_tokens=None, forwards=4, **more):
    return Outcome(
        tokens=tuple(map(tuple, tokens)),
        wall_s=wall_s,
        prefill_s=prefill_s,
        num_prefill_tokens=len(tokens) if prefill_tokens is None else prefill_tokens,
        num_decode_forwards=forwards,
        num_row_forwards=more.pop("row_forwards", forwards + 1),
        **more,
    )


def method(name, text_of=OUR_AR, **more):
    return Method(name, make=None, text_of=text_of, **more)


def event(decided, num_candidates=0, num_drafts=0, threshold=0.9, finish_reason=None):
    def choice(kind):
        return TokenChoice(1, "", "", False, kind, False, 1.0, 1.0, 0.0)

    return StepEvent(
        index=0, prefill=False, committed=tuple(map(choice, decided)),
        candidates=(choice("candidate"),) * num_candidates, text="", threshold=threshold,
        metric="probability", block_size=4, one_token=False, window_length=4, num_cached=0, seconds=0.1,
        elapsed=0.1, finish_reason=finish_reason, num_drafts=num_drafts, verify=bool(num_drafts),
    )  # fmt: skip


# Acceptance by place


def test_drafts_and_predictions_are_counted_by_place():
    places = Places()
    # of three drafts two are verified; behind the second, of three predictions one is accepted
    places.add(event(["verified", "verified", "ar", "accepted"], num_candidates=2, num_drafts=3))
    # of one draft none; three predictions, none accepted
    places.add(event(["ar"], num_candidates=3, num_drafts=1))
    assert places.drafts_fed == {1: 2, 2: 1, 3: 1} and places.drafts_verified == {1: 1, 2: 1}
    assert places.predicted == {2: 2, 3: 2, 4: 2} and places.accepted == {2: 1}
    assert [(item.place, item.share) for item in shares(places.drafts_fed, places.drafts_verified)] == [
        (1, 0.5), (2, 1.0), (3, 0.0),
    ]  # fmt: skip


def test_what_stood_behind_the_end_does_not_count():
    places = Places()
    # the end came as the first draft: nobody knows of the other two
    places.add(event(["verified"], num_candidates=5, num_drafts=3, finish_reason="eos"))
    assert places.drafts_fed == places.drafts_verified == {1: 1}
    assert not places.predicted
    # the end came as the model's own token: its draft was wrong, the masks behind were never asked
    places.add(event(["ar"], num_candidates=3, num_drafts=1, finish_reason="eos"))
    assert places.drafts_fed == {1: 2} and places.drafts_verified == {1: 1} and not places.predicted


def test_at_threshold_1_nothing_stands_up_for_acceptance():
    places = Places()
    places.add(event(["ar"], num_candidates=3, threshold=1.0))
    places.add(event([], threshold=0.9))  # a chunk of the prompt
    assert not places.predicted


# Speeds


def test_a_median_with_its_quartiles():
    found = spread([1.0, None, 2.0, 3.0, 4.0, 5.0])
    assert (found.median, found.first, found.third) == (3.0, 2.0, 4.0)
    assert spread([7.0]).first == spread([7.0]).third == 7.0
    assert spread([None]) is None and spread([]) is None


def test_ratios_are_taken_group_by_group():
    base = {0: outcome([1] * 5), 1: outcome([1] * 9), 2: outcome([1])}
    # decode: 4 tokens in 2 s against 4 in 1 s; 8 in 2 s against 8 in 4 s; nothing to compare; not run
    ran = {0: outcome([1] * 5, wall_s=2.0), 1: outcome([1] * 9, wall_s=5.0), 2: outcome([1])}
    found = ratios(ran, base)
    assert (found.decode.first, found.decode.median, found.decode.third) == (0.875, 1.25, 1.625)
    # whole call: 3/2, 3/5 and 1
    assert found.whole.median == 1.0
    assert ratios(ran, {}).decode is None


def test_tokens_per_forward_is_of_all_tokens_and_all_forwards_of_rows():
    found = [outcome([1] * 6, row_forwards=4), outcome([1] * 6, [1] * 3, row_forwards=6)]
    assert tokens_per_forward(found) == 1.5
    assert tokens_per_forward([outcome([1], row_forwards=None)]) is None


def ar(*tokens, gaps, runners_up=(1, 2, 4)):
    """One-token decoding of one prompt, 2 s long."""
    seconds = tuple(RunnerUp(token, gap) for token, gap in zip(runners_up, gaps, strict=False))
    return outcome(tokens, wall_s=2.0, runners_up=(seconds,))


def measured():
    result = Measured()
    result.outcomes = {
        TRANSFORMERS_AR: {0: outcome([5, 6, 7]), 1: outcome([8, 9, 9])},
        OUR_AR: {0: ar(5, 6, 7, gaps=(3.0, 0.5, 1.0)), 1: ar(8, 9, 9, gaps=(3.0, 0.25, 1.0))},
        "drafted": {
            0: outcome([5, 2, 2], wall_s=1.5, forwards=1, row_forwards=2, model_s=0.4),
            1: outcome([8, 9, 9], wall_s=2.0, forwards=1, row_forwards=2, model_s=0.9),
        },
    }
    return result


def test_one_method_s_figures():
    found = figures_of(method("drafted", exact=True), measured(), weight_bytes=300, bytes_per_s=1000.0)
    assert (found.num_groups, found.num_prompts, found.num_tokens) == (2, 2, 6)
    assert found.tokens_per_forward == 1.5
    # decode: 2 tokens in 0.5 s and in 1 s; a forward takes 0.5 and 1 s
    assert found.decode_tokens_per_s.median == 3.0 and found.decode_tokens_per_s_by_group == [4.0, 2.0]
    assert found.ms_per_forward == 750.0 and found.forwards_per_s == pytest.approx(4 / 3)
    assert found.weight_bytes_per_s == pytest.approx(400) and found.share_of_copy_rate == pytest.approx(0.4)
    # transformers 1 token a second, our AR 2
    assert found.over_transformers_ar.decode.median == 3.0
    assert found.over_our_ar.decode.median == 1.5
    assert found.outside_model == pytest.approx(0.15)  # of 0.2 and 0.1
    assert found.text_of == OUR_AR and found.same_text == 0.5


def test_figures_without_the_methods_they_are_compared_with():
    alone = Measured(outcomes={"drafted": measured().outcomes["drafted"]})
    found = figures_of(method("drafted", exact=True), alone, 300, None)
    assert found.over_our_ar.decode is None and found.same_text is None and found.share_of_copy_rate is None
    assert figures_of(method("drafted"), Measured(outcomes={"drafted": {}}), 300, None) is None


def test_by_category():
    result = measured()
    found = by_category([method("drafted")], result, ["writing", "math"])
    assert [(item.category, item.num_prompts) for item in found] == [("writing", 1), ("math", 1)]
    assert found[0].tokens_per_forward == 1.5 and found[0].over_our_ar.median == 2.0
    assert by_category([method("drafted")], result, [None, "math"])[0].category == "math"


# Near ties


def test_the_gap_is_that_of_one_token_decoding_where_the_texts_part():
    of = measured().outcomes
    (found,) = differences(of["drafted"], of[OUR_AR], of[OUR_AR])
    assert (found.group, found.row, found.position) == (0, 0, 1)
    assert (found.expected, found.got, found.gap, found.between_best_two) == (6, 2, 0.5, True)
    row = figures_of(method("drafted", exact=True), measured(), 1, None)
    assert row.largest_gap == 0.5 and len(row.differences) == 1
    assert not figures_of(method("drafted"), measured(), 1, None).differences  # it promises nothing


def test_where_a_text_just_ends_the_other_token_is_none():
    one_token = {0: ar(5, 6, gaps=(3.0, 0.5))}
    (found,) = differences({0: outcome([5])}, one_token, one_token)
    assert (found.position, found.expected, found.got, found.gap) == (1, 6, None, 0.5)
    (found,) = differences({0: outcome([5, 6, 7])}, one_token, one_token)
    assert (found.position, found.expected, found.got, found.gap) == (2, None, 7, None)


def test_no_gap_is_told_where_one_token_decoding_came_another_way():
    one_token = {0: ar(4, 6, 7, gaps=(3.0, 3.0, 3.0))}
    (found,) = differences({0: outcome([5, 6, 8])}, {0: outcome([5, 6, 7])}, one_token)
    assert found.position == 2 and found.gap is None and found.between_best_two is None


def test_first_difference():
    assert first_difference([5, 7, 9], [5, 7, 8]) == 2
    assert first_difference([5], [5, 7]) == 1 and first_difference([], [1]) == 0


def test_the_gap_comes_from_the_model_s_logits():
    class TwoLikely(ScriptedModel):
        def _logits(self, position, token_id):
            logits = torch.full((VOCABULARY,), -20.0)
            logits[65], logits[66] = 2.0, 1.25
            return logits

    loaded = scripted_loaded(lambda position, masked: (65, 1.0), model=TwoLikely(None))
    found = run_engine(Engine(loaded), [[70]], DecodeSettings(mode="ar"), 3)
    assert [second.id for second in found.runners_up[0]] == [66] * 3
    assert [second.gap for second in found.runners_up[0]] == pytest.approx([0.75] * 3, abs=1e-5)


def test_a_gap_stays_finite_where_the_second_is_impossible():
    loaded = scripted_loaded(lambda position, masked: (65, 1.0))
    found = run_engine(Engine(loaded), [[70]], DecodeSettings(mode="ar"), 1)
    assert math.isfinite(found.runners_up[0][0].gap)


# Memory


def test_weights_are_counted_once_and_rows_of_an_embedding_not():
    tied, untied = tiny_model(tied=True), tiny_model(tied=False)
    assert weight_bytes(tied) == 4 * sum(weight.numel() for weight in tied.parameters())
    assert weight_bytes(untied) == weight_bytes(tied)


def test_packed_weights_count_as_what_they_were():
    if not can_pack(torch.float32):
        pytest.skip("no packing here")
    model = tiny_model()
    before = weight_bytes(model)
    pack_weights(model)
    assert weight_bytes(model) == before


def test_a_copy_has_a_rate():
    assert copy_rate(torch.device("cpu"), 2**16) > 0


# The report


def report(**more):
    names = {TRANSFORMERS_AR: TRANSFORMERS_AR, OUR_AR: TRANSFORMERS_AR, "drafted": OUR_AR}
    found = [method(name, text_of, exact=True) for name, text_of in names.items()]
    rows = [figures_of(item, measured(), 300, 1e3) for item in found]
    return BatchReport(1, 2, rows, by_category(found, measured(), ["a", "b"]), detailed=("drafted",), **more)


def test_the_tables_have_a_line_a_method_and_a_category():
    text = markdown(report())
    lines = text.splitlines()
    assert lines[0] == "### Batch 1, 2 prompts"
    assert sum(line.startswith("| drafted |") for line in lines) == 2 + 2
    assert sum(line.startswith(f"| {OUR_AR} |") for line in lines) == 2
    row = next(line for line in lines if line.startswith("| drafted |"))
    assert row.strip("| ").split(" | ") == [
        "drafted", "1.50", "750.0", "1.3", "3.0", "3.00 (2.50–3.50)", "1.50 (1.25–1.75)", "1.8", "1.75",
        "1.00", "50%",
    ]  # fmt: skip
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 3
    for table in tables:
        assert len({line.count("|") for line in table}) == 1
    assert f"drafted: 1 of 2 texts part from that of {OUR_AR}; largest gap" in text
    assert "logits there 0.5; 1 of 1 between these two." in text


def test_what_was_left_out_is_named():
    text = markdown(
        report(skipped={"slow": "no such device"}, failed={"bad": "ValueError: x"}, interrupted=True)
    )
    assert "(stopped before the end" in text.splitlines()[0]
    assert "slow: skipped, it cannot run here (no such device)." in text
    assert "bad: FAILED (ValueError: x)." in text
    assert "Nothing was measured." in markdown(BatchReport(4, 0, []))


def test_the_json_reads_back():
    data = json.loads(json.dumps(as_json({"model": "tiny"}, [report()]), allow_nan=False))
    assert data["format"] == "mars-bench-speed" and data["interrupted"] is False
    assert data["batches"][0]["rows"][2]["differences"][0]["gap"] == 0.5
