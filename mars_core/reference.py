"""The oracle: MARS decoding with no cache, no batch and no cleverness. Every fast path equals it in fp32.

arXiv 2604.07023, section on decoding: feed prefix and B − 1 masks, commit the first prediction, then left
to right what reaches the threshold.
"""

from __future__ import annotations

import torch

from .acceptance import accepted_length, check_numbers, make_sampler, predict
from .loaded import LoadedModel
from .settings import DecodeSettings, one_token_mode


def most_tokens(loaded: LoadedModel, settings: DecodeSettings) -> int:
    """Tokens a forward may commit: B, or B + 1 where the last mask predicts too."""
    return settings.block_size + (loaded.last_mask if settings.last_mask is None else settings.last_mask)


@torch.inference_mode()
def reference_generate(
    loaded: LoadedModel, prompt_ids: list[int], settings: DecodeSettings
) -> list[list[int]]:
    """The tokens that each forward commits. No text here, so no stop strings."""
    live = settings.live_values()
    assert not settings.verify, "see reference_verify"
    sampler = make_sampler(settings, loaded.device)
    suppressed = torch.tensor(loaded.suppressed_token_ids, dtype=torch.long, device=loaded.device)
    stop_ids = set(settings.stop_token_ids) | (set() if settings.ignore_eos else loaded.stop_token_ids)
    one_token = one_token_mode(settings.mode, settings.threshold, settings.metric)
    tokens, groups, remaining = list(prompt_ids), [], settings.max_new_tokens
    while remaining > 0:
        num_masks = 0 if one_token else min(most_tokens(loaded, settings), remaining) - 1
        ids = torch.tensor([tokens + [loaded.mask_token_id] * num_masks], device=loaded.device)
        logits = loaded.model(input_ids=ids, use_cache=False).logits[:, -1 - num_masks :]
        predictions = predict(logits, [sampler], suppressed, 2)[0]
        check_numbers(predictions)
        group = []
        for prediction in predictions[: accepted_length(predictions, live)]:
            group.append(prediction.id)
            if prediction.id in stop_ids:
                break
        groups.append(group)
        tokens += group
        remaining -= len(group)
        if group[-1] in stop_ids:
            break
    return groups


@torch.inference_mode()
def reference_verify(loaded: LoadedModel, prompt_ids: list[int], settings: DecodeSettings) -> list[list[int]]:
    """Draft and verify, greedy: the same, with what was not accepted checked by the next forward.

    What one forward of the real thing does by its attention mask is done here by plain forwards of the
    prefix, each draft, and masks behind it.
    """
    live, suppressed = settings.live_values(), torch.tensor(loaded.suppressed_token_ids, dtype=torch.long)
    tokens, remaining = list(prompt_ids), settings.max_new_tokens
    drafts: list[int] = []
    groups: list[list[int]] = []

    def ask(prefix: list[int], num_masks: int) -> list:
        ids = torch.tensor([prefix + [loaded.mask_token_id] * num_masks], device=loaded.device)
        logits = loaded.model(input_ids=ids, use_cache=False).logits[:, -1 - num_masks :]
        return predict(logits, [None], suppressed.to(loaded.device), 2)[0]

    while remaining > 0 and not (groups and groups[-1][-1] in loaded.stop_token_ids):
        drafts = drafts[: remaining - 1]
        group: list[int] = []
        for draft in [*drafts, None]:
            last = len(group) == len(drafts)
            num_masks = min(most_tokens(loaded, settings), remaining - len(group)) - 1
            predictions = ask(tokens + group, num_masks)
            group.append(predictions[0].id)
            if predictions[0].id != draft:
                break
        behind = predictions[1:] if last or settings.layout == "full" else []
        num_accepted = accepted_length([predictions[0], *behind], live) - 1
        group += [prediction.id for prediction in behind[:num_accepted]]
        drafts = [prediction.id for prediction in behind[num_accepted:]]
        stop = next((k for k, token in enumerate(group) if token in loaded.stop_token_ids), len(group))
        groups.append(group[: stop + 1])
        tokens += groups[-1]
        remaining -= len(groups[-1])
    return groups
