"""A sweep's figures -> Plotly: what speed costs, what another τ would give, how honest confidence is."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from mars_core.bench.sweep.calibration import ENTROPY_EDGES, CalibrationBin
from mars_core.bench.sweep.figures import PointFigures
from mars_core.bench.sweep.grid import GridPoint

from .chart_style import AMBER, BLUE, GREY, TAU, Look, look, sentence, styled
from .explore_paper import paper_curves

PARETO_HEIGHT, STRIP_HEIGHT = 420, 320  # CSS pixels
_NO_POINTS = "Run a sweep first:<br>each setting becomes a point here."


@dataclass(frozen=True)
class Measure:
    """What an axis shows.

    Attributes:
        title: of the axis, with its unit.
        scale: what the figures are multiplied with.
        form: of the hover text.
    """

    title: str
    scale: float = 1.0
    form: str = ".2f"


X_AXES: dict[str, Measure] = {
    "tokens_per_forward": Measure("tokens a forward (tok/fwd)"),
    "speedup": Measure("measured speed-up over AR, ×"),
}
Y_AXES: dict[str, Measure] = {
    "agreement": Measure("agreement with AR's text, %", 100, ".1f"),
    "ar_choices": Measure("tokens AR would choose, %", 100, ".1f"),
    "log_likelihood": Measure("mean ln p a token under AR, nats", 1, ".3f"),
}


def pareto(rows: Sequence[PointFigures], x: str, y: str, *, with_paper: bool = False) -> go.Figure:
    """Speed against what it costs: a point for each setting, up and to the right is better.

    Args:
        rows: the sweep's figures.
        x, y: of `X_AXES` and `Y_AXES`.
        with_paper: lay the paper's curves over, on an axis of their own (tok/fwd only).
    """
    title = "Speed against agreement" if y != "log_likelihood" else "Speed against likelihood"
    shown = [row for row in rows if _value(row, x) is not None and _value(row, y) is not None]
    if not shown:
        return sentence(title, _NO_POINTS)
    figure = go.Figure(layout={"title": {"text": title}})
    for number, (name, members) in enumerate(_series(shown).items()):
        figure.add_trace(_points(name, members, x, y, look(number)))
    for row in shown:
        if row.point.is_ar:
            figure.add_trace(_reference(row, x, y))
    if with_paper and x == "tokens_per_forward":
        _lay_paper_over(figure)
    figure.update_layout(xaxis_title_text=X_AXES[x].title, yaxis_title_text=Y_AXES[y].title)
    return _higher(styled(figure), PARETO_HEIGHT, _num_named(figure))


def _series(rows: Sequence[PointFigures]) -> dict[str, list[PointFigures]]:
    """Settings that differ in τ alone, under a name that says what they share."""
    found: dict[str, list[PointFigures]] = {}
    for row in rows:
        if not row.point.is_ar:
            found.setdefault(_shared_name(row.point), []).append(row)
    return found


def _shared_name(point: GridPoint) -> str:
    kind = "MARS + verify" if point.verify else "MARS"
    metric = "" if point.metric == "probability" else f", {point.metric}"
    return f"{kind}, B {point.block_size}{metric}"


def _points(name: str, rows: Sequence[PointFigures], x: str, y: str, style: Look) -> go.Scatter:
    """τ of each point stands beside it; lines join neighbours in τ."""
    return go.Scatter(
        name=name,
        mode="lines+markers+text",
        x=[_scaled(row, x, X_AXES) for row in rows],
        y=[_scaled(row, y, Y_AXES) for row in rows],
        error_x=_bars(rows, x, X_AXES, style.colour),
        error_y=_bars(rows, y, Y_AXES, style.colour),
        text=[f"{row.point.threshold:g}" for row in rows],
        textposition="bottom left" if rows[0].point.verify else "top right",
        textfont={"size": 11, "color": style.colour},
        line={"color": style.colour, "dash": style.dash, "width": 1.5},
        marker={"color": style.colour, "symbol": style.symbol, "size": 11},
        customdata=[[*_choice(row.point), _hover(row)] for row in rows],
        hovertemplate="%{customdata[4]}<extra></extra>",
        cliponaxis=False,
    )


def _reference(row: PointFigures, x: str, y: str) -> go.Scatter:
    return go.Scatter(
        name="AR, one token a forward",
        mode="markers",
        x=[_scaled(row, x, X_AXES)],
        y=[_scaled(row, y, Y_AXES)],
        marker={"color": GREY, "symbol": "star", "size": 15},
        text=[_hover(row)],
        hovertemplate="%{text}<extra></extra>",
        cliponaxis=False,
    )


def _lay_paper_over(figure: go.Figure) -> None:
    """On an axis of their own: what the paper measured is accuracy on tasks, of other models."""
    named: set[str] = set()
    for number, curve in enumerate(paper_curves()):
        size = curve.name.split(",")[0]
        figure.add_trace(
            go.Scatter(
                name=f"paper: {size} models",
                showlegend=size not in named,
                mode="lines+markers",
                x=[point.tokens_per_forward for point in curve.points],
                y=[point.accuracy for point in curve.points],
                yaxis="y2",
                line={"color": GREY, "dash": "dot", "width": 1},
                marker={
                    "color": GREY,
                    "symbol": ("circle-open", "square-open", "triangle-up-open")[number % 3],
                    "size": 8 if size == "0.5B" else 12,
                },
                text=[f"τ {point.threshold:g}" for point in curve.points],
                hovertemplate=f"paper, {curve.name}, %{{text}}<br>%{{x:.2f}} tok/fwd, "
                "average accuracy %{y:.1f} %<extra></extra>",
            )
        )
        named.add(size)
    figure.update_layout(
        yaxis2={
            "title": {"text": "paper: average accuracy, %"},
            "overlaying": "y",
            "side": "right",
            "range": [0, 100],
            "showgrid": False,
        }
    )


def what_if_chart(
    point: GridPoint | None,
    thresholds: Sequence[float],
    estimates: Sequence[float] | None,
    measured: Sequence[PointFigures] = (),
    *,
    ran: float | None = None,
    source: str = "",
) -> go.Figure:
    """Estimated tok/fwd at every τ, and what was measured.

    Args:
        point: the setting whose run it is estimated from; None where there is none.
        thresholds, estimates: the curve; no estimates where the run opened no windows.
        measured: the sweep's figures; those that differ from `point` in τ alone are shown.
        ran: tok/fwd of the run itself, where it is no sweep's.
        source: what the run was. Example: ``the run at τ 0.5``.
    """
    title = "What if τ were …"
    if point is None or estimates is None:
        return sentence(title, "A run with masks is needed:<br>one below τ's exact end, or verified.")
    figure = go.Figure(layout={"title": {"text": title}})
    figure.add_trace(
        go.Scatter(
            name=f"estimate, from {html.escape(source)}",
            mode="lines",
            x=list(thresholds),
            y=list(estimates),
            line={"color": TAU, "dash": "dash", "width": 2},
            customdata=[[tau, *_choice(point)[1:]] for tau in thresholds],
            hovertemplate="τ %{x:g}: about %{y:.2f} tok/fwd (estimate)<extra></extra>",
        )
    )
    alike = [
        row for row in measured if _shared_name(row.point) == _shared_name(point) and not row.point.is_ar
    ]
    if alike:
        figure.add_trace(_measured(alike))
    if ran is not None:
        figure.add_trace(_marks([point], [ran]))
    unit = ", nats" if point.metric == "entropy" else ""
    figure.update_xaxes(title_text=f"threshold τ on {point.metric}{unit}")
    figure.update_yaxes(title_text="tokens a forward (tok/fwd)", rangemode="tozero")
    return styled(figure)


def _measured(rows: Sequence[PointFigures]) -> go.Scatter:
    points, values = [row.point for row in rows], [row.tokens_per_forward for row in rows]
    return _marks(points, values, error_y=_bars(rows, "tokens_per_forward", X_AXES, BLUE))


def _marks(points: Sequence[GridPoint], values: Sequence[float], **options: Any) -> go.Scatter:
    return go.Scatter(
        name="measured",
        mode="markers",
        x=[point.threshold for point in points],
        y=list(values),
        marker={"color": BLUE, "symbol": "circle", "size": 11},
        customdata=[_choice(point) for point in points],
        hovertemplate="τ %{x:g}: %{y:.2f} tok/fwd (measured)<extra></extra>",
        cliponaxis=False,
        **options,
    )


def calibration_strip(bins: Sequence[CalibrationBin], point: GridPoint | None) -> go.Figure:
    """Of tokens accepted at about one confidence, how many AR would have chosen."""
    title = "Can confidence be trusted?"
    if point is None or not bins:
        return sentence(title, "No token was accepted behind a mask:<br>include a lower τ.")
    names = [_bin_name(item) for item in bins]
    shares = [100 * item.share for item in bins]
    figure = go.Figure(layout={"title": {"text": title}})
    figure.add_trace(
        go.Bar(
            name="AR would choose it (95 % interval)",
            x=names,
            y=shares,
            error_y={
                "type": "data",
                "array": [100 * item.interval[1] - share for item, share in zip(bins, shares, strict=True)],
                "arrayminus": [
                    share - 100 * item.interval[0] for item, share in zip(bins, shares, strict=True)
                ],
                "color": GREY,
                "thickness": 1.5,
            },
            marker={"color": BLUE},
            width=0.62,
            text=[f"{item.num_agreeing} of {item.num_tokens} tokens" for item in bins],
            textposition="none",
            hovertemplate="%{y:.1f} %: %{text}<extra></extra>",
        )
    )
    if point.metric == "probability":
        figure.add_trace(_promised(names, bins))
    unit = ", nats" if point.metric == "entropy" else ""
    # few bins stand in the middle, and are no wider for it
    aside = max(0, 4 - len(bins)) / 2 + 0.5
    figure.update_xaxes(
        title_text=f"{point.metric} when it was accepted{unit}; n tokens",
        type="category",
        range=[-aside, len(bins) - 1 + aside],
    )
    figure.update_yaxes(title_text="agrees with AR, %", range=[0, 104])
    return _higher(styled(figure), STRIP_HEIGHT, _num_named(figure))


def _bin_name(item: CalibrationBin) -> str:
    edges = f"over {item.low:g}" if item.high >= ENTROPY_EDGES[-1] else f"{item.low:g}–{item.high:g}"
    return f"{edges}<br>n {item.num_tokens}"


def _promised(names: Sequence[str], bins: Sequence[CalibrationBin]) -> go.Scatter:
    return go.Scatter(
        name="what the probability says",
        mode="markers",
        x=list(names),
        y=[100 * item.mean_confidence for item in bins],
        marker={"color": AMBER, "symbol": "diamond", "size": 10, "line": {"color": "#ffffff", "width": 1}},
        hovertemplate="mean probability %{y:.1f} %<extra></extra>",
    )


def _choice(point: GridPoint) -> list[Any]:
    """What a click on the point sets."""
    return [point.threshold, point.metric, point.block_size, point.verify]


def _value(row: PointFigures, name: str) -> float | None:
    value = getattr(row, name)
    return value.median if name == "speedup" and value is not None else value


def _scaled(row: PointFigures, name: str, axes: dict[str, Measure]) -> float:
    value = _value(row, name)
    assert value is not None
    return axes[name].scale * value


def _bars(rows: Sequence[PointFigures], name: str, axes: dict[str, Measure], colour: str) -> dict[str, Any]:
    """95 % intervals, of the speed-up its quartiles; thin, for the points are what is looked at."""
    values = [_scaled(row, name, axes) for row in rows]
    ends = [[axes[name].scale * end for end in _ends(row, name)] for row in rows]
    return {
        "type": "data",
        "array": [max(0.0, high - value) for value, (_, high) in zip(values, ends, strict=True)],
        "arrayminus": [max(0.0, value - low) for value, (low, _) in zip(values, ends, strict=True)],
        "color": colour,
        "thickness": 0.7,
        "width": 0,
    }


def _ends(row: PointFigures, name: str) -> tuple[float, float]:
    if name == "speedup":
        assert row.speedup is not None
        return row.speedup.first, row.speedup.third
    low, high = getattr(row, f"{name}_interval")
    return low, high


def _hover(row: PointFigures) -> str:
    lines = [f"<b>{row.point.name}</b>", f"{row.tokens_per_forward:.2f} tok/fwd"]
    if row.speedup is not None:
        lines.append(f"{row.speedup.median:.2f} × AR")
    if row.agreement is not None:
        lines.append(f"agreement {row.agreement:.1%}, {row.same_text} of {row.num_prompts} texts the same")
    lines.append(f"AR would choose {row.ar_choices:.1%} of its tokens")
    return "<br>".join([*lines, f"ln p a token {row.log_likelihood:.3f}"])


def _num_named(figure: go.Figure) -> int:
    """Entries of the legend."""
    return sum(trace.showlegend is not False for trace in figure.data)


def _higher(figure: go.Figure, height: int, num_entries: int) -> go.Figure:
    """Room below for a legend that breaks into lines on a narrow page."""
    figure.update_layout(height=height, margin={"b": 34 + 20 * ((num_entries - 1) // 2)})
    return figure
