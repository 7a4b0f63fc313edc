"""From the runs of tools/long_context.py to docs/ablations: the table of "Long context without
positions", its two plots and the numbers of both. Python's standard library only.

A length that failed says so in its cell, with k3's message under "state".
"""

from dataclasses import dataclass
from typing import Any

import ablation_report
import long_context_rows
import svg_plot
from ablation_rows import AblationError, Row
from long_context_rows import KINDS, LENGTHS, NANO
from svg_plot import BOTTOM, LEFT, RIGHT, TOP, Axis, Series

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


def load_record(work: str, row: Row, seed: int) -> Record:
    path = long_context_rows.run_path(work, row, seed)
    info = ablation_report.read_json(path + ".state.json") or {}
    info["message"] = ablation_report.without_paths(info.get("message", ""), work)
    results = [long_context_rows.load_result(path, length) for length in LENGTHS]
    for found in results:
        if found is not None and "failed" in found:
            found["failed"] = ablation_report.without_paths(found["failed"], work)
    return Record(row, seed, info, results)


def load_records(work: str) -> list[Record]:
    return [load_record(work, row, seed) for row in long_context_rows.ROWS
            for seed in long_context_rows.seeds_of(work, row)]


# The table.


def state_text(record: Record) -> str:
    """How training ended, unless well, and what became of the measurements."""
    parts = []
    if record.state != "finished":
        parts.append(record.state + (f", {ablation_report.cell_text(record.message)}" if record.message else ""))
    for length, found in zip(LENGTHS, record.results):
        if found is not None and "failed" in found:
            parts.append(f"{length.context:,} tokens: failed, {ablation_report.cell_text(found['failed'])}")
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
    rows = [row for record in records for row in table_rows(record)]
    return ablation_report.markdown_table(header, rows)


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


def draw_ticks(x_axis: Axis, y_axis: Axis) -> list[str]:
    parts = []
    for tick in svg_plot.linear_ticks(0.0, 1.0):
        parts += svg_plot.y_tick(y_axis.place(tick), svg_plot.tick_label(tick))
    tick = LENGTHS[0].context
    while tick <= LENGTHS[-1].context:
        parts += svg_plot.x_tick(x_axis.place(tick), f"{tick:,}")
        tick *= 2
    return parts


def draw_training_length(tokens: int, x_axis: Axis) -> list[str]:
    x = x_axis.place(tokens)
    return [svg_plot.line(x, TOP, x, BOTTOM, svg_plot.REFERENCE_STYLE),
            svg_plot.text(x + 6, (TOP + BOTTOM) / 2, "training length",
                          extra=svg_plot.REFERENCE_HALO)]


def render(records: list[Record], kind: str, training_length: int) -> str:
    """Shares over prompt tokens as the text of an SVG file."""
    x_axis = Axis(LENGTHS[0].context / X_FACTOR, LENGTHS[-1].context * X_FACTOR, LEFT, RIGHT, True)
    y_axis = Axis(-MARGIN, 1 + MARGIN, BOTTOM, TOP)
    times = LENGTHS[-1].context // training_length
    chart = svg_plot.Chart(f"{TITLES[kind]} at up to {times} times the training length",
                           "tokens of the prompt", "share right", series_of(records, kind))
    parts = draw_ticks(x_axis, y_axis) + svg_plot.draw_labels(chart)
    for index, one in enumerate(chart.series):
        parts += svg_plot.draw_series(one, index, x_axis, y_axis)
    parts += draw_training_length(training_length, x_axis) + svg_plot.draw_legend(chart)
    return svg_plot.document(chart.title, parts)


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
    files = {f"{TABLE}-{kind}.svg": render(records, kind, training_length) for kind in KINDS}
    files[f"{TABLE}.json"] = ablation_report.json_text(results(records, training_length))
    written = ablation_report.write_page(docs, {TABLE: table(records)}, files)
    print(f"{written}: {len(records)} runs")
    return 0
