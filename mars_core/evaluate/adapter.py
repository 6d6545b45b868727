"""lm-evaluation-harness's view of a model that our engine decodes: registered there as ``mars``."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..costs import known_costs
from ..engine import Engine
from ..errors import MarsError
from ..loaded import LoadedModel
from ..models import load_model
from ..prompts import Message, chat_prompt_ids, plain_ids
from ..row import Request
from ..settings import DecodeSettings
from .answer_log import AnswerLog, answer_key
from .answers import Answer, Generation, answers
from .scoring import Scored, Scores, behind, score

DEFAULT_NEW_TOKENS = 256  # lm-eval's, where a task does not say
BATCH_SIZE = 8
_KNOWN = {"until", "max_gen_toks", "do_sample", "temperature"}
_OF_LOADING = ("adapter", "device", "dtype", "mask_token_id", "block_size", "packed")
_OF_DECODING = ("mode", "threshold", "metric", "verify", "layout", "max_drafts", "proposer", "last_mask")


@register_model("mars")
class MarsLM(TemplateLM):
    """A model under one way of decoding.

    Generation runs on the engine, greedily; likelihoods come from plain forwards, whatever the way of
    decoding. Chats are encoded as everywhere here: only the template's own control tokens become such.

    Args:
        loaded: the model, with a tokenizer.
        settings: how to decode; limits and stop strings come from the tasks.
        batch_size: prompts answered at once.
        log: keeps answers, and knows those given before.

    Attributes:
        num_shortened: answers whose prompt left less room in the context than the task allows.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: DecodeSettings,
        batch_size: int = BATCH_SIZE,
        log: AnswerLog | None = None,
    ) -> None:
        super().__init__()
        if loaded.tokenizer is None:
            raise MarsError(f"{loaded.name} was given without a tokenizer, and the tasks are text.")
        if settings.temperature > 0:
            raise MarsError(f"temperature is {settings.temperature}; evaluation is greedy: leave it at 0.")
        if batch_size < 1:
            raise MarsError(f"batch_size is {batch_size}; allowed is 1 or more.")
        self.loaded, self.settings, self.batch_size, self.log = loaded, settings, batch_size, log
        self.tokenizer: PreTrainedTokenizerBase = loaded.tokenizer
        self.engine = Engine(loaded, costs=partial(known_costs, loaded))
        self.num_shortened = 0
        self._answers: list[Answer] = []
        self._chats: dict[str, list[Message]] = {}  # rendered text -> what it was rendered from

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> MarsLM:
        """From lm-eval's ``model_args``: ``model``, and what `load_model` and `DecodeSettings` call so.

        Raises:
            MarsError: a name that neither knows, or a value that is not allowed.
        """
        given = {**arg_dict, **{k: v for k, v in (additional_config or {}).items() if v is not None}}
        given.pop("max_batch_size", None)
        name, batch_size = given.pop("model", "default"), int(given.pop("batch_size", BATCH_SIZE))
        loading = {key: given.pop(key) for key in _OF_LOADING if key in given}
        decoding = {key: given.pop(key) for key in _OF_DECODING if key in given}
        if given:
            known = ", ".join(("model", "batch_size", *_OF_LOADING, *_OF_DECODING))
            raise MarsError(f"model_args has {', '.join(given)}; allowed are {known}.")
        loaded = load_model(name, **loading)
        # as the command: `auto` goes by the machine's speed
        defaults = {"block_size": loaded.block_size, "layout": "full"}
        return cls(loaded, DecodeSettings(**{**defaults, **decoding}), batch_size)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> MarsLM:
        """The same from ``key=value,key=value``."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @property
    def eot_token_id(self) -> int:
        """What stands for the beginning where there is no context."""
        return min(self.loaded.stop_token_ids)

    @property
    def prefix_token_id(self) -> int:
        """The beginning-of-text token, where the tokenizer has one."""
        beginning = self.tokenizer.bos_token_id
        return beginning if isinstance(beginning, int) else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's own caches."""
        return self.tokenizer.name_or_path.replace("/", "__")

    def take_generation(self) -> Generation:
        """What the answers since the last call took."""
        taken, self._answers = Generation.of(self._answers), []
        return taken

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The chat as text; which chat it was is remembered, so that it can be encoded safely."""
        rendered = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        assert isinstance(rendered, str)
        if add_generation_prompt:
            self._chats[rendered] = chat_history
        return rendered

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Ids of a chat that `apply_chat_template` rendered, or of plain text."""
        if string in self._chats:
            return chat_prompt_ids(self.tokenizer, self._chats[string])
        if add_special_tokens is None:
            beginning = self.tokenizer.bos_token
            add_special_tokens = not (isinstance(beginning, str) and string.startswith(beginning))
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"])

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if context in self._chats:  # an answer's first token never merges with the template's last
            return self.tok_encode(context), plain_ids(self.tokenizer, continuation)
        return super()._encode_pair(context, continuation)

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        most = self.loaded.context_length + 1  # the last token need not be fed
        texts = []
        for _, context, continuation in requests:
            if len(continuation) >= most:
                raise MarsError(f"A continuation of {len(continuation)} tokens does not fit the context.")
            texts.append(behind(context[-(most - len(continuation)) :], continuation))
        return [_together(scores) for scores in score(self.loaded, texts)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each whole text, in windows where it is longer than the context."""
        windows = [self._windows(request.args[0]) for request in requests]
        scores = iter(score(self.loaded, [window for of_one in windows for window in of_one]))
        return [sum(_together(next(scores))[0] for _ in of_one) for of_one in windows]

    def _windows(self, text: str) -> list[Scored]:
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(text, add_special_tokens=False),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.loaded.context_length,
            context_len=1,
        )
        return [behind(context, asked) for context, asked in map(make_disjoint_window, windows)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer each prompt until one of its stop strings, its limit, or the end of the turn."""
        limits = [_limits(request.args[1]) for request in requests]
        keys = [answer_key(r.args[0], limit) for r, limit in zip(requests, limits, strict=True)]
        found: dict[str, Answer] = {}
        todo: dict[str, Request] = {}
        for key, request, limit in zip(keys, requests, limits, strict=True):
            todo[key] = self._request(request.args[0], *limit)
            if self.log and (kept := self.log.get(key)):
                found[key] = kept
                del todo[key]
        with tqdm(
            total=len(todo), desc="Answering", unit="prompt", dynamic_ncols=True, disable=disable_tqdm
        ) as bar:
            found.update(self._answer(todo, bar))
        self._answers += [found[key] for key in keys]
        return [found[key].text for key in keys]

    def _answer(self, todo: dict[str, Request], bar: tqdm[Any]) -> dict[str, Answer]:
        names, found = list(todo), {}
        for number, answer in answers(self.engine, todo.values(), self.batch_size):
            found[names[number]] = answer
            if self.log:
                self.log.add(names[number], answer)
            rate = Generation.of(list(found.values())).tokens_per_forward
            bar.set_postfix_str(f"{rate:.2f} tok/fwd", refresh=False)
            bar.update()
        return found

    def _request(self, context: str, most: int, stops: tuple[str, ...]) -> Request:
        ids = self.tok_encode(context)
        room = self.loaded.context_length - len(ids)
        if room < 1:
            raise MarsError(
                f"A prompt has {len(ids)} tokens, and the model's context holds "
                f"{self.loaded.context_length}: this task needs a model with a longer context."
            )
        self.num_shortened += room < most
        settings = dataclasses.replace(
            self.settings, max_new_tokens=min(most, room), stop_strings=stops, num_alternatives=0
        )
        return Request(ids, settings)


def _together(scores: Scores) -> tuple[float, bool]:
    return sum(scores.log_probabilities), all(scores.greedy)


def _limits(given: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    """(most new tokens, stop strings) of a task's ``generation_kwargs``.

    Raises:
        MarsError: it asks for what is not done here, sampling among it.
    """
    asked: dict[str, Any] = dict(normalize_gen_kwargs(given, DEFAULT_NEW_TOKENS))
    unknown = sorted(asked.keys() - _KNOWN)
    if unknown or asked["do_sample"] or asked.get("temperature"):
        raise MarsError(
            f"The task asks for {given}; answers are greedy here, and {sorted(_KNOWN)} are known."
        )
    return asked["max_gen_toks"], tuple(text for text in asked["until"] if text)
