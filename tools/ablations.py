#!/usr/bin/env python3
"""Trains what docs/ablations.md compares and fills that page.

    tools/ablations.py list                      # the rows and what each changes
    tools/ablations.py run balance-none          # both seeds of one row, and what it starts from
    tools/ablations.py run all --seed 1          # one seed of every row
    tools/ablations.py report                    # tables, plots and docs/ablations/results.json

Runs stand in --work, each in NAME-seedN with its configuration, log, state and evaluation beside it.
A finished run is not made again, one that was interrupted goes on, and one that failed is recorded
with its message (--retry tries it once more). Text comes from --corpus; tools/gather_corpus.py makes
it. Where a row has no run in --work that came to its end, report keeps what the page has of it.
Ends with 0, with 1 when a run failed, with 2 for bad input. Python's standard library only.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Callable

import ablation_files
import ablation_report
import ablation_rows
from ablation_files import write_json
from ablation_rows import AblationError, Row

DEFAULT_WORK = os.path.join(ablation_rows.ROOT, "build", "ablations")
DEFAULT_K3 = os.path.join(ablation_rows.ROOT, "build", "release", "k3")
# What k3 takes.
STEPS_MAX = 1 << 40
SEED_MAX = (1 << 63) - 1
THREADS_MAX = 1024


@dataclass
class Settings:
    k3: str
    work: str
    threads: int
    steps: int | None
    corpus: str | None
    retry: bool


class Run:
    """The files of one row and seed."""

    def __init__(self, settings: Settings, row: Row, seed: int) -> None:
        self.settings, self.row, self.seed = settings, row, seed
        self.name = ablation_report.run_name(row.name, seed)
        self.dir = os.path.join(settings.work, self.name)
        self.config = ablation_rows.make_config(row, seed, settings.steps, settings.corpus)

    def path(self, kind: str) -> str:
        return f"{self.dir}.{kind}"

    def state(self) -> dict[str, Any]:
        return ablation_files.read_state(self.path("state.json"))

    def save_state(self, state: str, message: str = "", **more: Any) -> None:
        write_json(self.path("state.json"),
                   {"row": self.row.name, "seed": self.seed, "state": state, "message": message,
                    "steps": self.config["steps"], "tokens": ablation_rows.tokens_of(self.config),
                    "q": ablation_rows.target_load(self.config), **more})


def run_process(command: list[str], out_path: str, log_path: str) -> str:
    """Runs it in a session of its own; why it failed, or nothing when it did not. An interruption
    ends it gently, once, and is passed on."""
    with open(out_path, "w", encoding="utf-8") as out, open(log_path, "a", encoding="utf-8") as log:
        begin = log.tell()
        try:
            process = subprocess.Popen(command, stdout=out, stderr=log, stdin=subprocess.DEVNULL,
                                       start_new_session=True)
        except OSError as error:
            raise cannot_start(command[0], error) from error
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    return "" if code == 0 else last_message(log_path, begin, code)


def cannot_start(program: str, error: OSError) -> AblationError:
    return AblationError(f"{program}: cannot be started ({error.strerror}); expected the k3 program,"
                         " name it with --k3")


def ending(code: int) -> str:
    return f"ended by signal {-code}" if code < 0 else f"ended with code {code}"


def last_message(log_path: str, begin: int, code: int) -> str:
    """What k3 said last from `begin` on, which is why it ended, or how it ended without a word."""
    if code < 0:
        return ending(code)
    with open(log_path, "rb") as stream:
        stream.seek(begin)
        text = stream.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.startswith("k3: ")]
    return lines[-1].removeprefix("k3: ") if lines else ending(code)


def count_parameters(run: Run) -> int:
    """From the model's configuration alone."""
    write_json(run.path("model.json"), run.config["model"])
    return inspect_parameters(run, run.path("model.json"))


def inspect_parameters(run: Run, model: str) -> int:
    """By k3 inspect, whose message is the failure's."""
    k3 = run.settings.k3
    try:
        found = subprocess.run([k3, "inspect", model, "--json"], capture_output=True, text=True,
                               errors="replace", check=False)
    except OSError as error:
        raise cannot_start(k3, error) from error
    if found.returncode != 0:
        words = found.stderr.strip() or f"{k3} inspect {model} {ending(found.returncode)}, no message"
        raise AblationError(f"{run.name}: {words}")
    try:
        parameters = json.loads(found.stdout)["total"]["parameters"]
    except (ValueError, KeyError, TypeError, RecursionError):
        parameters = None
    if not ablation_files.is_count(parameters):
        raise AblationError(f"{run.name}: {k3} inspect {model}: expected JSON with total.parameters,"
                            f" found {found.stdout[:60]!r}; name the k3 program with --k3")
    return parameters


def evaluate(run: Run) -> str:
    """k3 eval of the exported weights on what the run held out; a message when that fails."""
    validation = run.config["validation"]
    context = validation.get("context", run.config["sequence_length"])
    command = [run.settings.k3, "eval", run.dir, "--text", os.path.join(run.dir, "validation.txt"),
               "--context", str(context), "--max-tokens", str(validation["tokens"]), "--json",
               "--threads", str(run.settings.threads)]
    partial = run.path("eval.partial")
    failure = run_process(command, partial, run.path("log"))
    if failure:
        return f"k3 eval: {failure}"
    try:
        ablation_files.read_object(partial, "it is what k3 eval answered")
    except AblationError as error:
        return f"k3 eval: {error}"
    os.replace(partial, run.path("eval.json"))
    return ""


def train_command(run: Run) -> list[str]:
    command = [run.settings.k3, "train", run.path("config.json"), "--out", run.dir,
               "--threads", str(run.settings.threads)]
    if run.row.start is not None:
        command += ["--from", os.path.join(run.settings.work,
                                           ablation_report.run_name(run.row.start, run.seed))]
    return command + (["--resume"] if os.path.isdir(run.dir) else [])


def steps_done(run: Run) -> int:
    return ablation_files.last_step(os.path.join(run.dir, "metrics.jsonl"))


def train(run: Run) -> None:
    """One run to its end; what came of it goes to its state file."""
    parameters = count_parameters(run)
    write_json(run.path("config.json"), run.config)
    run.save_state("running", parameters=parameters)
    print(f"{run.name}: {run.config['steps']} steps, {parameters:,} parameters", flush=True)
    try:
        message = run_process(train_command(run), run.path("out"), run.path("log"))
        done = steps_done(run)
        if message:
            state = "failed"
        elif done < run.config["steps"]:
            message, state = f"interrupted after step {done}", "interrupted"
        else:
            message = evaluate(run) if run.row.evaluated else ""
            state = "failed" if message else "finished"
    except KeyboardInterrupt:
        run.save_state("interrupted", "interrupted", parameters=parameters)
        raise
    run.save_state(state, message, parameters=parameters)
    print(f"{run.name}: {state}{': ' + message if message else ''}", flush=True)


def known_result(run: Run, advice: str) -> bool | None:
    """Whether the run finished before, or None when it has yet to run."""
    state = run.state()
    if not state:
        return None
    if state["steps"] != run.config["steps"]:
        # What failed before its first step says nothing of a run with other steps.
        if state["state"] == "finished" or steps_done(run) > 0:
            raise AblationError(f"{run.dir}: {state['state']} with {state['steps']} steps, and the"
                                f" configuration has {run.config['steps']}; give {advice}")
        return None
    if state["state"] == "finished":
        print(f"{run.name}: finished before")
        return True
    if state["state"] == "failed" and not run.settings.retry:
        print(f"{run.name}: failed before: {state.get('message', '')} (--retry tries again)")
        return False
    return None


def ensure(settings: Settings, row: Row, seed: int) -> bool:
    """Whether the run is finished, now or before; what it starts from comes first."""
    run = Run(settings, row, seed)
    known = known_result(run, "the same --steps or another --work")
    if known is not None:
        return known
    if row.start is not None and not ensure(settings, ablation_rows.row_named(row.start), seed):
        run.save_state("failed", f"{row.start} of seed {seed}, from which it starts, did not finish")
        return False
    train(run)
    return run.state()["state"] == "finished"


def check_program(k3: str) -> None:
    if not os.path.exists(k3):
        raise AblationError(f"{k3}: not there; build it with `make`, or name it with --k3")
    if not os.path.isfile(k3):
        found = "a directory" if os.path.isdir(k3) else "a special file"
        raise AblationError(f"{k3}: expected the k3 program, found {found}; name it with --k3")
    if not os.access(k3, os.X_OK):
        raise AblationError(f"{k3}: expected the k3 program, found a file that is not executable;"
                            " name it with --k3")


def run_rows(settings: Settings, names: list[str], seeds: list[int]) -> int:
    rows = (list(ablation_rows.ROWS) if "all" in names
            else [ablation_rows.row_named(name) for name in names])
    check_program(settings.k3)
    ablation_rows.check_corpus(Run(settings, rows[0], seeds[0]).config["text"])
    ablation_files.make_directory(settings.work, "--work")
    results = [ensure(settings, row, seed) for seed in seeds for row in rows]
    return 0 if all(results) else 1


def list_rows() -> int:
    for row in ablation_rows.ROWS:
        changes = ", ".join(f"{path.removeprefix(ablation_rows.TEXT)} = {json.dumps(value)}"
                            for path, value in row.changes.items()) or "configs/ablation.json"
        start = f"from {row.start}: " if row.start else ""
        print(f"{row.name:<20} {start}{changes}")
    return 0


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """What argparse turns a word into; the words of a refusal."""
    def parse(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, found"
                                             f" {word}")
        return value
    return parse


def add_run_options(run: argparse.ArgumentParser) -> None:
    """Those that both programs have."""
    run.add_argument("names", nargs="+", metavar="NAME", help="rows, or all")
    run.add_argument("--k3", default=DEFAULT_K3, help="the program; build/release/k3")
    run.add_argument("--threads", type=whole_number(0, THREADS_MAX), default=1,
                     help="of k3; 1, and 0 takes every core")
    run.add_argument("--retry", action="store_true", help="what failed is tried again")


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains and reports what docs/ablations.md compares.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the rows and what each changes")
    run = commands.add_parser("run", help="train rows, both seeds unless one is named")
    add_run_options(run)
    run.add_argument("--seed", type=whole_number(0, SEED_MAX), action="append",
                     help="this seed alone; may be repeated")
    run.add_argument("--corpus", help="the directory of the texts, in place of corpus")
    report = commands.add_parser("report", help="write docs/ablations/ and the page's tables")
    report.add_argument("--docs", default=os.path.join(ablation_rows.ROOT, "docs"),
                        help="the directory of ablations.md")
    for command in (run, report):
        command.add_argument("--steps", type=whole_number(1, STEPS_MAX),
                             help="of every run, in place of the configuration's")
        command.add_argument("--work", default=DEFAULT_WORK,
                             help="the directory of the runs; build/ablations")
    return parser.parse_args(words)


def interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def run_command(program: str, command: Callable[[], int]) -> int:
    """The program's exit code; what stops it is said in a line."""
    try:
        return command()
    except AblationError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{program}: {where}{error.strerror or error}; make room or name another directory",
              file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: interrupted; the same command goes on", file=sys.stderr)
        return 130


def run_arguments(arguments: argparse.Namespace) -> int:
    if arguments.command == "list":
        return list_rows()
    ablation_files.check_directory(arguments.work, "--work")
    if arguments.command == "report":
        return ablation_report.write_report(arguments.work, arguments.docs, arguments.steps)
    signal.signal(signal.SIGTERM, interrupt)
    settings = Settings(os.path.abspath(arguments.k3), os.path.abspath(arguments.work),
                        arguments.threads, arguments.steps, arguments.corpus, arguments.retry)
    return run_rows(settings, arguments.names, arguments.seed or list(ablation_rows.SEEDS))


def main(words: list[str] | None = None) -> int:
    arguments = parse_arguments(words)
    return run_command("ablations", lambda: run_arguments(arguments))


if __name__ == "__main__":
    sys.exit(main())
