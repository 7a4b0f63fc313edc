#!/usr/bin/env python3
"""Compares the kernels' speeds with a baseline of the same machine.

    tools/bench_check.py save BASELINE [--bench PROGRAM] [--filter REGEX]    # before a change
    tools/bench_check.py check BASELINE [--bench PROGRAM] [--filter REGEX]   # after it

Figures of different machines or hours say little about each other, so a baseline belongs to the one
who saved it and stays out of the repository. A benchmark that is slower than the baseline by more
than --tolerance (0.1: a tenth) is run again, up to --reruns times, and counts with its fastest run:
a neighbour on the machine makes a run slower, never faster. Only what stays slow is a regression.
Ends with 0, with 1 for a regression, with 2 for bad input. Python's standard library only.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from typing import Callable

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEFAULT_BENCH = os.path.join(ROOT, "build", "release", "bench", "k3_kernel_bench")

Times = dict[str, float]  # nanoseconds of processor time an iteration, by the benchmark's name


class BenchError(Exception):
    """What stops the program, in words for its user."""


def parse_times(text: str, where: str) -> Times:
    """Google Benchmark's JSON; of several repetitions the fastest."""
    try:
        found: Times = {}
        for run in json.loads(text)["benchmarks"]:
            if run.get("run_type", "iteration") != "iteration":
                continue
            if run["time_unit"] != "ns":
                raise BenchError(f"{where}: {run['name']}: expected nanoseconds, found "
                                 f"{run['time_unit']}")
            name = run.get("run_name", run["name"])
            time = float(run["cpu_time"])
            if not time > 0:
                raise BenchError(f"{where}: {name}: expected a time above 0, found {time}")
            found[name] = min(time, found.get(name, time))
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{where}: not a benchmark's JSON ({type(error).__name__}: {error})")
    if not found:
        raise BenchError(f"{where}: no benchmark ran; expected at least one that the filter names")
    return found


def run_bench(program: str, pattern: str) -> Times:
    command = [program, f"--benchmark_filter={pattern}", "--benchmark_format=json",
               "--benchmark_repetitions=3"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BenchError(f"{program}: {error.strerror}; build it with cmake -DK3_BUILD_BENCH=ON "
                         "and ninja k3_kernel_bench, or name another with --bench")
    if done.returncode != 0:
        raise BenchError(f"{program}: ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return parse_times(done.stdout, program)


def only(names: list[str]) -> str:
    return "^(" + "|".join(re.escape(name) for name in names) + ")$"


def find_slow(baseline: Times, times: Times, tolerance: float) -> list[str]:
    return [name for name, time in times.items()
            if name in baseline and time > baseline[name] * (1 + tolerance)]


def settle(baseline: Times, times: Times, tolerance: float, reruns: int,
           again: Callable[[list[str]], Times]) -> list[str]:
    """Reruns what is slow, keeps the fastest of each in `times`, returns what stayed slow."""
    for _ in range(reruns):
        slow = find_slow(baseline, times, tolerance)
        if not slow:
            break
        for name, time in again(slow).items():
            times[name] = min(time, times.get(name, time))
    return find_slow(baseline, times, tolerance)


def load(path: str) -> Times:
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
        return {str(name): float(time) for name, time in found["times_ns"].items()}
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; make it with {sys.argv[0]} save {path}")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BenchError(f"{path}: not a baseline; expected what `save` writes")


def save(path: str, times: Times) -> None:
    try:
        with open(path + ".tmp", "w", encoding="utf-8") as stream:
            json.dump({"times_ns": times}, stream, indent=1, sort_keys=True)
            stream.write("\n")
        os.replace(path + ".tmp", path)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; name a file that can be written")


def report(baseline: Times, times: Times, slow: list[str]) -> None:
    print(f"{'benchmark':<52} {'before ns':>12} {'now ns':>12} {'ratio':>6}")
    for name, time in times.items():
        if name in baseline:
            mark = "  slower" if name in slow else ""
            print(f"{name:<52} {baseline[name]:>12.1f} {time:>12.1f} "
                  f"{time / baseline[name]:>6.2f}{mark}")
    for name in sorted(set(times) - set(baseline)):
        print(f"{name:<52} not in the baseline")


def check(arguments: argparse.Namespace) -> int:
    baseline = load(arguments.baseline)
    times = run_bench(arguments.bench, arguments.filter)
    slow = settle(baseline, times, arguments.tolerance, arguments.reruns,
                  lambda names: run_bench(arguments.bench, only(names)))
    report(baseline, times, slow)
    if not set(times) & set(baseline):
        raise BenchError(f"{arguments.baseline}: has none of the benchmarks that ran")
    return 1 if slow else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares kernels' speeds with a baseline.")
    parser.add_argument("action", choices=("save", "check"))
    parser.add_argument("baseline", help="the file with the baseline")
    parser.add_argument("--bench", default=DEFAULT_BENCH, help="the program; k3_kernel_bench")
    parser.add_argument("--filter", default=".", help="a regular expression on names; all")
    parser.add_argument("--tolerance", type=float, default=0.1,
                        help="how much slower is slow; 0.1, a tenth")
    parser.add_argument("--reruns", type=int, default=3, help="before it is a regression; 3")
    arguments = parser.parse_args()
    if not 0 < arguments.tolerance < 10 or arguments.reruns < 0:
        parser.error("expected a --tolerance above 0 and below 10 and --reruns of 0 or more")
    try:
        if arguments.action == "save":
            save(arguments.baseline, run_bench(arguments.bench, arguments.filter))
            return 0
        return check(arguments)
    except BenchError as error:
        print(f"bench_check: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
