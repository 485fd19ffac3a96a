"""Draws the panels of the Grafana dashboard as one page of HTML, from Prometheus' answers to the panels' own queries.
The page has the dashboard's grid of 24 columns."""

import html
import math
import time
from dataclasses import dataclass

WIDTH = 1400
COLUMN, ROW, GAP = WIDTH / 24, 34, 8
COLORS = ["#3274d9", "#e0752d", "#299c46", "#a352cc", "#c4162a", "#8f7d00", "#007a8a", "#6d6d6d"]
STYLE = """
body { margin: 0; background: #eef0f3; font: 14px sans-serif; color: #1d1f24; }
.panel { position: absolute; box-sizing: border-box; background: #fff; border: 1px solid #d5d8de; padding: 6px 10px;
  overflow: hidden; }
h1 { font-size: 22px; margin: 12px 10px 0; } h1 small, .what { color: #5d6470; font-weight: normal; }
h1 small { font-size: 15px; } h2 { font-size: 15px; margin: 0; } .what { font-size: 12.5px; margin: 1px 0 4px; }
.stat { font-size: 40px; text-align: center; margin-top: 8px; }
.key { font-size: 12.5px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
td, th { text-align: left; padding: 2px 8px; border-bottom: 1px solid #e6e8ec; } th { color: #5d6470; }
"""


@dataclass
class Line:
    """One series of a query: its labels, and its values by time. A table and a single number use the last value."""

    labels: dict[str, str]
    values: list[tuple[float, float]]
    legend: str


def page(panels: list[tuple[dict, list[Line]]], begin: float, end: float) -> tuple[str, int]:
    """Returns the page, and its height in pixels."""
    top = 60
    body, height = [], 0
    for panel, lines in panels:
        at = panel["gridPos"]
        place = (
            f"left:{at['x'] * COLUMN + GAP / 2:.0f}px;top:{top + at['y'] * ROW:.0f}px;"
            f"width:{at['w'] * COLUMN - GAP:.0f}px;height:{at['h'] * ROW - GAP:.0f}px"
        )
        height = max(height, top + (at["y"] + at["h"]) * ROW)
        text = html.escape(panel["title"])
        what = html.escape(panel["description"])
        # A small panel has no room for its description.
        head = f"<h2>{text}</h2>" + (f'<p class="what">{what}</p>' if panel["type"] != "stat" else "")
        body.append(f'<div class="panel" style="{place}">{head}{content(panel, lines, begin, end)}</div>')
    title = "<h1>whet <small>drawn from the dashboard's own queries</small></h1>"
    return f'<meta charset="utf-8"><style>{STYLE}</style>{title}{"".join(body)}', height


def content(panel: dict, lines: list[Line], begin: float, end: float) -> str:
    """Returns what a panel shows below its title."""
    shown = {**panel["fieldConfig"]["defaults"]}
    if not lines:
        return '<p class="stat" style="color:#8b919c">no data</p>'
    if panel["type"] == "stat":
        value = lines[0].values[-1][1]
        steps = shown.get("thresholds", {}).get("steps", [{"color": "#299c46", "value": None}])
        color = [s["color"] for s in steps if s["value"] is None or value >= s["value"]][-1]
        return f'<p class="stat" style="color:{color}">{number(value, shown)}</p>'
    if panel["type"] == "table":
        return table(lines, shown)
    at = panel["gridPos"]
    return graph(lines, shown, (begin, end), (at["w"] * COLUMN - 36, at["h"] * ROW - 82)) + key(lines)


def table(lines: list[Line], shown: dict) -> str:
    """Returns a table with a column for each label."""
    names = sorted({name for line in lines for name in line.labels} - {"__name__", "job"})
    rows = [[*(line.labels.get(name, "") for name in names), number(line.values[-1][1], shown)] for line in lines]
    cells = [[*names, "value"], *rows[:7]]
    tag = ["th", *["td"] * len(rows)]
    row = lambda kind, texts: "<tr>" + "".join(f"<{kind}>{html.escape(t)}</{kind}>" for t in texts) + "</tr>"
    return "<table>" + "".join(row(kind, texts) for kind, texts in zip(tag, cells)) + "</table>"


def key(lines: list[Line]) -> str:
    """Returns the legend."""
    parts = [f'<span style="color:{color(i)}">&#9632;</span> {html.escape(l.legend)}' for i, l in enumerate(lines)]
    return f'<div class="key">{" &nbsp; ".join(parts)}</div>'


def color(index: int) -> str:
    """Returns the color of a line."""
    return COLORS[index % len(COLORS)]


def graph(lines: list[Line], shown: dict, times: tuple[float, float], size: tuple[float, float]) -> str:
    """Returns a picture of values over time."""
    (begin, end), (width, height) = times, size
    left, bottom = 62, 20
    values = [v for line in lines for _, v in line.values]
    low, high, step = scale(shown.get("min", min(values)), shown.get("max", max(values)))
    x = lambda t: left + (t - begin) / max(end - begin, 1) * (width - left)
    y = lambda v: (height - bottom) * (1 - (v - low) / (high - low)) + 6
    out = []
    for i in range(round((high - low) / step) + 1):
        value = low + i * step
        out.append(f'<line x1="{left}" x2="{width}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#e6e8ec"/>')
        text = number(value, shown | {"decimals": next(d for d in range(9) if abs(round(step, d) - step) < step / 1e3)})
        out.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{text}</text>')
    for i in range(5):
        at = begin + (end - begin) * i / 4
        anchor = ["start", "middle", "middle", "middle", "end"][i]
        clock = time.strftime("%H:%M:%S", time.gmtime(at))
        out.append(f'<text x="{x(at):.1f}" y="{height + 4}" text-anchor="{anchor}">{clock}</text>')
    for i, line in enumerate(lines):
        points = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in line.values)
        out.append(f'<polyline points="{points}" fill="none" stroke="{color(i)}" stroke-width="2"/>')
    style = "font-size:12.5px;fill:#5d6470"
    return f'<svg width="{width:.0f}" height="{height + 8:.0f}" style="{style}">{"".join(out)}</svg>'


def scale(least: float, most: float) -> tuple[float, float, float]:
    """Returns the ends of an axis, and the distance of its marks."""
    if most - least < 1e-9:
        least, most = (0.0, 1.0) if most == 0 else (min(0.0, least), most * 1.2)
    raw = (most - least) / 4
    power = 10 ** math.floor(math.log10(raw))
    step = next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= raw * (1 - 1e-9))
    return math.floor(least / step + 1e-9) * step, math.ceil(most / step - 1e-9) * step, step


def number(value: float, shown: dict) -> str:
    """Returns a number with its unit."""
    unit, decimals = shown.get("unit", "short"), shown.get("decimals")
    if unit == "percentunit":
        return f"{value * 100:.{max(0, (decimals or 0) - 2)}f}%"
    if value == 0:
        return "0"
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    if unit == "bytes":
        return f"{value / 2**20:.3g} MiB"
    return f"{value:.{decimals}f}" if decimals is not None else f"{value:.6g}"
