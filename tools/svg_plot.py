"""Line charts as standalone SVG: axes with round ticks, linear or logarithmic y, several series whose
runs are thin lines and whose mean is a thick one, and horizontal reference lines with their names.

A value that is not finite, or not positive on a logarithmic axis, leaves a gap in its line. The
colours are those of Okabe and Ito, which colour-blind readers can tell apart. Python's standard
library only.
"""

import math
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 78, 620, 40, 364  # of the area that the curves fill
LEGEND_X = 640
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "", "7 3", "2 3")
REFERENCE_COLOUR = "#8A0000"
REFERENCE_STYLE = (f'class="reference" stroke="{REFERENCE_COLOUR}" stroke-width="1.4"'
                   ' stroke-dasharray="5 4"')
REFERENCE_HALO = (f' fill="{REFERENCE_COLOUR}" stroke="#FFFFFF" stroke-width="3"'
                  ' paint-order="stroke" stroke-linejoin="round"')
GRID_STYLE = 'stroke="#E4E4E4" stroke-width="1"'
MARGIN = 0.04  # of the data's range, above and below it


@dataclass
class Series:
    """The runs of one setting, each a list of (x, y) in order of x."""
    name: str
    runs: list[list[Point]]


@dataclass
class Reference:
    """A horizontal line."""
    value: float
    label: str


@dataclass
class Chart:
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    references: list[Reference] = field(default_factory=list)
    log_y: bool = False
    x_from: float | None = None  # points before it are left out


@dataclass
class Axis:
    """From values to pixels."""
    low: float
    high: float
    pixel_low: float
    pixel_high: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        return self.pixel_low + (at - low) / (high - low) * (self.pixel_high - self.pixel_low)


def linear_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between the two, about `count` of them."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; on a short axis 2 and 5 times them as well."""
    decades = math.log10(high / low)
    stride = max(1, math.ceil(decades / 8))
    factors = (1, 2, 5) if decades < 2.5 else (1,)
    ticks = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        if power % stride == 0:
            ticks += [factor * 10.0 ** power for factor in factors]
    return [tick for tick in ticks if low * 0.999999 <= tick <= high * 1.000001]


def tick_label(value: float) -> str:
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return f"{value:.10g}"


def drawable(value: float, log: bool) -> bool:
    return math.isfinite(value) and (not log or value > 0)


def mean_curve(runs: list[list[Point]]) -> list[Point]:
    """The mean over the runs at every x that all of them have; a gap where one has no number."""
    if not runs:
        return []
    columns = [dict(run) for run in runs]
    shared = [x for x, _ in runs[0] if all(x in column for column in columns)]
    return [(x, sum(column[x] for column in columns) / len(columns)) for x in shared]


def segments(points: list[Point], log: bool) -> list[list[Point]]:
    """The parts of a line between its gaps."""
    parts: list[list[Point]] = [[]]
    for x, y in points:
        if drawable(y, log):
            parts[-1].append((x, y))
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def data_range(values: list[float], log: bool) -> tuple[float, float]:
    """The ends of an axis that shows all values with a margin."""
    if not values:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(values), max(values)
    if log:
        spread = max(math.log10(high / low), 0.2)
        return low / 10 ** (MARGIN * spread), high * 10 ** (MARGIN * spread)
    spread = high - low if high > low else max(abs(high), 1.0) * 0.1
    below = 0.0 if 0 <= low < MARGIN * spread else low - MARGIN * spread
    return below, high + MARGIN * spread


def axes_of(chart: Chart) -> tuple[Axis, Axis]:
    """The x and the y axis of a chart whose points are already cut."""
    points = [point for series in chart.series for run in series.runs for point in run]
    xs = [x for x, y in points if drawable(y, chart.log_y)]
    ys = [y for _, y in points if drawable(y, chart.log_y)]
    ys += [line.value for line in chart.references if drawable(line.value, chart.log_y)]
    x_low, x_high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    y_low, y_high = data_range(ys, chart.log_y)
    return (Axis(x_low, x_high, LEFT, RIGHT), Axis(y_low, y_high, BOTTOM, TOP, chart.log_y))


def cut(chart: Chart) -> Chart:
    if chart.x_from is None:
        return chart
    kept = [Series(one.name, [[p for p in run if p[0] >= chart.x_from] for run in one.runs])
            for one in chart.series]
    return Chart(chart.title, chart.x_label, chart.y_label, kept, chart.references, chart.log_y)


def text(x: float, y: float, content: str, anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def x_tick(x: float, label: str) -> list[str]:
    return [line(x, TOP, x, BOTTOM, GRID_STYLE), text(x, BOTTOM + 18, label, "middle")]


def y_tick(y: float, label: str) -> list[str]:
    return [line(LEFT, y, RIGHT, y, GRID_STYLE), text(LEFT - 8, y + 4, label, "end")]


def draw_ticks(chart: Chart, x_axis: Axis, y_axis: Axis) -> list[str]:
    parts = []
    ticks = log_ticks if chart.log_y else linear_ticks
    for tick in ticks(y_axis.low, y_axis.high):
        parts += y_tick(y_axis.place(tick), tick_label(tick))
    for tick in linear_ticks(x_axis.low, x_axis.high):
        parts += x_tick(x_axis.place(tick), tick_label(tick))
    return parts


def draw_labels(chart: Chart) -> list[str]:
    """The frame, the names of the axes and the title."""
    middle_y = (TOP + BOTTOM) / 2
    turned = f' transform="rotate(-90 18 {middle_y:.1f})"'
    return [
        f'<rect x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}"'
        ' fill="none" stroke="#444444"/>',
        text((LEFT + RIGHT) / 2, HEIGHT - 14, chart.x_label, "middle"),
        text(18, middle_y, chart.y_label, "middle", turned),
        text(LEFT, TOP - 14, chart.title, extra=' font-weight="bold" font-size="15"')]


def draw_line(points: list[Point], x_axis: Axis, y_axis: Axis, style: str) -> list[str]:
    parts = []
    for part in segments(points, y_axis.log):
        placed = [(x_axis.place(x), y_axis.place(y)) for x, y in part]
        if len(placed) == 1:
            placed.append((placed[0][0] + 2, placed[0][1]))  # a lone point is a dash
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" {style}/>')
    return parts


def draw_series(one: Series, index: int, x_axis: Axis, y_axis: Axis) -> list[str]:
    colour = PALETTE[index % len(PALETTE)]
    dash = DASHES[index % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    parts = [f'<g class="series" id="series-{index}"><title>{escape(one.name)}</title>']
    if len(one.runs) > 1:
        for run in one.runs:
            parts += draw_line(run, x_axis, y_axis,
                               f'class="run" stroke="{colour}" stroke-width="1" opacity="0.45"')
    parts += draw_line(mean_curve(one.runs), x_axis, y_axis,
                       f'class="mean" stroke="{colour}" stroke-width="2.4"{dashes}')
    return parts + ["</g>"]


def draw_legend(chart: Chart) -> list[str]:
    parts = []
    for index, one in enumerate(chart.series):
        y = TOP + 10 + 22 * index
        dash = DASHES[index % len(DASHES)]
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        colour = PALETTE[index % len(PALETTE)]
        parts += [line(LEGEND_X, y, LEGEND_X + 30, y,
                       f'stroke="{colour}" stroke-width="2.4"{dashes}'),
                  text(LEGEND_X + 38, y + 4, one.name)]
    if any(len(one.runs) > 1 for one in chart.series):
        y = TOP + 10 + 22 * len(chart.series)
        parts.append(text(LEGEND_X, y + 4, "thick: mean; thin: one seed", extra=' fill="#555555"'))
    return parts


def draw_references(chart: Chart, y_axis: Axis) -> list[str]:
    parts = []
    for reference in chart.references:
        if drawable(reference.value, chart.log_y):
            y = y_axis.place(reference.value)
            parts += [line(LEFT, y, RIGHT, y, REFERENCE_STYLE),
                      text(LEFT + 6, y - 5, reference.label, extra=REFERENCE_HALO)]
    return parts


def document(title: str, parts: list[str]) -> str:
    """The text of an SVG file of a chart's size."""
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
            f' viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
            ' fill="#222222">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#FFFFFF"/>']
    return "\n".join([*head, *parts, "</svg>", ""])


def render(chart: Chart) -> str:
    """The chart as the text of an SVG file."""
    chart = cut(chart)
    x_axis, y_axis = axes_of(chart)
    parts = draw_ticks(chart, x_axis, y_axis) + draw_labels(chart)
    for index, one in enumerate(chart.series):
        parts += draw_series(one, index, x_axis, y_axis)
    return document(chart.title, parts + draw_references(chart, y_axis) + draw_legend(chart))
