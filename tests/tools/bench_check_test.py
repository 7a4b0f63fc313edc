"""tools/bench_check.py with a program that answers as Google Benchmark does."""

import json
import os
import subprocess
import sys
import unittest

import script_test
from script_test import ROOT, TIMEOUT_S, ScriptTest

import bench_check

# Answers each call with the next list of times; stays with the last. The filter is obeyed.
FAKE = """#!{python}
import json, os, re, sys
state, plan = {state!r}, {plan!r}
count = int(open(state).read()) if os.path.exists(state) else 0
open(state, "w").write(str(count + 1))
pattern = re.compile(next(a for a in sys.argv if a.startswith("--benchmark_filter="))[19:])
times = plan[min(count, len(plan) - 1)]
runs = [dict(name=n, run_name=n, run_type="iteration", cpu_time=t, time_unit="ns")
        for n, t in times.items() if pattern.search(n)]
print(json.dumps(dict(benchmarks=runs)))
"""


class BenchCheckTest(ScriptTest):
    def fake(self, plan):
        path = self.write("fake_bench", FAKE.format(
            python=sys.executable, state=self.path("calls"), plan=plan))
        subprocess.run(["chmod", "+x", path], check=True)
        return path

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, ROOT + "/tools/bench_check.py", *arguments],
                              capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    def check(self, baseline, plan, *options):
        path = self.write("baseline.json", json.dumps({"times_ns": baseline}))
        return self.run_script("check", path, "--bench", self.fake(plan), *options)

    def test_saved_and_unchanged_is_no_regression(self):
        bench = self.fake([{"a/1": 100.0, "b": 50.0}])
        self.assertEqual(self.run_script("save", self.path("base"), "--bench", bench).returncode, 0)
        done = self.run_script("check", self.path("base"), "--bench", bench)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1.00", done.stdout)

    def test_what_stays_slow_is_a_regression(self):
        done = self.check({"a": 100.0, "b": 50.0}, [{"a": 120.0, "b": 50.0}])
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"a +100.0 +120.0 +1.20  slower")
        self.assertNotRegex(done.stdout, r"b .*slower")
        self.assertEqual(self.read("calls"), "4")  # the first run and three more

    def test_one_slow_run_is_none(self):
        done = self.check({"a": 100.0}, [{"a": 200.0}, {"a": 104.0}])
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.read("calls"), "2")

    def test_reruns_take_only_what_was_slow_with_names_taken_literally(self):
        self.assertEqual(bench_check.only(["a/b:1", "c+"]), r"^(a/b:1|c\+)$")

    def test_the_tolerance_is_a_bound(self):
        self.assertEqual(bench_check.find_slow({"a": 100.0}, {"a": 110.0}, 0.1), [])
        self.assertEqual(bench_check.find_slow({"a": 100.0}, {"a": 110.2}, 0.1), ["a"])

    def test_bad_input_is_named(self):
        good = self.fake([{"a": 1.0}])
        for content, expected in (("{", "not a baseline"), ("{}", "not a baseline"),
                                  ('{"times_ns": {"z": 1}}', "none of the benchmarks")):
            path = self.write("bad.json", content)
            done = self.run_script("check", path, "--bench", good)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(expected, done.stderr)
        done = self.run_script("check", self.path("missing"), "--bench", good)
        self.assertIn("No such file", done.stderr)
        done = self.run_script("save", self.path("x"), "--bench", self.path("no_program"))
        self.assertIn("K3_BUILD_BENCH", done.stderr)
        done = self.run_script("save", self.path("x"), "--bench", good, "--filter", "nothing")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no benchmark ran", done.stderr)

    def refused(self, done, *expected):
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertNotIn("Traceback", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for words in expected:
            self.assertIn(words, done.stderr)

    def test_only_a_regular_file_is_replaced(self):
        good = self.fake([{"a": 1.0}])
        os.makedirs(self.path("folder"))
        os.mkfifo(self.path("fifo"))
        os.symlink(self.write("file", "text"), self.path("link"))
        os.symlink(self.path("nowhere"), self.path("dangling"))
        before = sorted(os.listdir(self.scratch))
        kinds = {name: os.lstat(self.path(name)).st_mode for name in before}
        for name in ("folder", "fifo", "link", "dangling"):
            self.refused(self.run_script("save", self.path(name), "--bench", good),
                         self.path(name), "expected a regular file")
        self.refused(self.run_script("save", self.path("file", "x"), "--bench", good),
                     self.path("file", "x"), "Not a directory")
        self.assertEqual(sorted({*os.listdir(self.scratch)} - {"calls"}), before)
        self.assertEqual({name: os.lstat(self.path(name)).st_mode for name in before}, kinds)
        self.assertEqual(self.read("file"), "text")
        self.assertEqual(self.run_script("save", self.path("file"), "--bench", good).returncode, 0)
        self.assertEqual(json.loads(self.read("file")), {"times_ns": {"a": 1.0}})

    def test_times_that_nothing_compares_with_are_refused(self):
        good = self.fake([{"a": 1.0}])
        for time in ("0", "-1", "NaN", "Infinity", "1e999", '"5"', "null", "true"):
            path = self.write("bad.json", '{"times_ns": {"a": %s}}' % time)
            self.refused(self.run_script("check", path, "--bench", good), path, ": a: expected a")
        with open(path, "wb") as stream:
            stream.write(b"\xff")
        self.refused(self.run_script("check", path, "--bench", good), path, "not a baseline")
        self.refused(self.run_script("check", self.scratch, "--bench", good), "Is a directory")

    def test_answers_that_are_none_are_refused(self):
        entry = {"name": "a", "cpu_time": 1.0, "time_unit": "ns"}
        for answer, expected in (
                ('{"benchmarks": [1]}', "benchmark 1: expected an object with a name"),
                ('{"benchmarks": {}}', "is no list"), ("[]", "not a benchmark's JSON"),
                ("\\0377", "not a benchmark's JSON"),
                ('{"benchmarks": [{"name": "a", "cpu_time": Infinity, "time_unit": "ns"}]}',
                 "a: expected a finite time"),
                (json.dumps({"benchmarks": [{**entry, "cpu_time": "x"}]}), "a: expected a time"),
                (json.dumps({"benchmarks": [{**entry, "time_unit": "us"}]}), "found us"),
                (json.dumps({"benchmarks": [{**entry, "error_occurred": True,
                                             "error_message": "no luck"}]}), "a failed: no luck")):
            bench = self.write("bench", f"#!/bin/sh\nprintf '%b' '{answer}'\n")
            os.chmod(bench, 0o755)
            base = self.write("base.json", '{"times_ns": {"a": 1}}')
            for done in (self.run_script("save", self.path("saved"), "--bench", bench),
                         self.run_script("check", base, "--bench", bench)):
                self.refused(done, bench, expected)
            self.assertFalse(os.path.exists(self.path("saved")))
        self.refused(self.run_script("save", self.path("saved"), "--bench", self.scratch),
                     "found a directory")


if __name__ == "__main__":
    unittest.main()
