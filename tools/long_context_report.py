"""From the runs of tools/long_context.py to docs/ablations: the table of "Long context without
positions", its two plots and the numbers of both. Python's standard library only.

A length that failed says so in its cell, with k3's message under "state". A run that is not there is
taken from the results that the page has.
"""

import os
from dataclasses import dataclass
from typing import Any

import ablation_files
import ablation_published
import ablation_report
import ablation_rows
import long_context_rows
import svg_plot
from ablation_published import Notes, RunKey
from ablation_rows import AblationError, Row
from long_context_rows import KINDS, LENGTHS, NANO
from svg_plot import BOTTOM, LEFT, RIGHT, TOP, Axis, Series

TABLE = "long-context"
RESULTS = f"{TABLE}.json"
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
    published: bool = False

    @property
    def state(self) -> str:
        return self.info.get("state", "not run")

    @property
    def message(self) -> str:
        return self.info.get("message", "")


def load_record(work: str, row: Row, seed: int) -> Record:
    path = long_context_rows.run_path(work, row, seed)
    info = ablation_files.read_state(path + ".state.json", row is not NANO)
    info["message"] = ablation_report.without_paths(info.get("message", ""), work)
    results = [long_context_rows.load_result(path, length) for length in LENGTHS]
    for found in results:
        if found is not None and "failed" in found:
            found["failed"] = ablation_report.without_paths(found["failed"], work)
    return Record(row, seed, info, results)


def fits_results(run: dict[str, Any]) -> bool:
    results = run.get("results")
    return isinstance(results, list) and all(
        isinstance(one, dict) and (
            one.get("state") == "missing"
            or (one.get("state") == "failed" and isinstance(one.get("message"), str))
            or (one.get("state") == "finished" and long_context_rows.has_scores(one)))
        for one in results)


def published_record(row: Row, seed: int, run: dict[str, Any], path: str) -> Record:
    lengths = [(one.get("context"), one.get("cases")) for one in run["results"]]
    if lengths != [(length.context, length.cases) for length in LENGTHS]:
        raise ablation_published.refuse_published(path, run, "published with other lengths")
    expected = None
    if row is not NANO:
        expected = ablation_rows.tokens_of(long_context_rows.make_config(row, seed))
    if run["state"] in ablation_published.OVER and run.get("tokens") != expected:
        raise ablation_published.refuse_published(
            path, run, f"published with {run.get('tokens')} tokens, expected {expected}")
    info = {name: run[name] for name in ("state", "message", "parameters", "tokens")
            if run.get(name) is not None}
    results: list[dict[str, Any] | None] = []
    for one in run["results"]:
        if one["state"] == "finished":
            results.append({"tasks": one["tasks"], "seed": one.get("case_seed")})
        else:
            results.append({"failed": one["message"]} if one["state"] == "failed" else None)
    return Record(row, seed, info, results, published=True)


def progress(record: Record) -> str:
    """Its state, which is finished once every length was measured too."""
    unmeasured = any(found is None for found in record.results)
    return "interrupted" if record.state == "finished" and unmeasured else record.state


def fits_page(record: Record, notes: Notes) -> bool:
    """Whether it was trained for as many steps as the page says."""
    if record.state == "not run" or record.row is NANO:
        return True
    steps = long_context_rows.make_config(record.row, record.seed)["steps"]
    if record.info["steps"] == steps:
        return True
    notes.left_out.append(f"{ablation_report.run_name(record.row.name, record.seed)} has"
                          f" {record.info['steps']} steps, and the page's runs of it have {steps}")
    return False


def choose_record(local: Record, published: dict[RunKey, dict[str, Any]], path: str,
                  notes: Notes) -> Record:
    key = (local.row.name, local.seed)
    before = published.get(key)
    if not fits_page(local, notes):
        local = Record(local.row, local.seed, {}, [None] * len(LENGTHS))
    if ablation_published.takes_place(progress(local), before):
        if local.state == "failed" and before is not None and before["state"] == "finished":
            notes.replaced.append(key)
        return local
    if before is None:
        return local
    notes.kept.append(key)
    return published_record(local.row, local.seed, before, path)


def load_records(work: str, docs: str, notes: Notes) -> list[Record]:
    """Those of every seed that was begun or published; where none was, of the one that a run takes
    by itself."""
    path = os.path.join(docs, "ablations", RESULTS)
    published = ablation_published.load_runs(path, fits_results)
    records = []
    for row in long_context_rows.ROWS:
        seeds = {*long_context_rows.seeds_of(work, row),
                 *(seed for name, seed in published if name == row.name)}
        for seed in sorted(seeds or long_context_rows.SEEDS):
            records.append(choose_record(load_record(work, row, seed), published, path, notes))
    return records


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
    notes = Notes("long_context")
    try:
        records = load_records(work, docs, notes)
        fresh = sum(not record.published and record.state != "not run" for record in records)
        if fresh == 0:
            raise AblationError(f"{work}: no runs that the page could take; make them with"
                                " `tools/long_context.py run all`. Nothing was written")
        base = long_context_rows.make_config(long_context_rows.ROWS[0], 1)
        training_length = base["sequence_length"]
        files = {f"{TABLE}-{kind}.svg": render(records, kind, training_length) for kind in KINDS}
        files[RESULTS] = ablation_report.json_text(results(records, training_length))
        written = ablation_report.write_page(docs, {TABLE: table(records)}, files)
    except AblationError:
        notes.say_left_out()
        raise
    notes.say(work)
    print(f"{written}: {fresh} runs, {len(notes.kept)} as published")
    return 0
