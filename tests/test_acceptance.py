"""Confidence, choice and left-to-right acceptance."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mars_core.acceptance import Prediction, accepted_length, check_numbers, make_sampler, predict
from mars_core.settings import DecodeSettings, LiveValues
from tests.scripted import logits_of

NOTHING = torch.tensor([], dtype=torch.long)
CPU = torch.device("cpu")


def prediction(probability: float = 0.5, margin: float = 0.5, entropy: float = 0.5) -> Prediction:
    return Prediction(0, probability, margin, entropy, ())


def one(logits: torch.Tensor, suppressed: torch.Tensor = NOTHING, num_best: int = 3) -> Prediction:
    return predict(logits[None, None], [None], suppressed, num_best)[0][0]


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_acceptance_goes_left_to_right_and_stops_at_the_first_that_fails():
    row = [prediction(p) for p in (0.3, 0.95, 0.7, 0.99)]
    assert accepted_length(row, LiveValues(0.9)) == 2


def test_the_first_is_always_accepted_however_unsure():
    assert accepted_length([prediction(1e-9), prediction(1e-9)], LiveValues(0.9)) == 1


def test_no_predictions_accept_nothing():
    assert accepted_length([], LiveValues(0.9)) == 0


def test_confidence_equal_to_the_threshold_passes():
    assert prediction(probability=0.5).passes(LiveValues(0.5, "probability"))
    assert prediction(margin=0.25).passes(LiveValues(0.25, "margin"))
    assert prediction(entropy=1.5).passes(LiveValues(1.5, "entropy"))


def test_a_threshold_of_zero_accepts_all_and_for_entropy_nothing():
    unsure = [prediction(1e-9, 0.0, 9.0)] * 4
    assert accepted_length(unsure, LiveValues(0.0, "probability")) == 4
    assert accepted_length(unsure, LiveValues(0.0, "margin")) == 4
    assert accepted_length(unsure, LiveValues(0.0, "entropy")) == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=16), st.floats(0, 1))
def test_what_is_accepted_is_the_longest_passing_start(probabilities, threshold):
    row = [prediction(p) for p in probabilities]
    length = accepted_length(row, LiveValues(threshold))
    assert all(p >= threshold for p in probabilities[1:length])
    assert length == len(row) or probabilities[length] < threshold or threshold >= 1


def test_the_figures_are_those_of_the_softmax():
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5])
    p = logits.double().softmax(-1)
    result = one(logits)
    assert result.id == 0
    assert result.probability == pytest.approx(float(p[0]), abs=1e-6)
    assert result.margin == pytest.approx(float(p[0] - p[1]), abs=1e-6)
    assert result.entropy == pytest.approx(float(-(p * p.log()).sum()), abs=1e-6)
    assert [i for i, _ in result.best] == [0, 1, 2]


def test_a_suppressed_token_is_never_chosen_and_takes_no_probability():
    logits = logits_of(259, 0.98)
    logits[42] = logits_of(42, 0.9)[42]
    result = one(logits, torch.tensor([259]))
    without = logits.clone()
    without[259] = -math.inf
    assert result.id == 42
    assert result.probability == pytest.approx(float(without.softmax(-1)[42]), abs=1e-6)
    assert 259 not in [i for i, _ in result.best]


def test_more_alternatives_than_the_vocabulary_has_are_as_many_as_there_are():
    assert len(one(torch.zeros(4), num_best=32).best) == 4
    assert one(torch.zeros(4), num_best=0).best == ()


def test_half_precision_logits_are_decided_in_fp32():
    assert one(torch.tensor([8.0, 1.0], dtype=torch.bfloat16)).probability == pytest.approx(
        1 / (1 + math.exp(-7)), abs=1e-6
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_logits_that_are_no_numbers_are_noticed_at_their_position_only(bad, temperature):
    logits = torch.zeros(2, 2, 8)
    logits[1, 1, 3] = bad
    settings = DecodeSettings(temperature=temperature, seed=0)
    samplers = [make_sampler(settings, CPU) for _ in range(2)]
    healthy, ill = predict(logits, samplers, NOTHING, 2)
    check_numbers(healthy)
    check_numbers(ill[:1])
    with pytest.raises(ArithmeticError, match="NaN"):
        check_numbers(ill)


def test_a_row_with_padding_draws_as_it_would_alone():
    logits = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    settings = DecodeSettings(temperature=1.0, seed=3)
    alone = predict(logits[None, -2:], [make_sampler(settings, CPU)], NOTHING, 2)[0]
    together = predict(
        torch.stack([logits, logits]),
        [make_sampler(DecodeSettings(temperature=1.0, seed=9), CPU), make_sampler(settings, CPU)],
        NOTHING,
        2,
        [5, 2],
    )
    assert [p.id for p in together[1]] == [p.id for p in alone]
    assert len(together[0]) == 5


def test_sampling_follows_the_models_distribution():
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5])
    sampler = make_sampler(DecodeSettings(temperature=1.0, seed=11), CPU)
    assert sampler is not None
    drawn = sampler.draw(logits.expand(20_000, 4))
    counts = torch.bincount(drawn, minlength=4).double()
    assert chi_square(counts, 20_000 * logits.double().softmax(-1)) < 16.27  # 3 degrees, p = 0.001


def test_temperature_top_k_and_top_p_narrow_the_draw_and_not_the_confidence():
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5])
    for options in (
        {"temperature": 0.001},
        {"temperature": 5.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.2},
    ):
        sampler = make_sampler(DecodeSettings(seed=1, **options), CPU)
        row = predict(logits.expand(1, 200, 4), [sampler], NOTHING, 2)[0]
        assert {p.id for p in row} == {0}
        assert row[0].probability == pytest.approx(float(logits.softmax(-1)[0]), abs=1e-6)


def test_the_lowest_temperature_does_not_overflow():
    sampler = make_sampler(DecodeSettings(temperature=0.001, seed=1), CPU)
    row = predict(torch.tensor([[[1e4, 9e3, -1e4]]]), [sampler], NOTHING, 2)[0]
    assert row[0].id == 0
