"""Events of a run -> the Plotly figures of its end: how fast, how many at once, how far, how sure.

Compute time is the forwards' own time after the prompt was read, added up: no network, no page, and no other
lane is in it. Every figure takes no events and one event too; then it says in a sentence what is missing.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from mars_core.events import StepEvent
from mars_core.settings import Metric

from .chart_data import MOST_POINTS, Progress, bin_edges, drafts_by_place, predictions_by_fate, window_of
from .chart_style import AMBER, BLUE, GREY, MAGENTA, TAU, TEAL, Look, look, sentence, styled

MOST_LINES = 3
# how a token was decided -> name, colour, hatching
DECIDED = {
    "ar": ("autoregressive", BLUE, ""),
    "verified": ("verified", TEAL, "\\"),
    "accepted": ("accepted", AMBER, "/"),
}


def throughput(lanes: Mapping[str, Sequence[StepEvent]]) -> go.Figure:
    """Tokens per second of compute over compute time, a line for each lane.

    Args:
        lanes: name -> the lane's events.
    """
    title = "Speed over time"
    progress = {name: Progress.of(events) for name, events in lanes.items()}
    window_s = window_of(progress.values())
    if not any(lane.end_s > window_s > 0 for lane in progress.values()):
        return sentence(title, _too_short(progress))
    figure = go.Figure(layout={"title": {"text": title}})
    for number, (name, lane) in enumerate(progress.items()):
        if lane.end_s > window_s:
            times = np.linspace(window_s, lane.end_s, MOST_POINTS)
            figure.add_trace(
                _line(f"{name}: mean {lane.mean:.3g} tok/s", times, lane.rate(times, window_s), number)
            )
    figure.update_traces(hovertemplate="%{y:.1f} tok/s<br>at %{x:.2f} s of compute")
    figure.update_xaxes(title_text="compute time after the prompt, s", range=[0, _longest(progress.values())])
    figure.update_yaxes(title_text=f"tok/s, mean of the last {window_s:g} s", rangemode="tozero")
    return styled(figure)


def race(lanes: Mapping[str, Sequence[StepEvent]]) -> go.Figure:
    """Committed tokens over compute time, a line for each lane, a marker where it ended.

    Args:
        lanes: name -> the lane's events.
    """
    title = "Tokens over time"
    progress = {name: Progress.of(events) for name, events in lanes.items()}
    if not any(lane.end_s > 0 for lane in progress.values()):
        return sentence(title, _too_short(progress))
    figure = go.Figure(layout={"title": {"text": title}})
    for number, (name, lane) in enumerate(progress.items()):
        thin, end = lane.thinned(), f"{lane.tokens[-1]} tokens, {lane.end_s:.3g} s"
        figure.add_trace(_line(f"{name}: {end}", thin.seconds, thin.tokens, number))
        figure.add_trace(_end_marker(name, lane, look(number)))
    figure.update_traces(
        hovertemplate="%{y} tokens<br>after %{x:.2f} s of compute", selector={"mode": "lines"}
    )
    figure.update_traces(line_shape="hv", selector={"mode": "lines"})  # they come at the end of a forward
    figure.update_xaxes(title_text="compute time after the prompt, s", rangemode="tozero")
    figure.update_yaxes(title_text="tokens committed", rangemode="tozero")
    return styled(figure)


def tokens_per_forward_histogram(events: Sequence[StepEvent]) -> go.Figure:
    """How many forwards committed one token, two, …; and the mean."""
    title = "Tokens per forward"
    counts = Counter(len(event.committed) for event in events if event.committed)
    if not counts:
        return sentence(title, "No forward committed a token.")
    most, num_forwards = max(counts), counts.total()
    mean = sum(count * number for count, number in counts.items()) / num_forwards
    places = list(range(1, most + 1))
    figure = go.Figure(layout={"title": {"text": title}, "bargap": 0.15, "showlegend": False})
    figure.add_bar(
        x=places,
        y=[counts[place] for place in places],
        customdata=[100 * counts[place] / num_forwards for place in places],
        marker_color=BLUE,
        hovertemplate="%{y} forwards committed %{x} tokens<br>%{customdata:.1f} % of all<extra></extra>",
    )
    _mark(figure, [mean], f"mean {mean:.2f}", GREY, max(most, 4))
    figure.update_xaxes(title_text="tokens committed by one forward", range=[0.4, max(most, 4) + 0.6])
    figure.update_xaxes(**_whole_ticks(most))
    figure.update_yaxes(title_text=f"forwards (of {num_forwards})", rangemode="tozero")
    return styled(figure)


def acceptance_by_offset(events: Sequence[StepEvent]) -> go.Figure:
    """The share of forwards that committed at least k tokens, by how the k-th was decided; and how many of
    the k-th drafts were verified, where drafts were fed."""
    title = "How far a forward got"
    forwards = [event for event in events if event.committed]
    if not forwards:
        return sentence(title, "No forward committed a token.")
    most = max(len(event.committed) for event in forwards)
    places = list(range(1, most + 1))
    figure = go.Figure(layout={"title": {"text": title}, "barmode": "stack", "bargap": 0.15})
    for decided, (name, colour, hatching) in DECIDED.items():
        counts = Counter(
            place
            for event in forwards
            for place, choice in enumerate(event.committed, start=1)
            if choice.decided == decided
        )
        if counts:
            figure.add_bar(
                name=name,
                x=places,
                y=[100 * counts[place] / len(forwards) for place in places],
                customdata=[counts[place] for place in places],
                marker={"color": colour, "pattern": _hatched(hatching)},
                hovertemplate=f"%{{y:.1f}} % of forwards: token %{{x}}, {name}"
                f"<br>%{{customdata}} of {len(forwards)} forwards<extra></extra>",
            )
    _add_drafts(figure, forwards)
    figure.update_xaxes(title_text="place k in the forward", range=[0.4, max(most, 4) + 0.6])
    figure.update_xaxes(**_whole_ticks(most))
    figure.update_yaxes(title_text="share of forwards, %", range=[0, 104])
    return styled(figure)


def confidence_histogram(events: Sequence[StepEvent]) -> go.Figure:
    """How sure the predictions behind masks were, those committed against those not, and τ.

    Of those not committed, the ones that the next forward verified are marked apart. Where the metric changed
    during the run, the one that was in force longest counts.
    """
    title = "Confidence behind masks"
    masked = [event for event in events if not event.one_token and event.window_length]
    if not masked:
        return sentence(title, "One token a forward:<br>nothing was predicted behind masks.")
    metric = Counter(event.metric for event in masked).most_common(1)[0][0]
    groups = predictions_by_fate(events, metric)
    if not any(groups.values()):
        return sentence(title, "No prediction was made behind masks.")
    entropy = metric == "entropy"
    edges = bin_edges([value for values in groups.values() for value in values], entropy)
    unit = " nats" if entropy else ""
    figure = go.Figure(layout={"title": {"text": title}, "barmode": "stack", "bargap": 0.06})
    for (name, values), (colour, hatching) in zip(
        groups.items(), ((AMBER, "/"), (TEAL, "\\"), (GREY, "")), strict=True
    ):
        if values:
            _add_bins(figure, name, values, edges, unit, {"color": colour, "pattern": _hatched(hatching)})
    thresholds = sorted({round(event.threshold, 4) for event in masked if event.metric == metric})
    _mark(figure, thresholds, _thresholds_text(thresholds, unit), TAU, float(edges[-1]))
    figure.update_xaxes(title_text=_confidence_title(metric), range=[float(edges[0]), float(edges[-1])])
    figure.update_yaxes(title_text="predictions", rangemode="tozero")
    return styled(figure)


# ---- parts ----


def _too_short(progress: Mapping[str, Progress]) -> str:
    """Why there is no line, and the one figure that there is."""
    measured = [lane for lane in progress.values() if lane.end_s > 0]
    if not measured:
        return "No forward ran after the prompt was read:<br>there is no time to draw."
    lane = measured[0]
    tokens, forwards = int(lane.tokens[-1] - lane.tokens[0]), lane.num_forwards
    return (
        f"{tokens} token{'s' * (tokens != 1)} in {forwards} forward{'s' * (forwards != 1)} "
        f"after the prompt:<br>{lane.mean:.3g} tok/s over {lane.end_s:.2g} s, too short for a line."
    )


def _longest(lanes: Iterable[Progress]) -> float:
    return max(lane.end_s for lane in lanes)


def _line(name: str, x: np.ndarray, y: np.ndarray, number: int) -> go.Scatter:
    """A lane's line. Names may come from outside, and Plotly reads tags in them."""
    lane = look(number)
    name = html.escape(name, quote=False)
    line = {"color": lane.colour, "dash": lane.dash, "width": 2.5}
    return go.Scatter(name=name, x=x, y=y, mode="lines", line=line, legendgroup=str(number))


def _end_marker(name: str, lane: Progress, style: Look) -> go.Scatter:
    return go.Scatter(
        name=html.escape(name, quote=False),
        x=lane.seconds[-1:],
        y=lane.tokens[-1:],
        mode="markers",
        marker={"color": style.colour, "symbol": style.symbol, "size": 11},
        showlegend=False,
        cliponaxis=False,
        hovertemplate="ended with %{y} tokens<br>after %{x:.2f} s of compute",
    )


def _hatched(shape: str) -> dict[str, object]:
    return {
        "shape": shape,
        "fillmode": "overlay",
        "fgcolor": "#ffffff",
        "fgopacity": 0.7,
        "size": 7,
        "solidity": 0.16,
    }


def _whole_ticks(most: int) -> dict[str, object]:
    return {"dtick": 1 if most <= 12 else math.ceil(most / 10), "tick0": 1}


def _mark(figure: go.Figure, values: Sequence[float], text: str, colour: str, end: float) -> None:
    """Labelled vertical lines, one label for all; a band where there are many. `end`: of the x axis."""
    low, high = min(values), max(values)
    if len(values) > MOST_LINES:
        figure.add_vrect(low, high, fillcolor=colour, opacity=0.18, line_width=0)
    else:
        for value in values:
            figure.add_vline(value, line={"color": colour, "width": 2, "dash": "dash"})
    middle = (low + high) / 2
    anchor = "right" if middle > 0.8 * end else "left" if middle < 0.2 * end else "center"
    place = {"xanchor": anchor, "yanchor": "bottom", "yref": "paper", "y": 1}
    figure.add_annotation(x=middle, text=text, showarrow=False, font={"size": 12.5}, **place)


def _add_drafts(figure: go.Figure, forwards: Sequence[StepEvent]) -> None:
    """Of the k-th drafts fed, the share that was verified. Drafts behind the end of a text do not count."""
    fed, verified = drafts_by_place(forwards)
    if not fed:
        return
    places = sorted(fed)
    figure.add_scatter(
        name="k-th drafts verified",
        x=places,
        y=[100 * verified[place] / fed[place] for place in places],
        customdata=[(verified[place], fed[place]) for place in places],
        mode="lines+markers",
        line={"color": MAGENTA, "width": 2, "dash": "dot"},
        marker={"size": 8, "symbol": "diamond"},
        hovertemplate="%{y:.1f} % of drafts at place %{x} were verified"
        "<br>%{customdata[0]} of %{customdata[1]} drafts<extra></extra>",
    )


def _add_bins(
    figure: go.Figure,
    name: str,
    values: Sequence[float],
    edges: np.ndarray,
    unit: str,
    marker: dict[str, object],
) -> None:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    ranges = [f"{low:.2f} to {high:.2f}{unit}" for low, high in zip(edges, edges[1:], strict=False)]
    figure.add_bar(
        name=f"{name} ({len(values)})",
        x=(edges[:-1] + edges[1:]) / 2,
        y=counts,
        width=float(edges[1] - edges[0]) * 0.94,
        customdata=ranges,
        marker=marker,
        hovertemplate=f"%{{y}} predictions {name}<br>confidence %{{customdata}}<extra></extra>",
    )


def _thresholds_text(values: Sequence[float], unit: str) -> str:
    shown = [f"{value:.2f}" for value in values]
    if len(values) > MOST_LINES:
        return f"τ from {shown[0]} to {shown[-1]}{unit}"
    return f"τ = {', '.join(shown)}{unit}"


def _confidence_title(metric: Metric) -> str:
    titles: dict[Metric, str] = {
        "probability": "probability of the prediction",
        "margin": "margin p₁ − p₂ of the prediction",
        "entropy": "entropy, nats (lower is surer)",
    }
    return titles[metric]
