"""Quality of answers: what is scored is what the model says, and what is told of it is right."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mars_core.__main__ import main
from mars_core.engine import Engine
from mars_core.errors import MarsError
from mars_core.evaluate import command, needs
from mars_core.evaluate.agreement import agreement
from mars_core.evaluate.answer_log import AnswerLog, belongings
from mars_core.evaluate.answers import Answer, Generation, answers
from mars_core.evaluate.figures import Figure
from mars_core.evaluate.intervals import ratio_interval, wilson
from mars_core.evaluate.likelihood import Likelihood, compare, held_out_examples, likelihood
from mars_core.evaluate.report import ModelReport, as_json, markdown
from mars_core.evaluate.scoring import Scored, behind, score
from mars_core.prompts import chat_prompt_ids
from mars_core.row import Request
from mars_core.settings import DecodeSettings
from mars_core.train.data import DataSettings
from tests.scripted import always, scripted_loaded, sometimes
from tests.tiny import tiny_loaded, tiny_tokenizer

GREEDY = DecodeSettings(mode="ar", block_size=4, num_alternatives=0)


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ids_of(text: str) -> list[int]:
    return list(tiny_tokenizer()(text)["input_ids"])


def directly(loaded: Any, ids: list[int], start: int) -> tuple[list[float], list[bool]]:
    """Log-probabilities of ids[start:] and whether each is the argmax, by one plain forward."""
    with torch.no_grad():
        logits = loaded.model(torch.tensor([ids]), use_cache=False).logits[0].double()
    chosen = logits.log_softmax(-1)
    logits[:, list(loaded.suppressed_token_ids)] = -torch.inf
    places = range(start, len(ids))
    return [chosen[i - 1, ids[i]].item() for i in places], [
        int(logits[i - 1].argmax()) == ids[i] for i in places
    ]


class TestScoring:
    def test_a_score_is_the_log_probability_by_the_right_shift_in_any_batch(self):
        loaded = tiny_loaded()
        texts = [
            behind([257, *range(1, 9)], [5, 6, 7]),
            behind([65], [66]),
            behind(list(range(30)), list(range(40, 60))),
        ]
        expected = [directly(loaded, list(t.ids), t.first) for t in texts]
        for tokens_per_batch in (1, 2048):
            for found, (likelihoods, greedy) in zip(
                score(loaded, texts, tokens_per_batch), expected, strict=True
            ):
                assert found.log_probabilities == pytest.approx(likelihoods, abs=1e-4)
                assert list(found.greedy) == greedy

    def test_what_the_model_would_say_itself_is_greedy(self):
        loaded = tiny_loaded()
        prompt = list(range(70, 80))
        ((_, answer),) = answers(
            Engine(loaded), [Request(prompt, dataclasses.replace(GREEDY, max_new_tokens=40))], 1
        )
        assert all(score(loaded, [behind(prompt, answer.ids)])[0].greedy)

    def test_tokens_in_the_middle_alone_can_be_asked_about(self):
        loaded = tiny_loaded()
        ids = list(range(20))
        found = score(loaded, [Scored(tuple(ids), tuple(i in (3, 9) for i in ids))])[0]
        whole, _ = directly(loaded, ids, 1)
        assert found.log_probabilities == pytest.approx([whole[2], whole[8]], abs=1e-4)

    def test_what_cannot_be_scored_is_refused(self):
        loaded = tiny_loaded()
        with pytest.raises(MarsError, match="never about the first"):
            score(loaded, [Scored((1, 2), (True, True))])
        with pytest.raises(MarsError, match="ask about one token"):
            score(loaded, [Scored((1, 2), (False, False))])
        with pytest.raises(MarsError, match="513|514|context holds 512"):
            score(loaded, [behind([1], [2] * 513)])
        assert len(score(loaded, [behind([1], [2] * 512)])[0].greedy) == 512  # the last need not be fed


class TestIntervals:
    def test_wilsons_are_those_computed_by_hand(self):
        # z = 1.95996, z² = 3.84146. 8 of 10: centre (0.8 + 0.19207) / 1.38415 = 0.71674,
        # half-width 1.95996 / 1.38415 · √(0.016 + 0.0096036) = 0.22657
        assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
        # 0 of 20: from 0 to z² / (20 + z²)
        assert wilson(0, 20) == pytest.approx((0.0, 3.84146 / 23.84146), abs=1e-5)
        assert wilson(20, 20) == pytest.approx((20 / 23.84146, 1.0), abs=1e-5) and wilson(20, 20)[1] <= 1

    def test_the_bootstrap_has_the_width_of_the_normal_law_where_that_holds(self):
        passed = [1.0] * 200 + [0.0] * 200
        low, high = ratio_interval(passed, [1.0] * 400)
        # 0.5 ± 1.96 · √(0.25 / 400) = 0.5 ± 0.049
        assert low == pytest.approx(0.451, abs=0.004) and high == pytest.approx(0.549, abs=0.004)

    def test_a_paired_comparison_is_surer_than_its_two_sides(self):
        base = [float(n) for n in range(1, 101)]
        ours = [1.02 * value for value in base]
        assert ratio_interval(ours, base) == pytest.approx((1.02, 1.02))
        assert ratio_interval([*ours[:-1], 5 * base[-1]], base)[1] > 1.05

    def test_more_examples_than_are_drawn_at_once_change_nothing_but_noise(self, monkeypatch):
        values = [float(n % 7) for n in range(50)]
        whole = ratio_interval(values, [1.0] * 50)
        monkeypatch.setattr("mars_core.evaluate.intervals._MOST_DRAWN", 60)
        assert ratio_interval(values, [1.0] * 50, rounds=2000) == pytest.approx(whole, abs=0.1)

    def test_a_figure_of_several_checks_an_example_counts_checks(self):
        ours = Figure("inst", ((True, False), (True,), (True, True, True)))
        base = Figure("inst", ((False, False), (True,), (True, True, False)))
        assert ours.value == 5 / 6 and not ours.one_check_each
        value, (low, high) = ours.difference(base)
        assert value == pytest.approx(2 / 6) and low <= value <= high
        with pytest.raises(MarsError, match="not asked the same"):
            ours.difference(Figure("inst", ((True,),)))


class TestLikelihood:
    def test_it_is_the_mean_over_answer_tokens_and_their_end_of_turn(self, tmp_path):
        loaded = tiny_loaded()
        chats = write_lines(
            tmp_path / "chats.jsonl",
            {"prompt": "Hi", "response": "Hello."},
            {"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]},
        )
        examples, counts = held_out_examples(loaded, DataSettings((str(chats),), held_out=0))
        found = likelihood(loaded, examples)
        assert found.num_tokens == (7, 2) and counts["training label tokens"] == 9
        prompt = chat_prompt_ids(tiny_tokenizer(), [{"role": "user", "content": "1+1"}])
        last = list(examples[1].input_ids)
        assert last == [*prompt, *ids_of("2"), 258]
        assert found.nll[1] == pytest.approx(-sum(directly(loaded, last, len(last) - 2)[0]), abs=1e-4)
        assert found.per_token == pytest.approx(sum(found.nll) / 9)

    def test_the_examples_that_training_sets_aside_are_the_ones_measured_on(self, tmp_path):
        lines = [{"prompt": f"question {n}", "response": f"answer {n}"} for n in range(12)]
        chats = str(write_lines(tmp_path / "chats.jsonl", *lines))
        loaded = tiny_loaded()
        settings = DataSettings((chats,), held_out=3, seed=5)
        examples, _ = held_out_examples(loaded, settings)
        others, _ = held_out_examples(loaded, dataclasses.replace(settings, seed=6))
        assert len(examples) == len(others) == 3
        assert {e.name for e in examples} != {e.name for e in others}

    def test_the_relative_difference_of_two_models_is_that_of_their_sums(self):
        base = Likelihood(("a", "b", "c"), (10.0, 20.0, 30.0), (5, 10, 15))
        ours = Likelihood(("a", "b", "c"), (10.1, 20.2, 30.3), (5, 10, 15))
        found = compare(ours, base)
        assert found.difference == pytest.approx(0.01)
        assert found.interval == pytest.approx((0.01, 0.01))
        worse = compare(dataclasses.replace(ours, nll=(10.0, 20.0, 36.0)), base)
        assert worse.difference == pytest.approx(0.1) and worse.interval[0] <= 0.0 < worse.interval[1]

    def test_models_that_cut_text_differently_are_not_compared(self):
        base = Likelihood(("a",), (10.0,), (5,))
        other = Likelihood(("a",), (10.0,), (6,))
        with pytest.raises(MarsError, match="same tokens"):
            compare(other, base)
        # found out at the end of a long evaluation, it must not lose the rest
        reports = [ModelReport(name, "ar", {}, {}, likelihood=of) for name, of in (("A", other), ("B", base))]
        assert "not comparable" in markdown(*reports) and as_json(*reports)["differences"] == []


class TestAgreement:
    PROMPTS = [[257, *range(60 + 3 * n, 70 + 3 * n)] for n in range(5)]

    def test_verification_at_one_agrees_with_ar_on_every_token(self):
        lossless = DecodeSettings(threshold=1.0, verify=True, layout="full", max_new_tokens=12)
        found = agreement(tiny_loaded(), self.PROMPTS, lossless, batch_size=2)
        assert (found.num_equal, found.first_differences) == (5, ())
        assert found.nll == pytest.approx(found.ar_nll) and found.median_first_difference is None
        assert found.equal_interval == wilson(5, 5)
        assert found.ar_generation.tokens_per_forward == 1

    def test_a_text_that_both_ways_gave_is_scored_once(self, monkeypatch):
        scored = []
        once = lambda loaded, texts: scored.extend(texts) or score(loaded, texts)  # noqa: E731
        monkeypatch.setattr("mars_core.evaluate.agreement.score", once)
        lossless = DecodeSettings(threshold=1.0, verify=True, layout="full", max_new_tokens=12)
        found = agreement(tiny_loaded(), self.PROMPTS, lossless, batch_size=2)
        assert found.num_equal == len(scored) == 5

    def test_accepting_all_tells_where_the_texts_part_and_what_it_costs(self):
        loaded = tiny_loaded()
        eager = DecodeSettings(threshold=0.0, max_new_tokens=12)
        found = agreement(loaded, self.PROMPTS, eager, batch_size=3)
        engine = Engine(loaded)
        places, costs = [], []
        for prompt in self.PROMPTS:
            ar, ours = (
                next(answers(engine, [Request(prompt, s)], 1))[1].ids
                for s in (dataclasses.replace(eager, mode="ar"), eager)
            )
            places += [next(i for i in range(12) if ar[i] != ours[i])] if ar != ours else []
            likelihoods, _ = directly(loaded, [*prompt, *ours], len(prompt))
            costs.append(-sum(likelihoods) / len(ours))
        assert found.first_differences == tuple(places) and places
        assert found.nll == pytest.approx(sum(costs) / 5, abs=1e-4) and found.nll > found.ar_nll
        assert found.generation.tokens_per_forward > 2


class TestAnswers:
    def test_a_pool_gives_what_each_prompt_gives_alone_and_counts_forwards(self):
        loaded = scripted_loaded(sometimes())
        settings = DecodeSettings(threshold=0.9, block_size=4, max_new_tokens=20)
        requests = [Request([1] * (3 + n), settings) for n in range(5)]
        together = dict(answers(Engine(loaded), requests, 2))
        assert sorted(together) == list(range(5))
        for number, request in enumerate(requests):
            events = list(Engine(loaded).stream(request))
            answer = together[number]
            assert answer.text == "".join(event.text for event in events)
            assert answer.num_forwards == sum(bool(event.committed) for event in events)
            assert (len(answer.ids), answer.finish_reason) == (20, "length")
        assert Generation.of(list(together.values())).num_cut == 5

    def test_no_row_stays_in_the_engine_when_nobody_waits_any_more(self):
        engine = Engine(scripted_loaded(always()))
        endless = (Request([1, 2], DecodeSettings(max_new_tokens=8 * n)) for n in range(1, 5))
        given = answers(engine, endless, 3)
        next(given)
        given.close()
        engine.step()
        assert not engine.rows and not engine.waiting

    def test_the_log_gives_back_what_it_was_given_and_forgets_half_a_line(self, tmp_path):
        path, loaded = tmp_path / "deep" / "answers.jsonl", tiny_loaded()
        log = AnswerLog(path, belongings(loaded, GREEDY))
        answer = Answer("hé", (1, 2), 2, "eos")
        log.add("a", answer)
        log.add("b", answer)
        log.close()
        path.write_bytes(path.read_bytes()[:-5])
        again = AnswerLog(path, belongings(loaded, GREEDY))
        assert again.get("a") == answer and again.get("b") is None
        again.add("b", answer)
        again.close()
        assert AnswerLog(path, belongings(loaded, GREEDY)).get("b") == answer

    def test_the_log_of_other_weights_or_settings_or_of_something_else_is_refused(self, tmp_path):
        path = tmp_path / "answers.jsonl"
        AnswerLog(path, belongings(tiny_loaded(), GREEDY)).close()
        with pytest.raises(MarsError, match="differ from what is asked for in probe"):
            AnswerLog(path, belongings(tiny_loaded(seed=1), GREEDY))
        with pytest.raises(MarsError, match="settings"):
            AnswerLog(path, belongings(tiny_loaded(), DecodeSettings(threshold=0.5)))
        with pytest.raises(MarsError, match="no file of answers"):
            AnswerLog(write_lines(tmp_path / "other.jsonl", [1], 2), belongings(tiny_loaded(), GREEDY))


class TestCommand:
    def run(self, *arguments: Any) -> int:
        return main(["evaluate", *map(str, arguments)])

    def test_likelihood_and_agreement_need_no_lm_eval(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr(needs, "find_spec", lambda name: None)
        models = {"default": tiny_loaded(), "base": tiny_loaded(seed=1)}
        monkeypatch.setattr(command, "load_from", lambda arguments, size: models[arguments.model])
        chats = write_lines(
            tmp_path / "chats.jsonl", *({"prompt": f"q{n}", "response": f"a{n}"} for n in range(6))
        )
        questions = write_lines(tmp_path / "prompts.jsonl", {"prompt": "one"}, {"turns": ["two"]})
        given = ["--likelihood", chats, "--agreement", questions, "--max-new-tokens", 8, "--against", "base"]
        assert self.run(*given, "--threshold", 1, "--verify") == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        mine, theirs = (
            likelihood(model, held_out_examples(model, DataSettings((str(chats),), held_out=0))[0])
            for model in models.values()
        )
        assert found["ours"]["likelihood"]["nll_per_token"] == pytest.approx(mine.per_token)
        assert found["differences"][0]["difference"] == pytest.approx(compare(mine, theirs).difference)
        assert found["ours"]["agreement"]["num_equal"] == 2 and found["against"]["agreement"] is None
        assert self.run("--tasks", "gsm8k") == 2
        assert "pip install 'lm-eval" in capsys.readouterr().err

    def test_bad_options_are_refused_before_a_model_is_loaded(self, capsys, monkeypatch, tmp_path):
        monkeypatch.setattr(needs, "find_spec", lambda name: True)  # as if all packages were there
        monkeypatch.setattr(command, "load_from", None)
        for given, message in (
            ([], "Give --tasks, --likelihood or --agreement"),
            (["--tasks", "ifevil"], "the tasks are gsm8k, ifeval"),
            (["--agreement", "some", "--against", "base"], "Give --tasks or --likelihood"),
            (["--agreement", "some", "--answers", "a.jsonl"], "Give --tasks, or leave it out"),
            (["--tasks", "gsm8k", "--limit", "0"], "limit is 0"),
            (["--tasks", "gsm8k", "--threshold", "-1"], "threshold is -1"),
            (["--tasks", "gsm8k", "--data-dir", tmp_path], "gsm8k_test.jsonl for the task gsm8k"),
            (["--agreement", tmp_path / "none.jsonl"], "There is no file"),
        ):
            assert self.run(*given) == 2
            assert message in capsys.readouterr().err
