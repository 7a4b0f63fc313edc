#!/usr/bin/env python3
"""Trains and measures "Long context without positions" of docs/ablations.md.

    tools/long_context.py list               # the rows and what each changes
    tools/long_context.py run hybrid         # trains one row and measures it at every length
    tools/long_context.py run all --seed 2   # every row, with another seed
    tools/long_context.py report             # the page's table and plots, and their numbers

Runs stand in --work, each in NAME-seedN with its configuration, log and state beside it and one
result a length inside. The row nano trains nothing: it measures models/nano. What is finished is
not made again, what was interrupted goes on, and what failed is recorded with its message (--retry
tries it once more). A measurement that is older than the weights is made again. Where a row has no
run in --work that came to its end, report keeps what the page has of it. Ends with 0, with 1 when
something failed, with 2 for bad input. Python's standard library only.
"""

import argparse
import json
import os
import signal
import sys
from typing import Any

import ablation_files
import ablation_rows
import ablations
import long_context_report
import long_context_rows
from ablation_rows import AblationError, Row
from long_context_rows import LENGTHS, NANO, Length

DEFAULT_WORK = os.path.join(ablation_rows.ROOT, "build", "long-context")


class Run(ablations.Run):
    """The files of one row and seed, in the form that ablations.train takes."""

    def __init__(self, settings: ablations.Settings, row: Row, seed: int) -> None:
        # Not the base's own: the configuration is made of another file.
        self.settings, self.row, self.seed = settings, row, seed
        self.dir = long_context_rows.run_path(settings.work, row, seed)
        self.name = os.path.basename(self.dir)
        self.config = long_context_rows.make_config(row, seed)
        self.model_dir = long_context_rows.NANO_DIR if row is NANO else self.dir


def is_current(run: Run, length: Length) -> bool:
    """Whether the measurement was made, and after the weights were written."""
    if long_context_rows.load_result(run.dir, length) is None:
        return False
    made = os.path.getmtime(long_context_rows.result_path(run.dir, length))
    shards = [entry.stat().st_mtime for entry in os.scandir(run.model_dir)
              if entry.name.startswith("model") and ".safetensors" in entry.name]
    return made >= max(shards, default=0.0)


def read_scores(path: str) -> dict[str, Any]:
    """k3's answer, checked to have a share for every kind. It is a failure when it has not."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
        for kind in long_context_rows.KINDS:
            for name in ("right", "prompt_tokens"):
                float(found["tasks"][kind][name])
        return found
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return {"failed": f"k3 eval: unexpected answer ({type(error).__name__}: {error})"}


def measure(run: Run, length: Length) -> None:
    """k3 eval at one length; what came of it goes to that length's file."""
    path = long_context_rows.result_path(run.dir, length)
    log = os.path.splitext(path)[0] + ".log"
    command = [run.settings.k3, "eval", run.model_dir, "--tasks", "--kinds",
               *long_context_rows.KINDS, "--context", str(length.context), "--cases",
               str(length.cases), "--json", "--threads", str(run.settings.threads)]
    answer = path + ".answer"
    failure = ablations.run_process(command, answer, log)
    found = {"failed": f"k3 eval: {failure}"} if failure else read_scores(answer)
    ablation_files.write_json(path, {**found, "context": length.context, "cases": length.cases})
    os.remove(answer)
    shares = [f"{kind} {found['tasks'][kind]['right']:.3f}" for kind in long_context_rows.KINDS
              if "tasks" in found]
    print(f"{run.name}: {length.context:,} tokens: {found.get('failed') or ', '.join(shares)}",
          flush=True)


def measure_all(run: Run) -> bool:
    """Whether every length has its scores, now or before."""
    ablation_files.make_directory(run.dir, "--work")
    for length in LENGTHS:
        found = long_context_rows.load_result(run.dir, length) if is_current(run, length) else None
        if found is None or ("failed" in found and run.settings.retry):
            measure(run, length)
        elif "failed" in found:
            print(f"{run.name}: {length.context:,} tokens: failed before: {found['failed']}"
                  " (--retry tries again)")
    results = [long_context_rows.load_result(run.dir, length) for length in LENGTHS]
    return all(found is not None and "failed" not in found for found in results)


def ensure_trained(run: Run) -> bool:
    """Whether the run is finished, now or before."""
    known = ablations.known_result(run, "another --work")
    if known is not None:
        return known
    ablations.train(run)
    return run.state()["state"] == "finished"


def nano_is_there() -> bool:
    return os.path.isfile(os.path.join(long_context_rows.NANO_DIR, "config.json"))


def note_nano(run: Run) -> None:
    """The state of a run that was never trained here: its parameters are the model's own."""
    ablation_files.write_json(run.path("state.json"),
                              {"row": run.row.name, "state": "finished",
                               "parameters": ablations.inspect_parameters(run, run.model_dir)})


def ensure(settings: ablations.Settings, row: Row, seed: int) -> bool:
    run = Run(settings, row, seed)
    if row is NANO:
        note_nano(run)
    elif not ensure_trained(run):
        return False
    return measure_all(run)


def chosen_rows(names: list[str]) -> list[Row]:
    """What all means leaves out a nano that is not there; one that was asked for must be."""
    if "all" not in names:
        rows = [long_context_rows.row_named(name) for name in names]
        if NANO in rows and not nano_is_there():
            raise AblationError(f"{long_context_rows.NANO_DIR}: there is no config.json")
        return rows
    if not nano_is_there():
        print(f"{NANO.name}: {long_context_rows.NANO_DIR} has no config.json; it is left out")
    return [row for row in long_context_rows.ROWS if row is not NANO or nano_is_there()]


def run_rows(settings: ablations.Settings, names: list[str], seeds: list[int]) -> int:
    rows = chosen_rows(names)
    ablations.check_program(settings.k3)
    ablation_files.make_directory(settings.work, "--work")
    # The seed is that of a training run: a row that has none is measured once.
    results = [ensure(settings, row, seed) for row in rows
               for seed in (seeds[:1] if row is NANO else seeds)]
    return 0 if all(results) else 1


def list_rows() -> int:
    for row in long_context_rows.ROWS:
        changes = ", ".join(f"{path.removeprefix(ablation_rows.TEXT)} = {json.dumps(value)}"
                            for path, value in row.changes.items())
        plain = ("measures models/nano, trains nothing" if row is NANO
                 else "configs/long-context.json")
        print(f"{row.name:<10} {changes or plain}")
    return 0


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains and measures what docs/ablations.md says of long contexts.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the rows and what each changes")
    run = commands.add_parser("run", help="train rows and measure them at every length")
    ablations.add_run_options(run)
    run.add_argument("--seed", type=ablations.whole_number(0, ablations.SEED_MAX), action="append",
                     help="may be repeated; 1")
    report = commands.add_parser("report", help="write docs/ablations/ and the page's table")
    report.add_argument("--docs", default=os.path.join(ablation_rows.ROOT, "docs"),
                        help="the directory of ablations.md")
    for command in (run, report):
        command.add_argument("--work", default=DEFAULT_WORK,
                             help="the directory of the runs; build/long-context")
    return parser.parse_args(words)


def run_arguments(arguments: argparse.Namespace) -> int:
    if arguments.command == "list":
        return list_rows()
    ablation_files.check_directory(arguments.work, "--work")
    work = os.path.abspath(arguments.work)
    if arguments.command == "report":
        return long_context_report.write_report(work, arguments.docs)
    signal.signal(signal.SIGTERM, ablations.interrupt)
    settings = ablations.Settings(os.path.abspath(arguments.k3), work, arguments.threads,
                                  None, None, arguments.retry)
    return run_rows(settings, arguments.names, arguments.seed or list(long_context_rows.SEEDS))


def main(words: list[str] | None = None) -> int:
    arguments = parse_arguments(words)
    return ablations.run_command("long_context", lambda: run_arguments(arguments))


if __name__ == "__main__":
    sys.exit(main())
