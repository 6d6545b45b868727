"""Reach inside a model of transformers: its decoder and its head apart, through whatever wraps it.

Logits of every position at once would not fit, so decoder and head are called apart. What depends on the
version of transformers (5.24) or on how a wrapper calls its module stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from transformers.modeling_outputs import MoeModelOutputWithPast

from ..errors import MarsError

# Enters a context in which the model from before training stands ready.
BaseModel = Callable[[], AbstractContextManager[nn.Module]]


def frozen_base(model: nn.Module) -> BaseModel:
    """A model of its own as the base."""
    return lambda: nullcontext(model)


def base_of_adapter(model: nn.Module) -> BaseModel:
    """The base that a PEFT model's adapter sits on. Raises `MarsError` if it is no PEFT model."""
    inner: Any = unwrapped(model)
    if not hasattr(inner, "disable_adapter"):
        raise MarsError(
            f"{type(inner).__name__} has no adapter to switch off; give the base model itself (frozen_base)."
        )

    @contextmanager
    def without_adapter() -> Iterator[nn.Module]:
        # PEFT makes every weight of an adapter trainable when it is switched on again, frozen ones too
        trainable = [(parameter, parameter.requires_grad) for parameter in inner.parameters()]
        try:
            with inner.disable_adapter():
                yield inner
        finally:
            for parameter, was_trainable in trainable:
                parameter.requires_grad_(was_trainable)

    return without_adapter


def unwrapped(model: nn.Module) -> nn.Module:
    """The model behind DistributedDataParallel and FullyShardedDataParallel; PEFT's wrapper stays."""
    while isinstance(model, (DistributedDataParallel, FullyShardedDataParallel)):
        model = model.module
    return model


def causal_lm(model: nn.Module) -> Any:
    """The model of transformers inside a PEFT model, else the model itself, unwrapped.

    Raises `MarsError` for prompt learning, which is no change of weights but more input.
    """
    inner: Any = unwrapped(model)
    if not hasattr(inner, "get_base_model"):
        return inner
    if inner.active_peft_config.is_prompt_learning:
        raise MarsError("Adapters that learn a prompt are not supported in training; use LoRA.")
    return inner.get_base_model()


def call_within(model: nn.Module, function: Callable[[], Any]) -> Any:
    """Call `function` as if it were the model's ``forward``, so that wrappers and hooks do their part.

    DistributedDataParallel must see a forward to reduce gradients; FSDP gathers the weights around one.

    Args:
        function: takes nothing; returns a tensor or a tuple of tensors.
    """
    inner = unwrapped(model)
    before = inner.__dict__.get("forward")

    def restore() -> None:
        if before is None:
            inner.__dict__.pop("forward", None)
        else:
            inner.__dict__["forward"] = before

    def forward() -> Any:
        restore()  # what is called may call the model
        return function()

    inner.__dict__["forward"] = forward
    try:
        return model()
    finally:
        restore()


def final_states(
    model: nn.Module,
    input_ids: torch.Tensor,
    position_ids: torch.Tensor,
    attention_mask: Any,
    cache: Any = None,
) -> torch.Tensor:
    """Hidden states [R, Q, H] behind the last norm, which the head makes logits of."""
    decoder = causal_lm(model).get_decoder()
    return decoder(
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=attention_mask,
        cache=cache,
        use_cache=cache is not None,
    ).last_hidden_state


def head_logits(model: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """Hidden states [N, H] → logits [N, V] of at least 32 bits, as the model's own ``forward`` makes them.

    Some models scale or cap their logits, each in its own way. So this runs the model's own forward with the
    decoder replaced by one that returns these states.
    """
    whole = causal_lm(model)
    with _decoder_replaced(whole, _Returns(states.unsqueeze(0))):
        # not by calling the model: its hooks (FSDP) surround the whole of it, and are at work already
        logits = whole.forward(inputs_embeds=states.unsqueeze(0)).logits[0]
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def trainable_of_head(model: nn.Module, states: torch.Tensor) -> list[torch.Tensor]:
    """The trainable weights that logits depend on beside the states [N, H]: tied, adapted, or none.

    Read from the graph of one row's logits: adapters may reach the head's weight by ways of their own.
    """
    with torch.enable_grad():
        logits = head_logits(model, states[:1].detach())
    leaves: dict[int, torch.Tensor] = {}
    seen, to_visit = set(), [logits.grad_fn]
    while to_visit:
        node: Any = to_visit.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves[id(node.variable)] = node.variable
        to_visit += [following for following, _ in node.next_functions]
    return list(leaves.values())


class _Returns(nn.Module):
    """A decoder that has its result already."""

    def __init__(self, states: torch.Tensor) -> None:
        super().__init__()
        self.states = states

    def forward(self, **ignored: Any) -> MoeModelOutputWithPast:
        # has every field that any causal LM of transformers asks its decoder's output for
        return MoeModelOutputWithPast(last_hidden_state=self.states)


@contextmanager
def _decoder_replaced(model: nn.Module, other: nn.Module) -> Iterator[None]:
    decoder: Any = model
    decoder = decoder.get_decoder()
    path = next(name for name, module in model.named_modules() if module is decoder)
    parent_path, _, name = path.rpartition(".")
    parent = model.get_submodule(parent_path)
    setattr(parent, name, other)
    try:
        yield
    finally:
        setattr(parent, name, decoder)
