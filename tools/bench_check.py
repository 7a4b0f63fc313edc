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
import math
import os
import re
import subprocess
import sys
from typing import Any, Callable

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEFAULT_BENCH = os.path.join(ROOT, "build", "release", "bench", "k3_kernel_bench")

Times = dict[str, float]  # nanoseconds of processor time an iteration, by the benchmark's name


class BenchError(Exception):
    """What stops the program, in words for its user."""


def read_time(value: Any, where: str) -> float:
    """A time that others can be compared with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BenchError(f"{where}: expected a time above 0, found {json.dumps(value)[:40]}")
    if not (math.isfinite(value) and value > 0):
        raise BenchError(f"{where}: expected a finite time above 0, found {value}")
    return float(value)


def parse_times(text: str, where: str) -> Times:
    """Google Benchmark's JSON; of several repetitions the fastest."""
    try:
        runs = json.loads(text)["benchmarks"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BenchError(f"{where}: not a benchmark's JSON ({type(error).__name__}: {error}); name"
                         " another program with --bench") from error
    if not isinstance(runs, list):
        raise BenchError(f"{where}: not a benchmark's JSON (benchmarks is no list); name another"
                         " program with --bench")
    found: Times = {}
    for index, run in enumerate(runs):
        if not isinstance(run, dict) or not isinstance(run.get("run_name", run.get("name")), str):
            raise BenchError(f"{where}: benchmark {index + 1}: expected an object with a name, found "
                             f"{json.dumps(run)[:40]}")
        name = run.get("run_name", run.get("name"))
        if run.get("error_occurred"):
            raise BenchError(f"{where}: {name} failed: {run.get('error_message', 'no message')}; mend "
                             "it or leave it out with --filter")
        if run.get("run_type", "iteration") != "iteration":
            continue
        if run.get("time_unit") != "ns":
            raise BenchError(f"{where}: {name}: expected nanoseconds, found {run.get('time_unit')}")
        time = read_time(run.get("cpu_time"), f"{where}: {name}")
        found[name] = min(time, found.get(name, time))
    if not found:
        raise BenchError(f"{where}: no benchmark ran; expected at least one that the filter names")
    return found


def run_bench(program: str, pattern: str) -> Times:
    command = [program, f"--benchmark_filter={pattern}", "--benchmark_format=json",
               "--benchmark_repetitions=3"]
    advice = ("build it with cmake -DK3_BUILD_BENCH=ON and ninja k3_kernel_bench, or name another "
              "with --bench")
    if os.path.isdir(program):
        raise BenchError(f"{program}: expected a program, found a directory; {advice}")
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise BenchError(f"{program}: {error.strerror}; {advice}") from error
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", errors="replace").strip()[-400:]
        raise BenchError(f"{program}: ended with {done.returncode}: {words or 'no message'}")
    try:
        return parse_times(done.stdout.decode("utf-8"), program)
    except UnicodeDecodeError as error:
        raise BenchError(f"{program}: not a benchmark's JSON ({error}); {advice}") from error


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
    advice = f"make it with {sys.argv[0]} save FILE"
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; {advice}") from error
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{path}: not a baseline ({error}); {advice}") from error
    times = found.get("times_ns") if isinstance(found, dict) else None
    if not isinstance(times, dict):
        raise BenchError(f"{path}: not a baseline; expected what `save` writes; {advice}")
    return {name: read_time(time, f"{path}: not a baseline: {name}") for name, time in times.items()}


def check_target(path: str) -> None:
    """What is there and is no regular file, a device for one, must not be replaced by one."""
    if os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path)):
        raise BenchError(f"{path}: expected a regular file or a new name, found something else; name "
                         "another file")


def save(path: str, times: Times) -> None:
    """Whole or not at all."""
    check_target(path)
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "x", encoding="utf-8") as stream:
            json.dump({"times_ns": times}, stream, indent=1, sort_keys=True)
            stream.write("\n")
        os.replace(partial, path)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; name a file that can be written") from error
    finally:
        if os.path.isfile(partial):
            os.remove(partial)


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
            check_target(arguments.baseline)  # before minutes are spent on it
            save(arguments.baseline, run_bench(arguments.bench, arguments.filter))
            return 0
        return check(arguments)
    except BenchError as error:
        print(f"bench_check: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
