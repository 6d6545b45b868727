"""The buttons that save a run: as data, as a page that replays it, as a picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from mars_core.events import Trace

from .notices import info
from .portrait import html_replay, svg_portrait

_SAVE_SCRIPT = """(sent) => {
  if (!sent) return '';
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([JSON.parse(sent)], { type: 'MIME' }));
  link.download = `mars-NAME-${new Date().toISOString().slice(0, 19).replace(/:/g, '')}.ENDING`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  return '';
}"""


def save_script(name: str, ending: str, mime: str) -> str:
    """Runs in the browser with what `sent` gave, and saves it as ``mars-{name}-{time}.{ending}``.

    The file is made in the browser: nothing stays on the server. What the script returns empties the
    component that brought the text.
    """
    return _SAVE_SCRIPT.replace("MIME", mime).replace("NAME", name).replace("ENDING", ending)


def carrier() -> gr.HTML:
    """Holds what `sent` gives on its way to the browser. Never shows it: the template does not mention it."""
    return gr.HTML(html_template="<span></span>", value="", visible="hidden", apply_default_css=False)


def sent(text: str) -> str:
    """A file's text for a `carrier`: as JSON without "<", for that is a component for HTML."""
    return json.dumps(text).replace("<", "\\u003c")


def trace_json(trace: Trace) -> str:
    """The trace as it is opened again by the Replay tab."""
    # in ASCII: half a character, which UTF-8 cannot hold, must not keep the rest from being saved
    return json.dumps(trace.to_json())


@dataclass(frozen=True)
class SavedAs:
    """A form a run can be saved in."""

    label: str
    name: str
    ending: str
    mime: str
    write: Callable[[Trace], str]

    @property
    def script(self) -> str:
        """Runs in the browser with the file's text."""
        return save_script(self.name, self.ending, self.mime)


FORMS = (
    SavedAs("Download trace", "trace", "json", "application/json", trace_json),
    SavedAs("Save replay (HTML)", "replay", "html", "text/html", html_replay),
    SavedAs("Save picture (SVG)", "picture", "svg", "image/svg+xml", svg_portrait),
)


class ShareButtons:
    """A button for each form, in the row that is open.

    Args:
        buttons: keywords of `gr.Button` for all of them.
    """

    def __init__(self, **buttons: Any) -> None:
        self.buttons = [gr.Button(form.label, elem_classes="mars-share", **buttons) for form in FORMS]
        self.texts = [carrier() for _ in FORMS]  # one each: of two files in one the first would be lost

    def connect(self, trace: gr.State) -> None:
        """Let the buttons save what `trace` holds; None is a word that there is nothing yet."""
        # in the queue, for a word to the visitor reaches the browser only from there (gradio 6.31)
        options: dict[str, Any] = dict(
            concurrency_limit=None, show_progress="hidden", api_visibility="private"
        )
        for button, text, form in zip(self.buttons, self.texts, FORMS, strict=True):
            written = button.click(_writer(form), trace, text, **options)
            written.then(None, text, text, js=form.script)


def _writer(form: SavedAs) -> Callable[[Trace | None], str]:
    def write(trace: Trace | None) -> str:
        if trace is None:
            info("There is no answer to save yet.")
            return ""
        return sent(form.write(trace))

    return write
