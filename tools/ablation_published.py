"""What a report keeps of the results that were published before: docs/ablations has each run's numbers
beside the plots, and a run that is not in --work is taken from there. Python's standard library only.
"""

import os
import sys
from dataclasses import dataclass, field
from typing import Any, Callable

import ablation_files
from ablation_rows import AblationError

OVER = ("finished", "failed")
RunKey = tuple[str, int]  # a row's name and a seed; 0 where there is none


def load_runs(path: str, fits: Callable[[dict[str, Any]], bool]) -> dict[RunKey, dict[str, Any]]:
    """The runs of a file of results; none where it is not there. `fits` checks what the file's own
    kind has beside a row, a seed, a state and a message."""
    advice = "restore it with `git checkout`, or remove it to begin the page anew"
    found = ablation_files.read_object(path, advice)
    if found is None:
        return {}
    runs = found.get("runs")
    if not isinstance(runs, list):
        raise AblationError(f"{path}: expected a list of runs, found none; {advice}")
    published = {}
    for index, run in enumerate(runs):
        well = (isinstance(run, dict) and isinstance(run.get("row"), str)
                and (run.get("seed") is None or ablation_files.is_count(run["seed"]))
                and run.get("state") in (*ablation_files.STATES, "not run")
                and isinstance(run.get("message"), str)
                and all(run.get(name) is None or ablation_files.is_count(run[name])
                        for name in ("steps", "tokens", "parameters")) and fits(run))
        if not well:
            raise AblationError(f"{path}: run {index + 1} is not one that report writes; {advice}")
        if run["state"] != "not run":
            published[run["row"], run["seed"] or 0] = run
    return published


def takes_place(state: str, published: dict[str, Any] | None) -> bool:
    """Whether a run in --work, which came as far as `state` says, stands on the page: where a result
    was published, only one that came to its end takes its place."""
    if published is None:
        return state != "not run"
    return state in OVER or (state != "not run" and published["state"] not in OVER)


@dataclass
class Notes:
    """What the user is told of the runs that a report is made of."""
    program: str
    kept: list[RunKey] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    replaced: list[RunKey] = field(default_factory=list)  # by failures
    plots: list[str] = field(default_factory=list)

    def say_left_out(self) -> None:
        for text in self.left_out:
            self.line(f"left out: {text}")

    def say(self, work: str) -> None:
        """Once the page is written."""
        self.say_left_out()
        if self.kept:
            self.line(f"kept as published, as no run in {work} takes their place:"
                      f" {name_runs(self.kept)}")
        if self.replaced:
            self.line("published results give way to runs that failed (`run NAME --retry` tries"
                      f" again): {name_runs(self.replaced)}")
        if self.plots:
            self.line("plots kept as published, as the curves of some of their rows are only there:"
                      f" {', '.join(self.plots)}")

    def line(self, text: str) -> None:
        print(f"{self.program}: {text}", file=sys.stderr)


def name_runs(runs: list[RunKey]) -> str:
    """base (seeds 1, 2), nano"""
    seeds: dict[str, list[int]] = {}
    for row, seed in runs:
        seeds.setdefault(row, []).append(seed)
    parts = []
    for row, of_row in seeds.items():
        numbers = ", ".join(map(str, of_row))
        parts.append(row if of_row == [0] else
                     f"{row} (seed{'s' if len(of_row) > 1 else ''} {numbers})")
    return ", ".join(parts)


def refuse_published(path: str, run: dict[str, Any], what: str) -> AblationError:
    seed = "" if run["seed"] is None else f", seed {run['seed']}"
    return AblationError(f"{path}: {run['row']}{seed}: {what}: both cannot stand on one"
                         f" page. Make every row again, or remove {os.path.basename(path)}, or name"
                         " another page with --docs")
