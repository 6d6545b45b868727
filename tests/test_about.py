"""The About tab and its pictures of masks, without a browser."""

from __future__ import annotations

import html
import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest

from app.about import CITATION, MEASURES, SENTENCES, about_page
from app.escaped import escaped
from app.mask_picture import MaskPicture, training_mask, verification_mask
from tests.scripted import always, scripted_loaded

SVG = "{http://www.w3.org/2000/svg}"
PICTURES = [training_mask, verification_mask]


def drawn(picture: MaskPicture) -> ElementTree.Element:
    """The picture's SVG, parsed."""
    return ElementTree.fromstring(
        picture.svg("it").replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    )


def test_the_training_picture_shows_the_rules_of_the_paper() -> None:
    """Written out once more: eight masks of an answer after two prompt tokens, then all ten tokens."""
    stand = [(True, position) for position in range(2, 10)] + [(False, position) for position in range(10)]

    def may(query: tuple[bool, int], key: tuple[bool, int]) -> bool:
        (query_masked, at), (key_masked, of) = query, key
        block = 2 + (at - 2) // 4 * 4
        if key_masked:
            return query_masked and block <= of <= at
        return of < block if query_masked else of <= at

    expected = [[may(query, key) for key in stand] for query in stand]
    assert training_mask().allowed.tolist() == expected


def test_the_verification_picture_shows_groups_that_do_not_see_each_other() -> None:
    """Three cached tokens; then c, two drafts, and three masks after each of the three."""
    continues = [*range(3), 3, 4, 5] + [3] * 3 + [4] * 3 + [5] * 3  # the last of the line that each one sees

    def may(query: int, key: int) -> bool:
        same_group = key >= 6 and query >= 6 and (key - 6) // 3 == (query - 6) // 3
        return key <= continues[query] if key < 6 else same_group and key <= query

    expected = [[may(query, key) for key in range(15)] for query in range(3, 15)]
    assert verification_mask().allowed.tolist() == expected


@pytest.mark.parametrize("make", PICTURES)
def test_a_picture_has_one_square_for_each_pair_and_a_label_for_each_token(make) -> None:
    picture = make()
    paths = {path.get("class"): path.get("d", "").count("M") for path in drawn(picture).iter(f"{SVG}path")}
    coloured = sum(count for kind, count in paths.items() if str(kind).startswith("sees-"))
    assert coloured == picture.allowed.sum()
    assert paths["unseen"] == (~picture.allowed).sum()
    for bands, length in zip((picture.rows, picture.columns), picture.allowed.shape, strict=True):
        assert len(list(itertools.chain(*(band.labels for band in bands)))) == length


@pytest.mark.parametrize("make", PICTURES)
def test_a_picture_says_in_words_what_it_shows(make) -> None:
    root = drawn(make())
    assert root.get("role") == "img"
    words = {node.get("id"): node.text for node in root if node.tag in (f"{SVG}title", f"{SVG}desc")}
    for name in ("aria-labelledby", "aria-describedby"):
        assert len(words[root.get(name)] or "") > 20


def test_the_page_says_what_it_must_with_and_without_a_model() -> None:
    assert len(SENTENCES) == 6
    names = {name for name, _ in MEASURES}
    assert names >= {"Forward", "tok/fwd", "tok/s", "Speed-up", "Agreement", "Prefill", "Clock"}
    for page in (about_page(None), about_page(scripted_loaded(always()))):
        text = html.unescape(re.sub(r"<[^>]*>", " ", page))
        for words in (CITATION, "CC BY 4.0", "Apache-2.0", "2604.07023"):
            assert words in text
    assert "recorded runs" in about_page(None)


@pytest.mark.parametrize("name", ["${alert(1)}", "{{value}}", "`", "<img src=x onerror=alert(1)>"])
def test_a_models_name_reaches_no_template_and_makes_no_element(name: str) -> None:
    page = about_page(scripted_loaded(always(), name=name, origins={"weights": name}))
    assert not re.search(r"\$\{|\{\{|`|<img", page)
    assert html.unescape(escaped(name)) == name and escaped(name) in page
