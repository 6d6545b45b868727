"""How every Plotly figure of the page looks, and the one that has only a sentence to say.

The page's scheme may change after a figure was drawn, and `gr.Plot` knows nothing of it (gradio 6.31). So the
colours of data are of middle lightness, with a contrast of 3 or more to both papers, and `assets/charts.css`
sets text and paper by the page's own scheme. What stands in the figure itself counts where no style sheet
reaches: in a saved image.
"""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

# Blue and amber stay apart for every kind of colour vision; wherever colours tell things apart, dashes,
# markers or hatching do so too.
BLUE, AMBER, TEAL, MAGENTA, GREY = "#3f83dc", "#b8741c", "#23918a", "#c2508f", "#7a8494"
GRID = "rgba(122, 132, 148, 0.28)"
TAU = MAGENTA  # as in the live chart
HEIGHT = 330  # CSS pixels
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"
_TOP, _SIDE, _FOOT, _LEGEND_ROW = 56, 12, 10, 18  # pixels; axis labels and titles add to them by themselves


@dataclass(frozen=True)
class Look:
    """A lane's colour, dash and marker."""

    colour: str
    dash: str
    symbol: str


LOOKS = (
    Look(BLUE, "solid", "circle"),
    Look(AMBER, "dash", "diamond"),
    Look(TEAL, "dot", "square"),
    Look(MAGENTA, "dashdot", "triangle-up"),
)


def look(number: int) -> Look:
    """The look of lane `number`, from 0; after the fourth they repeat."""
    return LOOKS[number % len(LOOKS)]


def styled(figure: go.Figure) -> go.Figure:
    """Give `figure` the page's look: fonts, grid, margins, legend below, image button only. Changes it.

    Colours are those of a saved image, which is light; the page shows its own scheme's (charts.css).
    """
    # on a phone each name has a row of its own: more room, so that they do not take the chart's
    rows = max(1, sum(trace.showlegend is not False for trace in figure.data))
    figure.update_layout(
        template=go.layout.Template(),
        autosize=True,
        height=HEIGHT + _LEGEND_ROW * (rows - 1),
        margin={"l": _SIDE, "r": _SIDE, "t": _TOP, "b": _FOOT + _LEGEND_ROW},
        paper_bgcolor="#ffffff",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"family": FONT, "size": 12.5, "color": "#1d2430"},
        showlegend=figure.layout.showlegend is not False and bool(figure.data),
        title={
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"l": 8, "t": 10},
            "font": {"size": 15},
        },
        # where a finger drags it scrolls the page
        dragmode=False,
        hoverlabel={"bgcolor": "#1d2430", "bordercolor": GREY, "font": {"color": "#ffffff", "size": 12.5}},
        modebar={
            "bgcolor": "rgba(0, 0, 0, 0)",
            "color": GREY,
            "activecolor": BLUE,
            "remove": ["zoom", "pan", "select", "lasso", "zoomIn", "zoomOut", "autoScale", "resetScale"],
        },
        legend={
            "orientation": "h",
            "x": 0,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "bgcolor": "rgba(0, 0, 0, 0)",
            "traceorder": "normal",
            "itemclick": "toggle",
            "itemdoubleclick": False,
        },
    )
    axis = {"gridcolor": GRID, "zeroline": False, "automargin": True, "fixedrange": True}
    figure.update_xaxes(**axis, showline=True, linecolor=GREY, title_standoff=6, title_font_size=13)
    figure.update_yaxes(**axis, title_standoff=6, title_font_size=13)
    return figure


def sentence(title: str, text: str) -> go.Figure:
    """A chart that has no data, and says why in place of empty axes.

    Args:
        text: short lines, broken with ``<br>``.
    """
    figure = go.Figure(layout={"title": {"text": title}})
    figure.add_annotation(
        text=text, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"size": 13.5}
    )
    styled(figure)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure
