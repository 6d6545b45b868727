"""Links that open the page ready to run: prompt and settings in the address, no state on the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from mars_core import MarsError

from .dial import MAX_SEED_DIGITS, SCALES, Dial, threshold_update
from .notices import warn

MAX_PROMPT = 8000  # characters; longer addresses are cut by servers and browsers
NAMES = ("tau", "verify", "b", "metric", "max", "temperature", "top_p", "seed", "system")

# Inputs: text box, conversation (as JSON), then the dial in `Dial.inputs`' order, named as in NAMES.
COPY_LINK_SCRIPT = """async (box, conversation, ...dial) => {
  const names = NAMES;
  const messages = conversation ? JSON.parse(conversation).messages : [];
  const asked = messages.filter(({ role }) => role === 'user').at(-1)?.text;
  const link = new URL(location.pathname, location.origin);
  link.searchParams.set('prompt', box || asked || '');
  names.forEach((name, k) => {
    if (dial[k] !== null && dial[k] !== '') link.searchParams.set(name, dial[k]);
  });
  const button = document.getElementById('copy-link');
  const text = button.textContent;
  try {
    await navigator.clipboard.writeText(link.href);
    button.textContent = 'Copied';
    setTimeout(() => (button.textContent = text), 1500);
  } catch {
    prompt('Copy this link:', link.href);
  }
}""".replace("NAMES", str(list(NAMES)))


class LinkReader:
    """Updates for the text box and the dial, from the page's address, within the dial's own bounds. What is
    no valid value is left as it is, with a word about it."""

    def __init__(self, dial: Dial) -> None:
        self.most_block_size = int(dial.block_size.maximum)
        self.most_new_tokens = int(dial.max_new_tokens.maximum)

    def __call__(self, request: gr.Request) -> list[Any]:
        query = dict(request.query_params)
        updates = [gr.update()] * (1 + len(NAMES))
        if not query.keys() & {"prompt", *NAMES}:
            return updates
        try:
            return [_text(query, "prompt"), *self._dial(query)]
        except MarsError as error:
            warn(f"The link's settings were left out: {error}")
            return [_text(query, "prompt"), *updates[1:]]

    def _dial(self, query: Mapping[str, str]) -> list[Any]:
        metric = query.get("metric", "probability")
        if metric not in SCALES:
            raise MarsError(f"metric is {metric!r}; allowed are {', '.join(SCALES)}.")
        scale = SCALES[metric]
        tau = _read(query, "tau", float, scale.low, scale.high)
        seed = _read(query, "seed", int, 0, 10**MAX_SEED_DIGITS - 1)
        return [
            gr.update() if tau is None and "metric" not in query else threshold_update(metric, tau),
            _value(_flag(query, "verify")),
            _value(_read(query, "b", int, 1, self.most_block_size)),
            _value(metric if "metric" in query else None),
            _value(_read(query, "max", int, 1, self.most_new_tokens)),
            _value(_read(query, "temperature", float, 0, 1.5)),
            _value(_read(query, "top_p", float, 0.05, 1)),
            _value(seed if seed is None else str(seed)),
            _text(query, "system"),
        ]


def _read(query: Mapping[str, str], name: str, kind: type, low: float, high: float) -> Any:
    if name not in query:
        return None
    try:
        value = kind(query[name][:40])
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise MarsError(f"{name} is {query[name]!r}; allowed is {low} to {high}.")
    return value


def _flag(query: Mapping[str, str], name: str) -> bool | None:
    if name not in query:
        return None
    if query[name] not in ("true", "false"):
        raise MarsError(f"{name} is {query[name]!r}; allowed are true and false.")
    return query[name] == "true"


def _value(value: Any) -> Any:
    return gr.update() if value is None else gr.update(value=value)


def _text(query: Mapping[str, str], name: str) -> Any:
    return gr.update(value=query[name][:MAX_PROMPT]) if name in query else gr.update()
