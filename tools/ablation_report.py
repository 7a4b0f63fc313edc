"""From the runs of tools/ablations.py to docs/ablations: numbers with their spread over seeds, tables
between the markers of docs/ablations.md, and plots. Python's standard library only.

A number is taken from runs that finished; what a run measured before it failed is in results.json
and in the plots, and its message in the table. A run that is not there is taken from the results
that the page has.
"""

import json
import math
import os
import re
from dataclasses import dataclass, field
from typing import Any, Callable

import ablation_published
import svg_plot
from ablation_files import Line, is_number, read_metrics, read_object, read_state, write_text
from ablation_published import Notes, RunKey
from ablation_rows import ROOT, ROWS, SEEDS, AblationError, Row, make_config, row_named
from svg_plot import Chart, Point, Reference, Series

RESULTS = "results.json"
TAIL_SHARE = 0.2  # of a run: the steps over which what varies from step to step is averaged
FLOOR_FACTOR = 3.2
FLOAT32_MAX_LOG10 = math.log10(3.4028235e38)  # bfloat16 has the same exponents
FLOAT16_MAX_LOG10 = math.log10(65504)
SITU_CAP = 100.0


def run_name(row: str, seed: int) -> str:
    return f"{row}-seed{seed}"


def without_paths(message: str, work: str) -> str:
    return message.replace(os.path.abspath(work) + os.sep, "").replace(ROOT + os.sep, "")


def cell_text(message: str) -> str:
    return " ".join(message.split()).replace("|", "\\|")


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


@dataclass
class Record:
    """What one run left behind."""
    row: str
    seed: int
    state: str = "not run"
    message: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    evaluation: dict[str, Any] | None = None
    published: dict[str, Any] | None = None  # the results' run that this one is taken from

    @property
    def steps(self) -> int:
        return self.info.get("steps") or (self.lines[-1]["step"] if self.lines else 0)


def load_record(work: str, row: str, seed: int) -> Record:
    path = os.path.join(work, run_name(row, seed))
    info = read_state(path + ".state.json")
    message = without_paths(info.get("message", ""), work)
    evaluation = read_object(path + ".eval.json", "remove it and the run's state.json, and the run"
                                                  " goes on")
    return Record(row, seed, info.get("state", "not run"), message, info,
                  read_metrics(os.path.join(path, "metrics.jsonl")), evaluation)


def published_record(run: dict[str, Any]) -> Record:
    """Without curves: the results have each run's numbers alone."""
    info = {name: run[name] for name in ("steps", "tokens") if run.get(name) is not None}
    return Record(run["row"], run["seed"], run["state"], run["message"], info, published=run)


def fits_results(run: dict[str, Any]) -> bool:
    values = run.get("values")
    return run["seed"] is not None and isinstance(values, dict) and all(map(is_number, values.values()))


# What a line of metrics.jsonl says of a step; None where it does not.


def finite(value: Any) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def of_layers(line: Line, section: str, name: str) -> list[float]:
    values = [finite(layer.get(name)) for layer in line.get(section) or []]
    return [value for value in values if value is not None]


def layer_mean(section: str, name: str) -> Callable[[Line], float | None]:
    return lambda line: mean(of_layers(line, section, name))


def layer_max(section: str, name: str) -> Callable[[Line], float | None]:
    return lambda line: max(of_layers(line, section, name), default=None)


def number(name: str) -> Callable[[Line], float | None]:
    return lambda line: finite(line.get(name))


def reciprocal_log10(line: Line) -> float | None:
    """log10 of the largest reciprocal of a cumulative decay over a tile of 16 tokens."""
    decays = of_layers(line, "health", "tile_log_decay_min")
    return -min(decays) / math.log(10) if decays else None


def curve(lines: list[Line], what: Callable[[Line], float | None]) -> list[Point]:
    points = [(line["step"], what(line)) for line in lines]
    return [(step, value) for step, value in points if value is not None]


# One number of a run.

Measure = Callable[[Record], float | None]


def tail(what: Callable[[Line], float | None]) -> Measure:
    """The mean over the last steps."""
    def measure(record: Record) -> float | None:
        after = (1 - TAIL_SHARE) * record.steps
        return mean([y for step, y in curve(record.lines, what) if step > after])
    return measure


def final(what: Callable[[Line], float | None]) -> Measure:
    def measure(record: Record) -> float | None:
        points = curve(record.lines, what)
        return points[-1][1] if points else None
    return measure


def largest(what: Callable[[Line], float | None]) -> Measure:
    return lambda record: max((y for _, y in curve(record.lines, what)), default=None)


def growth(what: Callable[[Line], float | None]) -> Measure:
    """The last value over the first."""
    def measure(record: Record) -> float | None:
        points = curve(record.lines, what)
        return points[-1][1] / points[0][1] if points and points[0][1] != 0 else None
    return measure


def depth_curve(record: Record) -> list[Point]:
    """RMS of the running sum behind each layer, at the last step that measured it."""
    measured = [line for line in record.lines if line.get("health")]
    layers = measured[-1]["health"] if measured else []
    points = [(layer["layer"] + 1, finite(layer.get("hidden_rms"))) for layer in layers]
    return [(x, y) for x, y in points if y is not None]


def hidden_last(record: Record) -> float | None:
    points = depth_curve(record)
    return points[-1][1] if points else None


def hidden_growth(record: Record) -> float | None:
    points = depth_curve(record)
    return points[-1][1] / points[0][1] if points and points[0][1] != 0 else None


def eval_loss(record: Record) -> float | None:
    return finite((record.evaluation or {}).get("nats_per_token"))


VAL_LOSS = final(number("val_loss"))
MAX_VIOLATION = layer_mean("balance", "max_violation")
DEAD = layer_mean("balance", "dead_experts")
EXPERT_MAX = layer_max("health", "expert_hidden_max")
ROUTED = layer_mean("health", "routed_rms")
MEASURES: dict[str, Measure] = {
    "val_loss": VAL_LOSS,
    "eval_loss": eval_loss,
    "max_violation": tail(MAX_VIOLATION),
    "dead_mean": tail(DEAD),
    "dead_max": tail(layer_max("balance", "dead_experts")),
    "expert_max": largest(EXPERT_MAX),
    "expert_max_end": final(EXPERT_MAX),
    "routed_rms": final(ROUTED),
    "routed_growth": growth(ROUTED),
    "hidden_last": hidden_last,
    "hidden_growth": hidden_growth,
    "hidden_max": final(layer_max("health", "hidden_max")),
    "reciprocal_log10": largest(reciprocal_log10),
    "head_spread": tail(number("head_update_spread")),
    "head_ratio": tail(number("head_update_ratio")),
    "parameters": lambda record: finite(record.info.get("parameters")),
}


def measured(record: Record, name: str) -> float | None:
    """One of MEASURES, of a published run as it was published."""
    if record.published is not None:
        return finite(record.published["values"].get(name))
    return MEASURES[name](record)


# Over seeds.


@dataclass
class Summary:
    """A number of a row: its value for each seed that finished."""
    values: dict[int, float]

    @property
    def mean(self) -> float | None:
        return mean(list(self.values.values()))

    @property
    def half_range(self) -> float:
        return (max(self.values.values()) - min(self.values.values())) / 2 if self.values else 0.0

    def less(self, other: "Summary") -> "Summary":
        """The differences, seed by seed."""
        return Summary({seed: value - other.values[seed] for seed, value in self.values.items()
                        if seed in other.values})

    def text(self, digits: int, sign: bool = False) -> str:
        if not self.values:
            return "–"
        mark = "+" if sign else ""
        each = ", ".join(f"{value:{mark},.{digits}f}" for _, value in sorted(self.values.items()))
        if len(self.values) == 1:
            return f"{each} (seed {next(iter(self.values))} alone)"
        if len(set(self.values.values())) == 1 and digits == 0:
            return f"{self.mean:{mark},.0f}"  # a count that no seed changes
        return f"{self.mean:{mark},.{digits}f} ± {self.half_range:,.{digits}f} ({each})"


def summarise(records: list[Record], measure: str) -> Summary:
    values = {}
    for record in records:
        value = measured(record, measure) if record.state == "finished" else None
        if value is not None and math.isfinite(value):
            values[record.seed] = value
    return Summary(values)


# The questions of the page.


@dataclass(frozen=True)
class Column:
    title: str
    measure: str
    digits: int = 4
    less_base: bool = False


LOSS = (Column("held-out loss", "val_loss"), Column("less the base's", "val_loss", less_base=True))
QUESTIONS: dict[str, tuple[tuple[str, ...], tuple[Column, ...]]] = {
    "balance": (("base", "balance-sign-0.001", "balance-sign-0.01", "balance-sign-0.1",
                 "balance-none"),
                (Column("MaxVio", "max_violation", 3), Column("dead experts a layer", "dead_mean", 2),
                 Column("in the worst layer", "dead_max", 2), *LOSS)),
    "activation": (("base", "swiglu"),
                   (Column("largest activation of the run", "expert_max", 1),
                    Column("at its end", "expert_max_end", 1), *LOSS)),
    "latent-norm": (("base", "no-latent-norm"),
                    (Column("RMS of the routed sum", "routed_rms", 3),
                     Column("over that of the first validation", "routed_growth", 2), *LOSS)),
    "residuals": (("base", "plain-residuals"),
                  (Column("RMS behind the last layer", "hidden_last", 2),
                   Column("over that behind the first", "hidden_growth", 2),
                   Column("largest value", "hidden_max", 1), *LOSS)),
    "decay": (("base", "unbounded-decay"),
              (Column("log10 of the largest reciprocal", "reciprocal_log10", 2), *LOSS)),
    "attention": (("base", "all-mla", "all-kda"), (Column("parameters", "parameters", 0), *LOSS)),
    "quantisation": (("base", "qat", "rounded-after"),
                     (Column("loss of the exported weights", "eval_loss"),
                      Column("less the base's", "eval_loss", less_base=True))),
    "muon": (("base", "whole-matrix-muon"),
             (Column("spread over heads", "head_spread", 3),
              Column("largest over smallest", "head_ratio", 3), *LOSS)),
}

Records = dict[str, list[Record]]


def state_text(records: list[Record]) -> str:
    states = {record.state for record in records}
    if len(states) == 1 and states <= {"finished", "not run"}:
        return states.pop()
    parts = []
    for record in records:
        message = cell_text(record.message)
        parts.append(f"seed {record.seed}: {record.state}{', ' + message if message else ''}")
    return "; ".join(parts)


def table_row(name: str, columns: tuple[Column, ...], records: Records) -> list[str]:
    row: Row = row_named(name)
    cells = [row.label]
    for column in columns:
        summary = summarise(records[name], column.measure)
        if column.less_base:
            base = summarise(records["base"], column.measure)
            cells.append("" if name == "base" else summary.less(base).text(column.digits, True))
        else:
            cells.append(summary.text(column.digits))
    of = row.start or name  # a run that only rounds has the tokens of the one it starts from
    tokens = sorted({record.info["tokens"] for record in records[of] if "tokens" in record.info})
    cells += [", ".join(f"{count:,}" for count in tokens) or "–",
              ", ".join(str(record.seed) for record in records[name]), state_text(records[name]),
              f"`tools/ablations.py run {name}`"]
    return cells


def table(question: str, records: Records) -> str:
    names, columns = QUESTIONS[question]
    header = ["run", *(column.title for column in columns), "tokens", "seeds", "state", "command"]
    return markdown_table(header, [table_row(name, columns, records) for name in names])


# Plots.


def series_of(question: str, records: Records, what: Callable[[Record], list[Point]],
              leave_out: tuple[str, ...] = ()) -> list[Series]:
    names = [name for name in QUESTIONS[question][0] if name not in leave_out]
    return [Series(row_named(name).label, [run for run in map(what, records[name]) if run])
            for name in names]


def step_chart(question: str, records: Records, title: str, y_label: str,
               what: Callable[[Line], float | None], **more: Any) -> Chart:
    series = series_of(question, records, lambda record: curve(record.lines, what),
                       more.pop("leave_out", ()))
    return Chart(title, "step", y_label, series, **more)


def loss_chart(question: str, records: Records, **more: Any) -> Chart:
    """Held-out loss from a fifth of the run on, where differences can be seen."""
    steps = max((record.steps for runs in records.values() for record in runs), default=0)
    return step_chart(question, records, "Held-out loss", "nats a token", number("val_loss"),
                      x_from=0.2 * steps, **more)


WITHOUT_CURVES = {"quantisation-loss": ("rounded-after",)}  # rows of the question, by plot


def curve_rows(plot: str) -> list[str]:
    """The rows whose curves a plot has; it is named after its question."""
    question = next(name for name in QUESTIONS if plot.startswith(name + "-"))
    return [name for name in QUESTIONS[question][0] if name not in WITHOUT_CURVES.get(plot, ())]


def balance_charts(records: Records) -> dict[str, Chart]:
    loads = [record.info["q"] for record in records["base"] if record.info.get("q")]
    floor = [Reference(FLOOR_FACTOR * math.sqrt(2 / loads[0]),
                       f"noise floor 3.2 sqrt(2 / {loads[0]:g})")] if loads else []
    return {
        "balance-max-violation": step_chart(
            "balance", records, "Largest expert's load over the mean, less 1", "MaxVio, mean of layers",
            MAX_VIOLATION, references=floor, log_y=True),
        "balance-dead-experts": step_chart("balance", records, "Experts that no token of a step chose",
                                           "dead experts a layer, of 64", DEAD)}


def decay_references() -> list[Reference]:
    return [Reference(FLOAT32_MAX_LOG10, "float32 and bf16 end at 3.4e38"),
            Reference(80 / math.log(10), "the bound: e^80"),
            Reference(FLOAT16_MAX_LOG10, "float16 ends at 65504")]


def quantisation_references(records: Records) -> list[Reference]:
    rounded = summarise(records["rounded-after"], "eval_loss").mean
    return [] if rounded is None else [Reference(rounded, "MXFP4 after training")]


def charts(records: Records) -> dict[str, Chart]:
    drawn = balance_charts(records)
    drawn["activation-largest"] = step_chart(
        "activation", records, "Largest hidden value of a routed expert", "magnitude", EXPERT_MAX,
        references=[Reference(SITU_CAP, "SiTU's cap, 100")], log_y=True)
    drawn["latent-norm-rms"] = step_chart("latent-norm", records, "Sum over experts, before the norm",
                                          "RMS, mean of layers", ROUTED, log_y=True)
    drawn["residuals-depth"] = Chart("Running sum behind each layer, at the end of training", "layer",
                                     "RMS", series_of("residuals", records, depth_curve))
    drawn["decay-reciprocal"] = step_chart(
        "decay", records, "Largest reciprocal of the decay over a 16-token tile", "its log10",
        reciprocal_log10, references=decay_references())
    drawn["muon-spread"] = step_chart("muon", records, "Spread of update sizes over heads",
                                      "standard deviation / mean", number("head_update_spread"))
    for question in QUESTIONS:
        if question != "quantisation":
            drawn[f"{question}-loss"] = loss_chart(question, records)
    drawn["quantisation-loss"] = loss_chart("quantisation", records, leave_out=WITHOUT_CURVES["quantisation-loss"],
                                            references=quantisation_references(records))
    return drawn


# Files.


def results(records: Records) -> dict[str, Any]:
    """Everything that the tables are made of, and each run's own numbers."""
    runs, rows = [], {}
    for name, of_row in records.items():
        rows[name] = {}
        for measure in MEASURES:
            summary = summarise(of_row, measure)
            if summary.values:
                rows[name][measure] = {"mean": summary.mean, "half_range": summary.half_range,
                                            "seeds": summary.values}
        for record in of_row:
            if record.published is not None:
                runs.append(record.published)
                continue
            values = {key: finite(measure(record)) for key, measure in MEASURES.items()}
            runs.append({"row": name, "seed": record.seed, "state": record.state,
                         "message": record.message, "steps": record.info.get("steps"),
                         "tokens": record.info.get("tokens"),
                         "last_step": record.lines[-1]["step"] if record.lines else 0,
                         "values": {k: v for k, v in values.items() if v is not None}})
    return {"rows": rows, "runs": runs}


def fill_page(page: str, tables: dict[str, str]) -> str:
    for name, content in tables.items():
        pattern = re.compile(rf"(<!-- table:{re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise AblationError(f"ablations.md: expected one `<!-- table:{name} -->` with its"
                                " `<!-- end -->`")
        filled = f"\n{content}\n\n"
        page = pattern.sub(lambda match, inside=filled: f"{match[1]}{inside}{match[2]}", page)
    return page


def write_page(docs: str, tables: dict[str, str], files: dict[str, str]) -> str:
    """Fills the page's tables and writes the files beside it; what was written, for people."""
    page_path = os.path.join(docs, "ablations.md")
    try:
        with open(page_path, encoding="utf-8") as stream:
            page = fill_page(stream.read(), tables)
    except OSError as error:
        raise AblationError(f"{page_path}: {error.strerror}; name the page's directory with"
                            " --docs") from error
    except UnicodeDecodeError as error:
        raise AblationError(f"{page_path}: expected UTF-8 ({error}); restore it") from error
    folder = os.path.join(docs, "ablations")
    try:
        os.makedirs(folder, exist_ok=True)
        for name, content in files.items():
            write_text(os.path.join(folder, name), content)
        write_text(page_path, page)
    except OSError as error:
        raise AblationError(f"{error.filename or folder}: {error.strerror}; make it writable or name"
                            " another page with --docs") from error
    return f"{page_path}, {folder}"


def json_text(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def why_left_out(local: Record, steps: int) -> str:
    """What keeps a run in --work from the page, or nothing."""
    if local.state != "not run" and local.steps != steps:
        return (f"has {local.steps} steps, and the page's runs of it have {steps};"
                " `report --steps N --docs DIR` makes a page of others")
    if local.state != "finished":
        return ""
    if not local.lines or local.lines[-1]["step"] < steps:
        return (f"finished, but its metrics.jsonl does not reach step {steps}; remove its state.json"
                " and its directory, and it is made again")
    if row_named(local.row).evaluated and local.evaluation is None:
        return "finished, but its eval.json is gone; remove its state.json, and it is measured again"
    return ""


def choose_record(local: Record, published: dict[RunKey, dict[str, Any]], steps: int, path: str,
                  notes: Notes) -> Record:
    """The run in --work or the published one, both of as many steps as the page says."""
    key = (local.row, local.seed)
    before = published.get(key)
    fault = why_left_out(local, steps)
    if fault:
        notes.left_out.append(f"{run_name(*key)} {fault}")
        local = Record(*key)
    if ablation_published.takes_place(local.state, before):
        if local.state == "failed" and before is not None and before["state"] == "finished":
            notes.replaced.append(key)
        return local
    if before is None:
        return local
    if before.get("steps") != steps:
        raise ablation_published.refuse_published(
            path, before, f"published with {before.get('steps')} steps, expected {steps}")
    notes.kept.append(key)
    return published_record(before)


def load_records(work: str, docs: str, steps: int | None, notes: Notes) -> Records:
    path = os.path.join(docs, "ablations", RESULTS)
    published = ablation_published.load_runs(path, fits_results)
    return {row.name: [choose_record(load_record(work, row.name, seed), published,
                                     make_config(row, seed, steps)["steps"], path, notes)
                       for seed in SEEDS] for row in ROWS}


def is_kept(plot: str, docs: str, records: Records) -> bool:
    """Whether the plot stays as it is: one drawn anew would lose the curves of published runs."""
    return (os.path.exists(os.path.join(docs, "ablations", f"{plot}.svg"))
            and any(record.published is not None for name in curve_rows(plot)
                    for record in records[name]))


def write_report(work: str, docs: str, steps: int | None = None) -> int:
    notes = Notes("ablations")
    try:
        records = load_records(work, docs, steps, notes)
        drawn = charts(records)
        notes.plots = [name for name in drawn if is_kept(name, docs, records)]
        fresh = sum(record.published is None and record.state != "not run"
                    for of_row in records.values() for record in of_row)
        if fresh == 0:
            raise AblationError(f"{work}: no runs that the page could take; make them with"
                                " `tools/ablations.py run all`. Nothing was written")
        pictures = {f"{name}.svg": svg_plot.render(chart) for name, chart in drawn.items()
                    if name not in notes.plots}
        written = write_page(docs, {name: table(name, records) for name in QUESTIONS},
                             {RESULTS: json_text(results(records)), **pictures})
    except AblationError:
        notes.say_left_out()
        raise
    notes.say(work)
    print(f"{written}: {fresh} runs, {len(notes.kept)} as published")
    return 0
