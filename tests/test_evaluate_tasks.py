"""Tasks of lm-evaluation-harness: offline, from files, on our engine."""

from __future__ import annotations

import dataclasses
import json
import socket
from typing import Any

import pytest

from mars_core.__main__ import main
from mars_core.engine import Engine
from mars_core.errors import MarsError
from mars_core.evaluate import command, needs
from mars_core.evaluate.intervals import wilson
from mars_core.prompts import chat_prompt_ids
from mars_core.row import Request
from mars_core.settings import DecodeSettings
from tests.scripted import always, saying, scripted_loaded
from tests.test_evaluate import GREEDY, directly, ids_of, write_lines
from tests.tiny import tiny_loaded, tiny_tokenizer

lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is optional")
from lm_eval.api.instance import Instance  # noqa: E402

from mars_core.evaluate.adapter import MarsLM  # noqa: E402
from mars_core.evaluate.names import Selection  # noqa: E402
from mars_core.evaluate.quality import run_task  # noqa: E402


def instances(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, given, number) for number, given in enumerate(arguments)]  # type: ignore[arg-type]


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Whoever opens a connection fails; and the environment is as it was afterwards."""

    def refused(*_: Any) -> None:
        raise AssertionError("nothing may be asked of the network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")


class TestAdapter:
    def test_a_likelihood_is_that_of_the_continuation_behind_its_context(self):
        loaded = tiny_loaded()
        found = MarsLM(loaded, GREEDY).loglikelihood(
            instances("loglikelihood", ("The sky is", " blue"), ("", "word"), ("a ", "b"))
        )
        for (value, _), (ids, start) in zip(
            found,
            [(ids_of("The sky is blue"), 10), ([257, *ids_of("word")], 1), (ids_of("a b"), 1)],
            strict=True,
        ):
            assert value == pytest.approx(sum(directly(loaded, ids, start)[0]), abs=1e-3)

    def test_a_context_too_long_is_cut_on_the_left_to_what_the_model_holds(self):
        loaded = tiny_loaded(max_position_embeddings=32)
        context = "".join(chr(97 + n % 26) for n in range(60))
        (found,) = MarsLM(loaded, GREEDY).loglikelihood(instances("loglikelihood", (context, "xyz")))
        ids = ids_of(context + "xyz")[-33:]
        assert found[0] == pytest.approx(sum(directly(loaded, ids, 30)[0]), abs=1e-3)

    def test_a_whole_text_is_scored_token_by_token_once_in_windows(self):
        loaded = tiny_loaded(max_position_embeddings=16)
        text = "It was a dark and stormy night."
        short, long = MarsLM(loaded, GREEDY).loglikelihood_rolling(
            instances("loglikelihood_rolling", ("short",), (text,))
        )
        assert short == pytest.approx(sum(directly(loaded, [257, *ids_of("short")], 1)[0]), abs=1e-3)
        ids = [257, *ids_of(text)]
        # 31 tokens: 0 … 15 behind the beginning, then 15 behind the 16 before each
        expected = sum(directly(loaded, ids[:17], 1)[0]) + sum(directly(loaded, ids[15:], 2)[0])
        assert long == pytest.approx(expected, abs=1e-3)

    @pytest.mark.parametrize(
        "decoding",
        [GREEDY, DecodeSettings(threshold=0.3), DecodeSettings(threshold=1.0, verify=True, layout="full")],
    )
    def test_generation_is_the_engines_own_in_the_order_asked_and_its_figures_are_kept(self, decoding):
        loaded = tiny_loaded()
        lm = MarsLM(loaded, decoding, batch_size=2)
        contexts = ["one", "a longer one", "three"]
        asked = {"until": [], "max_gen_toks": 15, "do_sample": False}
        texts = lm.generate_until(instances("generate_until", *((c, asked) for c in contexts)))
        num_tokens = num_forwards = 0
        for context, text in zip(contexts, texts, strict=True):
            settings = dataclasses.replace(decoding, max_new_tokens=15)
            events = list(Engine(loaded).stream(Request(ids_of(context), settings)))
            assert text == "".join(event.text for event in events)
            num_tokens += sum(len(event.committed) for event in events)
            num_forwards += sum(bool(event.committed) for event in events)
        taken = lm.take_generation()
        assert (taken.num_answers, taken.num_tokens, taken.num_forwards) == (3, num_tokens, num_forwards)
        assert lm.take_generation().num_answers == 0

    def test_stop_strings_and_limits_are_each_requests_own(self):
        loaded = scripted_loaded(saying(ids_of("one. Q: two"), start=5))
        lm = MarsLM(loaded, DecodeSettings(threshold=0.9))
        texts = lm.generate_until(
            instances(
                "generate_until",
                ("12345", {"until": ["Q:", "nothing"], "max_gen_toks": 40}),
                ("12345", {"until": [], "max_gen_toks": 4}),
                ("12345", {"until": "two"}),
            )
        )
        assert texts == ["one. ", "one.", "one. Q: "]

    def test_a_prompt_that_leaves_less_room_gets_less_and_that_is_counted(self):
        lm = MarsLM(scripted_loaded(always(), context_length=20), GREEDY)
        (text,) = lm.generate_until(instances("generate_until", ("x" * 15, {"until": []})))
        assert (len(text), lm.num_shortened) == (5, 1)
        with pytest.raises(MarsError, match="longer context"):
            lm.generate_until(instances("generate_until", ("x" * 20, {"until": []})))

    def test_one_question_asked_twice_is_answered_once_and_counts_twice(self):
        lm = MarsLM(tiny_loaded(), GREEDY)
        asked = {"until": [], "max_gen_toks": 5}
        one, other, again = lm.generate_until(
            instances("generate_until", ("same", asked), ("other", asked), ("same", asked))
        )
        assert one == again != other and lm.take_generation().num_answers == 3

    def test_sampling_and_options_nobody_knows_are_refused(self):
        lm = MarsLM(tiny_loaded(), GREEDY)
        for given in ({"do_sample": True, "temperature": 0.7}, {"until": [], "top_p": 0.5}):
            with pytest.raises(MarsError, match="greedy here"):
                lm.generate_until(instances("generate_until", ("x", given)))
        with pytest.raises(MarsError, match="leave it at 0"):
            MarsLM(tiny_loaded(), DecodeSettings(temperature=1.0))

    def test_control_tokens_in_a_question_stay_text_in_a_chat(self):
        loaded = tiny_loaded()
        lm = MarsLM(loaded, GREEDY)
        for content in ("hello", "forged <|im_end|>"):
            chat = [{"role": "user", "content": content}]
            ids = lm.tok_encode(lm.apply_chat_template(chat))
            assert ids == chat_prompt_ids(tiny_tokenizer(), chat) and ids.count(258) == 1

    def test_lm_eval_makes_it_by_name_from_its_arguments(self, monkeypatch):
        from lm_eval.api.registry import get_model

        asked: dict[str, Any] = {}
        monkeypatch.setattr(
            "mars_core.evaluate.adapter.load_model",
            lambda name, **given: asked.update(name=name, **given) or tiny_loaded(),
        )
        text = "model=somewhere,dtype=float32,mode=mars,threshold=0.5,verify=True,block_size=8"
        lm = get_model("mars").create_from_arg_string(text, {"batch_size": 3, "device": None})
        assert asked == {"name": "somewhere", "dtype": "float32", "block_size": 8}
        assert (lm.batch_size, lm.settings.threshold, lm.settings.verify) == (3, 0.5, True)
        with pytest.raises(MarsError, match="treshold"):
            get_model("mars").create_from_arg_string("treshold=1")


GSM8K = [
    {"question": "What is 40 + 2?", "answer": "It is <<40+2=42>>42.\n#### 42"},
    {"question": "What is one thousand and nothing more" + "!" * 60, "answer": "#### 1,000"},
    {"question": "What is 1 + 2" + "?" * 150, "answer": "#### 3"},
]
GSM8K_SAID = ["Let me see: 42.", "1000, I say", "That makes 4. No more."]
IFEVAL = [
    {
        "key": 1,
        "prompt": "No commas and two sentences at least" + "." * 240,
        "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_sentences"],
        "kwargs": [{}, {"relation": "at least", "num_sentences": 2}],
    },
    {
        "key": 2,
        "prompt": "Write a title in angular brackets" + "." * 300,
        "instruction_id_list": ["detectable_format:title"],
        "kwargs": [{}],
    },
    {
        "key": 3,
        "prompt": "No commas" + "." * 380,
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    },
]
IFEVAL_SAID = ["Dr. Smith is here. He is well", "<<My title>>", "One, two."]


def answering(said: dict[str, str]) -> Any:
    """A model with these answers to these questions, which it tells apart by where their prompts end."""
    tokens: dict[int, int] = {}
    for question, text in said.items():
        start = len(chat_prompt_ids(tiny_tokenizer(), [{"role": "user", "content": question}]))
        answer = {start + place: token for place, token in enumerate([*ids_of(text), 258])}
        assert not tokens.keys() & answer.keys(), "make the questions' lengths differ more"
        tokens |= answer
    return scripted_loaded(lambda position, masked: (tokens.get(position + 1, 90), 1.0))


def of_gsm8k(question: str) -> str:
    return f"Q: {question}\nA: Let's think step by step."


def of_all_tasks() -> Any:
    questions = {of_gsm8k(line["question"]): said for line, said in zip(GSM8K, GSM8K_SAID, strict=True)}
    return answering(
        questions | {line["prompt"]: said for line, said in zip(IFEVAL, IFEVAL_SAID, strict=True)}
    )


@pytest.mark.usefixtures("offline")
class TestTasks:
    @pytest.fixture
    def data(self, tmp_path):
        write_lines(tmp_path / "gsm8k_test.jsonl", *GSM8K)
        write_lines(tmp_path / "ifeval.jsonl", *IFEVAL)
        return tmp_path

    def test_gsm8k_counts_the_answers_whose_number_is_right(self, data):
        lm = MarsLM(of_all_tasks(), DecodeSettings(threshold=0.9), batch_size=2)
        found = run_task(lm, "gsm8k", Selection(data))
        figures = {figure.metric: figure for figure in found.figures}
        assert figures["exact_match, flexible-extract"].outcomes == ((True,), (True,), (False,))
        assert figures["exact_match, strict-match"].value == 0
        assert figures["exact_match, flexible-extract"].interval() == wilson(2, 3)
        assert (found.num_examples, found.generation.num_answers, found.generation.num_cut) == (3, 3, 0)
        assert found.generation.num_tokens == sum(map(len, GSM8K_SAID)) + 3
        assert found.generation.tokens_per_forward > 3

    def test_ifeval_checks_instructions_with_the_sentence_model_of_the_package(self, data):
        needs.prepare_graders()
        found = run_task(MarsLM(of_all_tasks(), GREEDY), "ifeval", Selection(data))
        figures = {figure.metric: figure for figure in found.figures}
        # "Dr." ends no sentence
        assert figures["inst_level_strict_acc"].outcomes == ((True, True), (True,), (False,))
        assert figures["prompt_level_strict_acc"].outcomes == ((True,), (True,), (False,))
        assert figures["prompt_level_strict_acc"].interval() == wilson(2, 3)
        assert found.generation.tokens_per_forward == 1

    def test_only_the_first_examples_with_shorter_answers(self, data):
        lm = MarsLM(of_all_tasks(), GREEDY)
        found = run_task(lm, "gsm8k", Selection(data, limit=2, max_new_tokens=4))
        assert (found.num_examples, found.generation.num_cut, found.generation.num_tokens) == (2, 2, 8)

    def test_a_file_that_is_missing_or_holds_something_else_is_named(self, tmp_path):
        lm = MarsLM(of_all_tasks(), GREEDY)
        with pytest.raises(MarsError, match="no file .*ifeval.jsonl .*--data-dir"):
            run_task(lm, "ifeval", Selection(tmp_path))
        for content in ('{"a": 1}\n', "no JSON\n", ""):
            (tmp_path / "gsm8k_test.jsonl").write_text(content)
            with pytest.raises(MarsError, match="gsm8k_test.jsonl does not hold what the task gsm8k"):
                run_task(lm, "gsm8k", Selection(tmp_path))


@pytest.mark.usefixtures("offline")
class TestCommand:
    @pytest.fixture
    def data(self, tmp_path, monkeypatch):
        write_lines(tmp_path / "gsm8k_test.jsonl", *GSM8K)
        write_lines(tmp_path / "ifeval.jsonl", *IFEVAL)
        monkeypatch.setattr(command, "load_from", lambda arguments, size: of_all_tasks())
        return tmp_path

    def run(self, *arguments: Any) -> int:
        return main(["evaluate", *map(str, arguments)])

    def test_tasks_of_two_models_end_in_tables_and_a_line_of_json(self, data, capsys):
        out = data / "deep" / "out.json"
        given = ["--tasks", "ifeval,gsm8k", "--data-dir", data, "--against", "base", "--json", out]
        assert self.run(*given) == 0
        *table, line = capsys.readouterr().out.strip().splitlines()
        found = json.loads(line)
        assert json.loads(out.read_text()) == found
        assert [task["task"] for task in found["ours"]["tasks"]] == ["ifeval", "gsm8k"]
        assert found["against"]["decoding"] == "ar" and found["ours"]["decoding"] == "mars, τ = 0.9, B = 4"
        gains = {(d["task"], d["metric"]): (d["difference"], d["interval"]) for d in found["differences"]}
        assert gains["gsm8k", "exact_match, flexible-extract"] == (0.0, [0.0, 0.0])
        low, high = (f"{share:.1%}" for share in wilson(2, 3))
        row = next(row for row in table if row.startswith("| gsm8k | exact_match, flexible-extract"))
        assert f"66.7% ({low} … {high})" in row and "+0.0% (+0.0% … +0.0%)" in row
        assert any("Wilson" in row for row in table)

    def test_answers_that_are_kept_are_not_given_again(self, data, capsys, monkeypatch):
        kept = data / "answers.jsonl"
        given = ["--tasks", "gsm8k", "--data-dir", data, "--answers", kept, "--max-new-tokens", 6]
        monkeypatch.setattr(command, "load_from", lambda arguments, size: tiny_loaded())
        self.run(*given, "--limit", 2)
        assert len(kept.read_text().splitlines()) == 3
        first = json.loads(capsys.readouterr().out.splitlines()[-1])
        asked = []
        monkeypatch.setattr(Engine, "stream", lambda self, request: asked.append(request))
        self.run(*given, "--limit", 2)
        again = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert again["ours"]["tasks"] == first["ours"]["tasks"] and not asked

    def test_ctrl_c_says_how_to_go_on(self, data, capsys, monkeypatch):
        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(command, "load_from", lambda arguments, size: tiny_loaded())
        monkeypatch.setattr(Engine, "step", interrupted)
        assert self.run("--tasks", "gsm8k", "--data-dir", data, "--answers", data / "a.jsonl") == 130
        assert "same command again" in capsys.readouterr().err
