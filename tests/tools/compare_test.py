#!/usr/bin/env python3
"""Tests of bench/compare: compare_test.py

The report is checked on recorded runs. Whole comparisons run with programs that stand in for k3,
npm, the compiler and the driver, so that neither a network nor llama.cpp is needed; the settings,
the order and what remains are checked on what they were asked.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import time
import unittest

from script_test import ROOT, TIMEOUT_S, ScriptTest

sys.path.insert(0, os.path.join(ROOT, "bench"))

import compare_report  # noqa: E402
from compare_report import CASES, FIGURES, CompareError  # noqa: E402

SCRIPT = os.path.join(ROOT, "bench", "compare")

# Ours is twice as fast and takes half; llama.cpp is faster with flash attention on, but not at
# depth, and starts faster and smaller without repacked weights. `fail` beside the programs names a command that ends with code 1. The compiler's
# stand-in writes the driver's.
STAND_IN = '''#!{python} -IS
import json, os, shutil, struct, sys
here = {here!r}
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
name = "driver" if name.startswith("llama_driver") else name
with open(os.path.join(here, "calls"), "a") as stream:
    stream.write(" ".join([name, *arguments]) + "\\n")
def option(name, otherwise=None):
    return arguments[arguments.index(name) + 1] if name in arguments else otherwise
if os.path.exists(os.path.join(here, "hang")) and arguments[0] == "bench":
    with open(os.path.join(here, "hanging"), "w") as stream:
        stream.write(str(os.getpid()))
    import time
    time.sleep(60)
fail = os.path.join(here, "fail")
if os.path.exists(fail) and open(fail).read() == arguments[0]:
    sys.exit("no luck with " + arguments[0])
if name == "npm":
    package = os.path.join("node_modules", "@node-llama-cpp", "linux-x64")
    bins = os.path.join(package, "bins", "linux-x64")
    os.makedirs(bins)
    for library in ("libllama.v1.so", "libllama-common.so", "libggml.v1.so", "libggml-base.so"):
        open(os.path.join(bins, library), "w").close()
    wanted = json.load(open("package.json"))["dependencies"]["@node-llama-cpp/linux-x64"]
    with open(os.path.join(package, "package.json"), "w") as stream:
        json.dump({{"version": wanted}}, stream)
elif name == "cxx":
    shutil.copy(sys.argv[0], option("-o"))
elif arguments[0] == "export-gguf":
    open(arguments[2], "w").close()
elif arguments[0] == "deepen":
    open(option("--state"), "w").write(option("--flash"))
    print(json.dumps({{"prefill_tok_s": 100.0}}))
elif arguments[0] == "logits":
    count = len(option("--tokens").split(","))
    rows = [[9.0, 9.0]] * (count - 1) + [[3.0, 4.5]] if name == "k3" else [[3.0, 4.0]]
    with open(option("--out"), "wb") as stream:
        for row in rows:
            stream.write(struct.pack("<2f", *row))
else:
    if option("--state"):
        assert open(option("--state")).read() == option("--flash")
    slow = (option("--flash") == "off") != (int(option("--depth", "0")) > 0)
    repack = option("--repack") == "on"
    speed = 40.0 if name == "k3" else (10.0 if slow else 20.0) - (0 if repack else 1)
    repeats = [speed] if name == "k3" else None
    print(json.dumps({{"prefill_tok_s": repeats[0] if repeats else [1.0, speed, speed + 3],
                      "decode_tok_s": repeats[0] if repeats else [1.0, speed, speed + 3],
                      "first_token_ms": 50.0 if name == "k3" else 300.0 if repack else 100.0,
                      "peak_rss_bytes": 1000000 if name == "k3" else 3000000 if repack
                                        else 2000000}}))
'''


def recorded(*, rounds, ours, theirs):
    """Runs of every case; `ours` and `theirs` give a round's value of every figure."""
    return [{"round": index, "case": case.name, "engine": engine, "first": engine == "ours",
             "prefill_tok_s": value(index), "decode_tok_s": value(index),
             "first_token_ms": value(index), "peak_rss_bytes": value(index)}
            for index in range(rounds) for case in CASES
            for engine, value in (("ours", ours), ("theirs", theirs))]


class ReportTest(unittest.TestCase):
    AGREEMENT = {"logits_rel_err": 7e-3, "logits_rel_err_f32": None}

    def build(self, runs):
        return compare_report.build({"threads": 2}, self.AGREEMENT, runs)

    def test_ratios_are_of_medians_and_rounds_are_paired(self):
        ours, theirs = [10.0, 90.0, 20.0], [5.0, 30.0, 8.0]
        report = self.build(recorded(rounds=3, ours=ours.__getitem__, theirs=theirs.__getitem__))
        for name in ("prefill_512", "prefill_2048", "decode", "decode_4096", "decode_16384",
                     "first_token", "memory"):
            self.assertEqual(report[f"ratio_{name}"], 20.0 / 8.0)
            found = report["figures"][name]
            self.assertEqual((found["ours"], found["theirs"]), (20.0, 8.0))
            self.assertEqual((found["ratio_min"], found["ratio_max"]), (2.0, 3.0))
        self.assertEqual(report["logits_rel_err"], 7e-3)
        self.assertEqual(len(report["runs"]), 3 * len(CASES) * 2)

    def test_an_even_number_of_rounds_takes_the_middle(self):
        report = self.build(recorded(rounds=2, ours=[1.0, 3.0].__getitem__,
                                     theirs=[4.0, 4.0].__getitem__))
        self.assertEqual(report["ratio_decode"], 0.5)

    def test_what_was_left_out_is_null_and_said(self):
        runs = [run for run in recorded(rounds=1, ours=lambda _: 2.0, theirs=lambda _: 1.0)
                if not run["case"].startswith("depth")]
        report = self.build(runs)
        self.assertIsNone(report["ratio_decode_4096"])
        self.assertIsNone(report["ratio_decode_16384"])
        self.assertEqual(report["ratio_decode"], 2.0)
        table = compare_report.format_table(report)
        self.assertRegex(table, r"decode at depth 4096 \[tokens/s\] +left out\n")
        self.assertRegex(table, r"logits differ by, all in float32 +left out\n")
        self.assertRegex(table, r"decode \[tokens/s\] +2.0 +1.0 +2.00  \(2.00, 2.00\)\n")

    def test_each_figure_reads_its_own_field_and_case(self):
        runs = [{"round": 0, "case": case.name, "engine": engine,
                 **{field: 1.0 + 10 * place + step + (100 if engine == "ours" else 0)
                    for step, field in enumerate(("prefill_tok_s", "decode_tok_s",
                                                  "first_token_ms", "peak_rss_bytes"))}}
                for place, case in enumerate(CASES) for engine in ("ours", "theirs")]
        found = self.build(runs)["figures"]
        self.assertEqual([found[figure.name]["theirs"] for figure in FIGURES],
                         [1.0, 21.0, 2.0, 32.0, 42.0, 13.0, 14.0])

    def test_a_round_of_one_engine_alone_is_refused(self):
        runs = recorded(rounds=2, ours=lambda _: 2.0, theirs=lambda _: 1.0)
        with self.assertRaisesRegex(CompareError, "both engines in every round"):
            self.build(runs[:-1])

    def test_numbers_that_no_run_can_give_are_refused(self):
        for value in (0.0, -1.0, float("nan"), float("inf")):
            with self.assertRaisesRegex(CompareError, "expected a number above 0"):
                self.build(recorded(rounds=1, ours=lambda _, v=value: v, theirs=lambda _: 1.0))

    def test_relative_error(self):
        error = compare_report.relative_error(struct.pack("<2f", 3.0, 4.5),
                                              struct.pack("<2f", 3.0, 4.0))
        self.assertAlmostEqual(error, 0.1, places=12)

    def test_logits_that_cannot_be_compared_are_refused(self):
        good = struct.pack("<2f", 1.0, 2.0)
        for ours, theirs in ((good, good[:4]), (b"", b""), (good[:3], good[:3]),
                             (good, bytes(8)), (struct.pack("<2f", 1.0, float("nan")), good)):
            with self.assertRaisesRegex(CompareError, "logits: expected"):
                compare_report.relative_error(ours, theirs)


class ScriptRunTest(ScriptTest):
    def setUp(self):
        super().setUp()
        text = STAND_IN.format(python=sys.executable, here=self.path("."))
        for name in ("bin/k3", "bin/npm", "bin/cxx"):
            os.chmod(self.write(name, text), 0o755)
        self.write_config(1 << 20)
        self.write("model/model.safetensors", "small")

    def write_config(self, context):
        self.write("model/config.json", json.dumps(
            {"text_config": {"vocab_size": 100, "max_position_embeddings": context}}))

    def command(self, *arguments, model="model"):
        environment = {**os.environ, "CXX": self.path("bin/cxx"), "PATH":
                       self.path("bin") + os.pathsep + os.environ["PATH"]}
        return {"args": [sys.executable, SCRIPT, self.path(model), "--work", self.path("work"),
                         "--k3", self.path("bin/k3"), *arguments],
                "env": environment, "text": True}

    def run_script(self, *arguments, model="model"):
        return subprocess.run(**self.command(*arguments, model=model), capture_output=True,
                              timeout=TIMEOUT_S)

    def report(self, *arguments):
        done = self.run_script("--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def calls(self, *starts):
        return [line for line in self.read("calls").splitlines() if line.startswith(starts)]

    def test_a_whole_comparison(self):
        report = self.report("--threads", "3", "--repeats", "2")
        for name in ("prefill_512", "prefill_2048", "decode", "decode_4096", "decode_16384"):
            self.assertEqual(report[f"ratio_{name}"], 2.0, name)
        self.assertEqual(report["ratio_first_token"], 0.5)
        self.assertEqual(report["ratio_memory"], 0.5)
        self.assertAlmostEqual(report["logits_rel_err"], 0.1)
        self.assertAlmostEqual(report["logits_rel_err_f32"], 0.1)
        self.assertEqual({case: (found["flash"], found["repack"])
                          for case, found in report["llama_settings"].items()},
                         {"short": ("on", "on"), "start": ("on", "off"), "long": ("on", "on"),
                          "depth-4096": ("off", "on"), "depth-16384": ("off", "on")})
        self.assertEqual(len(report["llama_trials"]), 4 * (len(CASES) - 1) - 2)
        self.assertEqual([call.split("--flash ")[1] for call in self.calls("driver deepen")],
                         ["on", "off", "off"])
        self.assertEqual((report["threads"], report["rounds"]), (3, 2))
        for call in self.calls("k3 bench", "k3 logits", "driver"):
            self.assertIn("--threads 3", call)

    def test_the_engines_take_turns(self):
        report = self.report("--repeats", "4", "--quick")
        order = [(run["round"], run["case"], run["engine"], run["first"])
                 for run in report["runs"]]
        for index in range(4):
            for place, case in enumerate(("short", "start", "long")):
                engines = ("ours", "theirs") if (index + place) % 2 == 0 else ("theirs", "ours")
                at = 6 * index + 2 * place
                self.assertEqual(order[at:at + 2], [(index, case, engines[0], True),
                                                    (index, case, engines[1], False)])
        # The four trials of two cases come before.
        runs = ["ours" if call.startswith("k3") else "theirs"
                for call in self.calls("k3 bench", "driver speed")[8:]]
        self.assertEqual(runs, [run["engine"] for run in report["runs"]])

    def test_quick_leaves_the_depths_out(self):
        report = self.report("--repeats", "1", "--quick")
        self.assertIsNone(report["ratio_decode_4096"])
        self.assertIsNone(report["ratio_decode_16384"])
        self.assertEqual(report["ratio_decode"], 2.0)
        self.assertFalse(self.calls("driver deepen"))

    def test_cases_beyond_the_context_are_left_out(self):
        self.write_config(4200)
        report = self.report("--repeats", "1")
        self.assertEqual(report["ratio_decode_4096"], 2.0)
        self.assertIsNone(report["ratio_decode_16384"])

    def test_float32_only_for_small_models(self):
        with open(self.path("model/model.safetensors"), "ab") as stream:
            stream.truncate(200 << 20)
        self.assertIsNone(self.report("--repeats", "1", "--quick")["logits_rel_err_f32"])
        self.assertEqual(len(self.calls("k3 export-gguf")), 1)

    def test_installed_once_and_scratch_files_go(self):
        for _ in range(2):
            self.report("--repeats", "1", "--quick")
        self.assertEqual(len(self.calls("npm ci")), 1)
        self.assertEqual(len(self.calls("cxx")), 1)
        self.assertFalse([name for name in os.listdir(self.path("work")) if "run-" in name])

    def test_the_table(self):
        done = self.run_script("--repeats", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"memory at the peak \[MB\] +1.0 +2.0 +0.50 ")
        self.assertRegex(done.stdout, r"decode at depth 16384 \[tokens/s\] +40.0 +20.0 +2.00 ")
        self.assertRegex(done.stdout, r"logits differ by, as measured +1.0e-01\n")

    def assert_refused(self, done, message, code=2):
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(message, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_bad_input_is_refused(self):
        self.assert_refused(self.run_script(model="nowhere"), "expected a checkpoint's config.json")
        self.assert_refused(self.run_script("--k3", self.path("none")), "build it with `make`")
        for option in (["--threads", "0"], ["--repeats", "0"], ["--threads", "x"], ["--what"]):
            self.assert_refused(self.run_script(*option), option[0].lstrip("-"))
        self.write("model/config.json", "[]")
        self.assert_refused(self.run_script(), "expected a checkpoint's config.json")
        self.write_config(500)
        self.assert_refused(self.run_script(), "context of at least 576 tokens, found 500")

        for vocab in ("0", "Infinity"):
            self.write("model/config.json",
                       '{"vocab_size": %s, "max_position_embeddings": 600}' % vocab)
            self.assert_refused(self.run_script(), "expected a checkpoint's config.json")

    def test_programs_and_directories_are_looked_at_first(self):
        self.write("file", "")
        for option, value, expected in (
                ("--k3", self.path("model"), "found a directory"),
                ("--k3", self.path("file"), "not executable"),
                ("--work", self.path("file"), "expected a directory"),
                ("--work", self.path("file", "below"), "cannot be made (Not a directory)"),
                ("--work", "", "--work: expected a directory, found an empty name")):
            done = self.run_script(option, value)
            self.assert_refused(done, f"compare: {value}")
            self.assertIn(expected, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertFalse(os.path.exists(self.path("calls")))
            self.assertFalse(os.path.exists(self.path("work")))

    def test_a_work_that_npm_cannot_use_is_said(self):
        os.makedirs(self.path("work", "package-lock.json", "package-lock.json"))
        self.assert_refused(self.run_script(), "package-lock.json: Is a directory", code=1)

    def test_scratch_files_and_programs_go_when_it_is_ended(self):
        self.write("hang", "")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with subprocess.Popen(**self.command("--repeats", "1"), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE) as process:
                end = time.monotonic() + TIMEOUT_S
                while not (os.path.exists(self.path("hanging")) and self.read("hanging")):
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.02)
                self.assertTrue([name for name in os.listdir(self.path("work")) if "run-" in name])
                process.send_signal(number)
                _, errors = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 128 + number, errors)
            self.assertNotIn("Traceback", errors)
            self.assertFalse([name for name in os.listdir(self.path("work")) if "run-" in name])
            with self.assertRaises(ProcessLookupError):
                os.kill(int(self.read("hanging")), 0)
            os.remove(self.path("hanging"))

    def test_a_failure_says_who_and_why(self):
        for command, who in (("ci", "installing llama.cpp"), ("-std=c++20", "compiling the driver"),
                             ("export-gguf", "export to GGUF"), ("bench", "k3, case short"),
                             ("deepen", "llama.cpp to depth 4096"), ("logits", "k3 logits"),
                             ("speed", "llama.cpp, case short")):
            self.write("fail", command)
            done = self.run_script("--repeats", "1")
            self.assert_refused(done, f"compare: {who}: ", code=1)
            self.assertIn(f"no luck with {command}", done.stderr)
            self.assertFalse([name for name in os.listdir(self.path("work")) if "run-" in name])


if __name__ == "__main__":
    unittest.main()
