"""The end-of-run charts as Gradio's own Plotly draws them, of another major version than Python's."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import gradio as gr
import pytest

from app.charts import race
from app.run_charts import RunCharts, plot_value
from tests.browser import open_page, overflows, serving
from tests.scripted_events import answer

pytestmark = pytest.mark.browser

RUN = answer("one two three four five six seven eight nine ten " * 20, verify=True, num_drafts=2)
LONG_ENOUGH_MS = 120_000


@pytest.fixture(scope="module")
def app() -> Iterator[SimpleNamespace]:
    with gr.Blocks() as demo:
        buttons = {name: gr.Button(name) for name in ("run", "none", "nothing", "lanes")}
        charts = RunCharts(elem_id="charts")
        lanes = gr.Plot(show_label=False, elem_id="lanes")
        buttons["run"].click(lambda: charts.update(RUN), None, charts.outputs)
        buttons["none"].click(lambda: charts.update(None), None, charts.outputs)
        buttons["nothing"].click(lambda: charts.update([]), None, charts.outputs)
        one_by_one = answer("one two three four five six seven " * 10, counts=(1,))
        both = race({"AR": one_by_one, "MARS": RUN})
        buttons["lanes"].click(lambda: plot_value(both, "race"), None, lanes)
    with serving(demo) as url:
        yield SimpleNamespace(url=url)


def press(page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def open_charts(page, name: str = "run") -> None:
    page.set_default_timeout(LONG_ENOUGH_MS)
    press(page, name)
    page.click("#charts button")
    page.wait_for_function("document.querySelectorAll('#charts .js-plotly-plot').length === 4")
    page.wait_for_function("document.querySelectorAll('#charts .gtitle').length === 4")


def ink(page, selector: str) -> str:
    return page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).fill")


def test_nothing_is_there_before_a_run_and_nothing_is_drawn_before_it_is_opened(chromium, app):
    with open_page(chromium, app.url) as page:
        page.set_default_timeout(LONG_ENOUGH_MS)
        assert page.locator("#charts").count() == 0
        press(page, "run")
        page.wait_for_selector("#charts")
        assert page.locator("#charts .js-plotly-plot").count() == 0
        press(page, "none")
        page.wait_for_selector("#charts", state="detached")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_all_is_drawn_and_follows_the_pages_scheme(chromium, app, width, dark):
    with open_page(chromium, app.url, width=width, dark=dark) as page:
        open_charts(page)
        drawn = page.evaluate(
            """[...document.querySelectorAll('#charts .js-plotly-plot')].map((plot) =>
                [plot.querySelectorAll('.scatterlayer .js-line').length,
                 plot.querySelectorAll('.barlayer .point').length])"""
        )
        speed, histogram, acceptance, confidence = drawn
        assert speed == [1, 0]
        assert histogram == [0, 4]
        assert acceptance[0] == 1 and acceptance[1] >= 4
        assert confidence[1] >= 20
        assert not overflows(page)
        light_ink, dark_ink = "rgb(29, 36, 48)", "rgb(236, 239, 244)"
        for part in (".xtick text", ".g-ytitle text", ".gtitle", ".legendtext", ".annotation-text"):
            assert ink(page, part) == (dark_ink if dark else light_ink), part
        page.evaluate("document.body.classList.toggle('dark')")
        assert ink(page, ".xtick text") == (light_ink if dark else dark_ink)
        assert page.evaluate("getComputedStyle(document.querySelector('.main-svg')).backgroundColor") == (
            "rgba(0, 0, 0, 0)"
        )
        assert page.problems == []


def test_no_label_of_an_axis_or_a_legend_is_cut_off_on_a_phone(chromium, app):
    with open_page(chromium, app.url, width=390) as page:
        open_charts(page)
        cut = page.evaluate(
            """[...document.querySelectorAll('#charts .js-plotly-plot')].flatMap((plot) => {
                const frame = plot.getBoundingClientRect();
                return [...plot.querySelectorAll('.main-svg text')].filter((text) => {
                  const box = text.getBoundingClientRect();
                  return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1
                    || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
                }).map((text) => text.textContent);
            })"""
        )
        assert cut == []


def test_charts_without_data_say_so(chromium, app):
    with open_page(chromium, app.url) as page:
        open_charts(page, "nothing")
        said = page.locator("#charts .annotation-text").all_text_contents()
        assert len(said) == 4
        assert page.locator("#charts .xtick").count() == 0
        assert page.problems == []


def test_the_race_has_a_line_and_an_end_for_each_lane(chromium, app):
    with open_page(chromium, app.url) as page:
        page.set_default_timeout(LONG_ENOUGH_MS)
        press(page, "lanes")
        page.wait_for_selector("#lanes .scatterlayer .js-line")
        assert page.locator("#lanes .scatterlayer .js-line").count() == 2
        assert page.locator("#lanes .scatterlayer .points .point").count() == 2
        assert page.problems == []


def test_the_camera_saves_a_named_image_on_white_paper(chromium, app):
    with open_page(chromium, app.url, dark=True) as page:
        open_charts(page)
        page.hover("#charts .js-plotly-plot >> nth=0")
        with page.expect_download() as download:
            page.click("#charts .modebar-btn >> nth=0")
        assert download.value.suggested_filename == "mars-speed.png"
        paper = page.evaluate("document.querySelector('#charts .js-plotly-plot')._fullLayout.paper_bgcolor")
        assert paper == "#ffffff"
        assert page.problems == []
