"""MARS inside transformers' generate."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

from mars_core.engine import Engine
from mars_core.errors import MarsError
from mars_core.generate import mars_generate
from mars_core.row import Request
from mars_core.settings import DecodeSettings
from tests.tiny import tiny_loaded, tiny_tokenizer

LOADED = tiny_loaded()
MODEL = LOADED.model
PROMPT = [257, 72, 105, 99, 258, 10, 11]
SUPPRESSED = list(LOADED.suppressed_token_ids)
IDS = torch.tensor([PROMPT])
GREEDY: dict[str, Any] = {
    "do_sample": False,
    "max_new_tokens": 12,
    "suppress_tokens": SUPPRESSED,
    "pad_token_id": 256,
}


def mars(ids: torch.Tensor = IDS, **options: Any) -> torch.Tensor:
    settings = GREEDY | {"custom_generate": mars_generate, "mask_token_id": 259} | options
    settings.setdefault("attention_mask", torch.ones_like(ids))
    return MODEL.generate(ids, **settings)


def by_engine(prompt: list[int], **options: Any) -> list[int]:
    stream = Engine(LOADED).stream(Request(prompt, DecodeSettings(max_new_tokens=12, **options)))
    return [choice.id for event in stream for choice in event.committed]


@pytest.mark.parametrize(
    "options", [{}, {"threshold": 0.05}, {"threshold": 3.0, "metric": "entropy", "block_size": 8}]
)
def test_greedy_ids_equal_the_engines(options):
    assert mars(**options)[0].tolist() == PROMPT + by_engine(PROMPT, **options)


def test_a_threshold_of_one_equals_plain_generate():
    assert torch.equal(
        mars(threshold=1.0), MODEL.generate(IDS, attention_mask=torch.ones_like(IDS), **GREEDY)
    )


@pytest.mark.parametrize("threshold", [1.0, 0.05])
def test_a_left_padded_batch_equals_its_rows_alone(threshold):
    prompts = [PROMPT, PROMPT[:2], [258, 258, 5]]  # real end markers are no padding, though pad could be eos
    width = max(map(len, prompts))
    ids = torch.tensor([[258] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    batch = mars(ids, attention_mask=mask, threshold=threshold)
    for row, prompt in zip(batch.tolist(), prompts, strict=True):
        new = by_engine(prompt, threshold=threshold)
        assert row[:width][-len(prompt) :] == prompt
        assert row[width:] == new + [256] * (len(row) - width - len(new))
    if threshold == 1.0:
        assert torch.equal(batch, MODEL.generate(ids, attention_mask=mask, **GREEDY))


def test_sampling_is_governed_by_torchs_seed_or_its_own():
    def sampled(torch_seed: int, **options: Any) -> list[int]:
        torch.manual_seed(torch_seed)
        return mars(do_sample=True, temperature=1.0, **options)[0].tolist()

    assert sampled(1) == sampled(1) != sampled(2)
    assert sampled(1, seed=7) == sampled(2, seed=7)


def test_several_answers_to_one_prompt_are_not_one_answer():
    torch.manual_seed(0)
    answers = mars(do_sample=True, num_return_sequences=3)[:, len(PROMPT) :].tolist()
    assert answers[0] != answers[1] != answers[2] != answers[0]


def test_sampling_options_reach_the_sampler():
    assert mars(do_sample=True, temperature=1.0, top_k=1)[0].tolist() == mars()[0].tolist()
    assert mars(do_sample=True, temperature=1.0, top_p=1e-5)[0].tolist() == mars()[0].tolist()


def test_stop_tokens_of_the_generation_config_stop():
    third = mars(threshold=1.0)[0, len(PROMPT) + 2].item()
    assert mars(threshold=1.0, eos_token_id=third).shape[1] <= len(PROMPT) + 3


class Never(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


@pytest.mark.parametrize(
    "option",
    [
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 3},
        {"bad_words_ids": [[5]]},
        {"num_beams": 2},
        {"num_beams": 2, "do_sample": True},
        {"prompt_lookup_num_tokens": 3},
        {"penalty_alpha": 0.5, "top_k": 4},
        {"dola_layers": "low"},
        {"min_p": 0.1, "do_sample": True},
        {"typical_p": 0.5, "do_sample": True},
        {"guidance_scale": 2.0},
        {"max_time": 5.0},
        {"return_dict_in_generate": True},
        {"stopping_criteria": StoppingCriteriaList([Never()])},
        {"threshold": 2.0, "metric": "luck"},
        {"block_size": 0},
    ],
    ids=lambda option: next(iter(option)),
)
def test_an_option_that_would_be_ignored_is_refused(option):
    with pytest.raises(MarsError):
        mars(**option)


def test_embeddings_in_place_of_ids_are_refused():
    with pytest.raises(MarsError, match="inputs_embeds"):
        MODEL.generate(
            inputs_embeds=MODEL.get_input_embeddings()(IDS),
            custom_generate=mars_generate,
            mask_token_id=259,
            **GREEDY,
        )


def test_an_unknown_option_is_refused():
    with pytest.raises(ValueError, match="treshold"):
        mars(treshold=0.5)


def test_without_a_mask_token_the_message_says_what_to_give():
    with pytest.raises(MarsError, match="mask_token_id=tokenizer.mask_token_id"):
        mars(mask_token_id=None)


class Recorder(BaseStreamer):
    def __init__(self, fail_at: int = 99) -> None:
        self.got: list[Any] = []
        self.fail_at = fail_at

    def put(self, value: torch.Tensor) -> None:
        if len(self.got) == self.fail_at:
            raise ConnectionError
        self.got.append(value.tolist())

    def end(self) -> None:
        self.got.append("end")


def test_a_streamer_gets_the_prompt_then_the_tokens_of_each_forward_then_the_end():
    recorder = Recorder()
    ids = mars(token_streamer=recorder, threshold=0.05)[0].tolist()
    prompt, *groups, end = recorder.got
    assert (prompt, end) == (PROMPT, "end")
    assert PROMPT + [i for group in groups for i in group] == ids and len(groups) < 12


def test_a_streamer_hears_the_end_after_an_error_too():
    recorder = Recorder(fail_at=2)
    with pytest.raises(ConnectionError):
        mars(token_streamer=recorder)
    assert recorder.got[-1] == "end"


def test_the_streamers_of_transformers_work(capsys):
    tokenizer = tiny_tokenizer()
    ids = mars(token_streamer=TextStreamer(tokenizer, skip_prompt=True))[0, len(PROMPT) :]
    assert capsys.readouterr().out.strip() == tokenizer.decode(ids).strip()
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=20)
    thread = threading.Thread(target=mars, kwargs={"token_streamer": streamer})
    thread.start()
    assert "".join(streamer) == tokenizer.decode(ids)
    thread.join(20)


def test_a_streamer_takes_one_prompt_at_a_time():
    with pytest.raises(MarsError, match="one prompt"):
        mars(IDS.repeat(2, 1), token_streamer=Recorder())
