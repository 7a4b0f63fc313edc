"""From the runs of tools/long_context.py to docs/ablations: the table of "Long context without
positions", its two plots and the numbers of both. Python's standard library only.

A length that failed says so in its cell, with k3's message under "state".
"""

import json
import os
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import ablation_report
import long_context_rows
import svg_plot
from ablation_rows import ROOT, AblationError, Row
from long_context_rows import KINDS, LENGTHS, NANO
from svg_plot import BOTTOM, HEIGHT, LEFT, REFERENCE_COLOUR, RIGHT, TOP, WIDTH, Axis, Series

TABLE = "long-context"
TITLES = {"copy": "Copying", "look-up": "Key look-up"}
MARGIN = 0.04  # of the axis of shares, so that lines of 0 and of 1 stand clear of the frame
X_FACTOR = 1.2  # by which the axis of tokens goes on beyond the lengths


@dataclass
class Record:
    """What one run left behind; its results in the order of LENGTHS, None where there is none."""
    row: Row
    seed: int
    info: dict[str, Any]
    results: list[dict[str, Any] | None]

    @property
    def state(self) -> str:
        return self.info.get("state", "not run")

    @property
    def message(self) -> str:
        return self.info.get("message", "")


def without_paths(message: str, work: str) -> str:
    return message.replace(os.path.abspath(work) + os.sep, "").replace(ROOT + os.sep, "")


def load_record(work: str, row: Row, seed: int) -> Record:
    path = long_context_rows.run_path(work, row, seed)
    info = ablation_report.read_json(path + ".state.json") or {}
    info["message"] = without_paths(info.get("message", ""), work)
    results = [long_context_rows.load_result(path, length) for length in LENGTHS]
    for found in results:
        if found is not None and "failed" in found:
            found["failed"] = without_paths(found["failed"], work)
    return Record(row, seed, info, results)


def load_records(work: str) -> list[Record]:
    return [load_record(work, row, seed) for row in long_context_rows.ROWS
            for seed in long_context_rows.seeds_of(work, row)]


# The table.


def cell_text(message: str) -> str:
    return " ".join(message.split()).replace("|", "\\|")


def state_text(record: Record) -> str:
    """How training ended, unless well, and what became of the measurements."""
    parts = []
    if record.state != "finished":
        parts.append(record.state + (f", {cell_text(record.message)}" if record.message else ""))
    for length, found in zip(LENGTHS, record.results):
        if found is not None and "failed" in found:
            parts.append(f"{length.context:,} tokens: failed, {cell_text(found['failed'])}")
    missing = sum(found is None for found in record.results)
    if missing and record.state == "finished":
        parts.append(f"{missing} of {len(LENGTHS)} lengths not measured")
    return "; ".join(parts) or "finished"


def share_text(found: dict[str, Any] | None, kind: str) -> str:
    if found is None:
        return "not measured"
    return "failed" if "failed" in found else f"{found['tasks'][kind]['right']:.3f}"


def table_rows(record: Record) -> list[list[str]]:
    """A line a kind."""
    numbers = [f"{record.info[name]:,}" if name in record.info else "–"
               for name in ("parameters", "tokens")]
    seed = "–" if record.row is NANO else str(record.seed)
    return [[record.row.label, kind, *(share_text(found, kind) for found in record.results),
             *numbers, seed, state_text(record), f"`tools/long_context.py run {record.row.name}`"]
            for kind in KINDS]


def table(records: list[Record]) -> str:
    header = ["model", "task",
              *(f"{length.context:,} tokens, {length.cases} cases" for length in LENGTHS),
              "parameters", "tokens", "seed", "state", "command"]
    rows = [header, ["---"] * len(header)]
    for record in records:
        rows += table_rows(record)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


# The plots: svg_plot's lines on a logarithmic axis of tokens.


def points_of(record: Record, kind: str) -> list[svg_plot.Point]:
    scores = [found["tasks"][kind] for found in record.results if found and "tasks" in found]
    return [(score["prompt_tokens"], score["right"]) for score in scores]


def series_of(records: list[Record], kind: str) -> list[Series]:
    """One a row, also where nothing was measured, so that colours do not depend on it."""
    series = []
    for row in long_context_rows.ROWS:
        runs = [points_of(record, kind) for record in records if record.row is row]
        series.append(Series(row.label, [run for run in runs if run]))
    return series


def draw_axes(x_axis: Axis, y_axis: Axis) -> list[str]:
    grid = 'stroke="#E4E4E4" stroke-width="1"'
    parts = []
    for tick in svg_plot.linear_ticks(0.0, 1.0):
        y = y_axis.place(tick)
        parts += [svg_plot.line(LEFT, y, RIGHT, y, grid),
                  svg_plot.text(LEFT - 8, y + 4, svg_plot.tick_label(tick), "end")]
    tick = LENGTHS[0].context
    while tick <= LENGTHS[-1].context:
        x = x_axis.place(tick)
        parts += [svg_plot.line(x, TOP, x, BOTTOM, grid),
                  svg_plot.text(x, BOTTOM + 18, f"{tick:,}", "middle")]
        tick *= 2
    return parts


def draw_training_length(tokens: int, x_axis: Axis) -> list[str]:
    x = x_axis.place(tokens)
    style = (f'class="reference" stroke="{REFERENCE_COLOUR}" stroke-width="1.4"'
             ' stroke-dasharray="5 4"')
    halo = (f' fill="{REFERENCE_COLOUR}" stroke="#FFFFFF" stroke-width="3" paint-order="stroke"'
            ' stroke-linejoin="round"')
    return [svg_plot.line(x, TOP, x, BOTTOM, style),
            svg_plot.text(x + 6, (TOP + BOTTOM) / 2, "training length", extra=halo)]


def render(records: list[Record], kind: str, training_length: int) -> str:
    """Shares over prompt tokens as the text of an SVG file."""
    x_axis = Axis(LENGTHS[0].context / X_FACTOR, LENGTHS[-1].context * X_FACTOR, LEFT, RIGHT, True)
    y_axis = Axis(-MARGIN, 1 + MARGIN, BOTTOM, TOP)
    series = series_of(records, kind)
    times = LENGTHS[-1].context // training_length
    title = f"{TITLES[kind]} at up to {times} times the training length"
    middle_y = (TOP + BOTTOM) / 2
    turned = f' transform="rotate(-90 18 {middle_y:.1f})"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
             f' viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
             ' fill="#222222">',
             f"<title>{escape(title)}</title>",
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#FFFFFF"/>',
             *draw_axes(x_axis, y_axis),
             f'<rect x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}"'
             ' fill="none" stroke="#444444"/>',
             svg_plot.text((LEFT + RIGHT) / 2, HEIGHT - 14, "tokens of the prompt", "middle"),
             svg_plot.text(18, middle_y, "share right", "middle", turned),
             svg_plot.text(LEFT, TOP - 14, title, extra=' font-weight="bold" font-size="15"')]
    for index, one in enumerate(series):
        parts += svg_plot.draw_series(one, index, x_axis, y_axis)
    parts += draw_training_length(training_length, x_axis)
    parts += svg_plot.draw_legend(svg_plot.Chart(title, "", "", series))
    return "\n".join(parts + ["</svg>", ""])


# Files.


def result_object(length: long_context_rows.Length, found: dict[str, Any] | None) -> dict[str, Any]:
    one: dict[str, Any] = {"context": length.context, "cases": length.cases}
    if found is None:
        return {**one, "state": "missing"}
    if "failed" in found:
        return {**one, "state": "failed", "message": found["failed"]}
    tasks = {kind: {name: found["tasks"][kind][name] for name in ("right", "prompt_tokens")}
             for kind in KINDS}
    return {**one, "state": "finished", "case_seed": found.get("seed"), "tasks": tasks}


def results(records: list[Record], training_length: int) -> dict[str, Any]:
    """Everything that the table and the plots are made of."""
    runs = []
    for record in records:
        runs.append({"row": record.row.name, "seed": None if record.row is NANO else record.seed,
                     "state": record.state, "message": record.message,
                     "parameters": record.info.get("parameters"),
                     "tokens": record.info.get("tokens"),
                     "results": [result_object(*pair) for pair in zip(LENGTHS, record.results)]})
    return {"training_length": training_length, "runs": runs}


def write_report(work: str, docs: str) -> int:
    records = load_records(work)
    if not any(record.info.get("state") or any(record.results) for record in records):
        raise AblationError(f"{work}: no runs; make them with `tools/long_context.py run all`")
    training_length = long_context_rows.make_config(long_context_rows.ROWS[0], 1)["sequence_length"]
    page_path = os.path.join(docs, "ablations.md")
    try:
        with open(page_path, encoding="utf-8") as stream:
            page = ablation_report.fill_page(stream.read(), {TABLE: table(records)})
    except OSError as error:
        raise AblationError(f"{page_path}: {error.strerror}") from error
    folder = os.path.join(docs, "ablations")
    os.makedirs(folder, exist_ok=True)
    ablation_report.write_text(
        os.path.join(folder, f"{TABLE}.json"),
        json.dumps(results(records, training_length), indent=1, allow_nan=False) + "\n")
    for kind in KINDS:
        ablation_report.write_text(os.path.join(folder, f"{TABLE}-{kind}.svg"),
                                   render(records, kind, training_length))
    ablation_report.write_text(page_path, page)
    print(f"{page_path}, {folder}: {len(records)} runs")
    return 0
