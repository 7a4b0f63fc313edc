#!/usr/bin/env python3
"""Tests of tools/long_context.py: long_context_test.py K3_BINARY

Rows are checked against the real configuration reader and counter. Runs are made with a program
that stands in for k3, and the table, plots and numbers are checked on what it answers.
"""

import contextlib
import copy
import io
import json
import os
import stat
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from unittest import mock

from script_test import ROOT, SVG, TIMEOUT_S, ScriptTest

import ablation_published  # noqa: E402
import ablation_report  # noqa: E402
import ablation_rows  # noqa: E402
import long_context  # noqa: E402
import long_context_report  # noqa: E402
import long_context_rows  # noqa: E402
import svg_plot  # noqa: E402
from long_context_rows import ALL_KDA, ALL_MLA, LENGTHS, ROWS  # noqa: E402

K3 = ""

# Copies right at every length, looks up less the longer the prompt is; has no memory for the
# longest one where the model has KDA alone, unless a file `memory` stands beside it. It cannot
# train all MLA.
STAND_IN = '''#!{python}
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "calls"), "a") as stream:
    stream.write(" ".join(sys.argv[1:]) + "\\n")
def option(name):
    return sys.argv[sys.argv.index(name) + 1]
if sys.argv[1] == "inspect":
    print(json.dumps({{"total": {{"parameters": 3655472}}}}))
elif sys.argv[1] == "eval":
    context, cases = int(option("--context")), int(option("--cases"))
    have_memory = os.path.exists(os.path.join(here, "memory"))
    if context == 32768 and "all-kda" in sys.argv[2] and not have_memory:
        sys.exit("k3: ResourceExhausted: no | memory for " + sys.argv[2])
    scores = {{"copy": {{"right": 1.0, "prompt_tokens": context - 1.5, "wrong_example": "?"}},
              "look-up": {{"right": 512 / context, "prompt_tokens": context - 2.0}}}}
    print(json.dumps({{"cases": cases, "seed": 1, "context": context, "tasks": scores}}))
else:
    config, out = json.load(open(sys.argv[2])), option("--out")
    os.makedirs(out, exist_ok=True)
    if not config["model"]["text_config"]["linear_attn_config"]["kda_layers"]:
        sys.exit("k3: Internal: step 3: expected a finite loss")
    with open(os.path.join(out, "metrics.jsonl"), "w") as stream:
        stream.write(json.dumps({{"step": config["steps"], "val_loss": 1.0}}) + "\\n")
    open(os.path.join(out, "model-000001.safetensors"), "w").close()
'''


def without(config, paths):
    """A copy in which the fields at these dotted paths are gone."""
    config = copy.deepcopy(config)
    for path in paths:
        *parents, last = path.split(".")
        at = config
        for name in parents:
            at = at[name]
        del at[last]
    return config


class RowsTest(ScriptTest):
    def test_rows_differ_from_the_base_as_stated_and_in_nothing_else(self):
        base = long_context_rows.make_config(long_context_rows.row_named("hybrid"), 1)
        for name, changes in (("all-mla", ALL_MLA), ("all-kda", ALL_KDA)):
            config = long_context_rows.make_config(long_context_rows.row_named(name), 1)
            self.assertEqual(without(config, changes), without(base, changes))
            for path in changes:
                self.assertNotEqual(without(config, set(changes) - {path}),
                                    without(base, set(changes) - {path}), path)
        self.assertEqual(set(ALL_MLA), {ablation_rows.KDA + "kda_layers",
                                        ablation_rows.KDA + "full_attn_layers",
                                        ablation_rows.TEXT + "intermediate_size"})
        self.assertEqual(set(ALL_MLA), set(ALL_KDA))
        other = long_context_rows.make_config(long_context_rows.row_named("hybrid"), 2)
        self.assertEqual(without(other, ["seed"]), without(base, ["seed"]))
        self.assertEqual(other["seed"], 2)

    def test_the_model_is_nano_without_quantisation(self):
        with open(os.path.join(ROOT, "configs", "nano-train.json"), encoding="utf-8") as stream:
            nano = json.load(stream)
        config = ablation_rows.load_base(long_context_rows.BASE_CONFIG)
        self.assertEqual(config["model"], without(nano["model"], ["quantization_config"]))
        self.assertEqual(config["tokenizer"], nano["tokenizer"])
        self.assertEqual(config["qat"], {})
        self.assertEqual(set(config["tasks"]["kinds"]), set(long_context_rows.KINDS))
        self.assertNotIn("text", config)

    def test_lengths_are_1_4_16_and_64_times_the_training_length(self):
        trained = ablation_rows.load_base(long_context_rows.BASE_CONFIG)["sequence_length"]
        self.assertEqual([length.context / trained for length in LENGTHS], [1, 4, 16, 64])

    def test_all_have_as_many_parameters(self):
        counts = {}
        for row in ROWS[:3]:
            config = long_context_rows.make_config(row, 1)
            path = self.write("model.json", json.dumps(config["model"]))
            found = subprocess.run([K3, "inspect", path, "--json"], capture_output=True,
                                   timeout=TIMEOUT_S, check=True)
            counts[row.name] = json.loads(found.stdout)["total"]["parameters"]
        for count in counts.values():
            self.assertLess(abs(count / counts["hybrid"] - 1), 0.01, counts)

    def test_k3_accepts_every_row(self):
        # A tokenizer that is not there is what it looks for last.
        for row in ROWS[:3]:
            config = {**long_context_rows.make_config(row, 1), "tokenizer": self.path("nowhere")}
            path = self.write("config.json", json.dumps(config))
            found = subprocess.run([K3, "train", path, "--out", self.path("out")], text=True,
                                   capture_output=True, timeout=TIMEOUT_S, check=False)
            self.assertEqual(found.returncode, 1, row.name)
            self.assertIn("NotFound: " + self.path("nowhere"), found.stderr, row.name)


class RunTest(ScriptTest):
    def setUp(self):
        super().setUp()
        self.k3 = self.write("k3", STAND_IN.format(python=sys.executable))
        os.chmod(self.k3, os.stat(self.k3).st_mode | stat.S_IXUSR)
        self.work = self.path("work")
        nano = mock.patch.object(long_context_rows, "NANO_DIR", self.path("nano"))
        nano.start()
        self.addCleanup(nano.stop)

    def main(self, *words):
        self.errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(self.errors):
            return long_context.main(list(words))

    def run_rows(self, *words):
        return self.main("run", *words, "--k3", self.k3, "--work", self.work)

    def calls(self, command):
        lines = self.read("calls").splitlines() if os.path.exists(self.path("calls")) else []
        return [line for line in lines if line.startswith(command + " ")]

    def report(self):
        self.write("docs/ablations.md",
                   "# Page\n<!-- table:long-context -->\nold\n<!-- end -->\nkept\n")
        self.assertEqual(self.main("report", "--work", self.work, "--docs", self.path("docs")), 0)
        return self.read("docs", "ablations.md")

    def test_what_is_finished_is_not_made_again(self):
        self.assertEqual(self.run_rows("hybrid"), 0)
        self.assertEqual(len(self.calls("train")), 1)
        self.assertIn("eval " + self.path("work", "hybrid-seed1") + " --tasks --kinds copy look-up"
                      " --context 8192 --cases 20 --json --threads 1", self.calls("eval"))
        self.assertEqual(len(self.calls("eval")), len(LENGTHS))
        self.assertEqual(self.run_rows("hybrid"), 0)
        self.assertEqual((len(self.calls("train")), len(self.calls("eval"))), (1, len(LENGTHS)))
        # One measurement that is gone is made, and all are once the weights are newer.
        os.remove(self.path("work", "hybrid-seed1", "context-2048.json"))
        self.assertEqual(self.run_rows("hybrid"), 0)
        self.assertEqual(len(self.calls("eval")), len(LENGTHS) + 1)
        later = os.path.getmtime(self.path("work", "hybrid-seed1", "context-2048.json")) + 100
        os.utime(self.path("work", "hybrid-seed1", "model-000001.safetensors"), (later, later))
        self.assertEqual(self.run_rows("hybrid"), 0)
        self.assertEqual(len(self.calls("eval")), 2 * len(LENGTHS) + 1)

    def test_failures_are_recorded_and_stand_in_the_table(self):
        self.assertEqual(self.run_rows("all", "--seed", "1"), 1)
        self.assertEqual(self.run_rows("all"), 1)
        self.assertEqual(len(self.calls("train")), 3)  # neither failure was tried again
        self.assertEqual(len(self.calls("eval")), 2 * len(LENGTHS))
        page = self.report()
        self.assertNotIn(self.scratch, page)
        self.assertIn("| all KDA | look-up | 1.000 | 0.250 | 0.062 | failed | 3,655,472 |", page)
        self.assertIn("| 32,768 tokens: failed, k3 eval: ResourceExhausted: no \\| memory for"
                      " all-kda-seed1 |", page)
        self.assertIn("| all MLA | copy |" + " not measured |" * 4, page)
        self.assertIn("| failed, Internal: step 3: expected a finite loss |", page)
        self.assertIn("| models/nano | copy |" + " not measured |" * 4 + " – | – | – | not run |",
                      page)
        self.write("memory", "")
        self.assertEqual(self.run_rows("all-kda", "--retry"), 0)
        self.assertEqual(len(self.calls("eval")), 2 * len(LENGTHS) + 1)
        self.assertIn("| all KDA | look-up | 1.000 | 0.250 | 0.062 | 0.016 | 3,655,472 |"
                      " 6,553,600 | 1 | finished | `tools/long_context.py run all-kda` |",
                      self.report())

    def test_nano_is_measured_and_not_trained(self):
        self.assertEqual(self.run_rows("nano"), 2)  # it is not there
        self.write("nano/config.json", "{}")
        self.assertEqual(self.run_rows("nano"), 0)
        self.assertEqual(self.calls("train"), [])
        self.assertEqual(len(self.calls("eval")), len(LENGTHS))
        self.assertTrue(all(self.path("nano") in call for call in self.calls("eval")))
        self.assertIn("| models/nano | copy | 1.000 | 1.000 | 1.000 | 1.000 | 3,655,472 | – | – |"
                      " finished |", self.report())
        self.assertEqual(os.listdir(self.path("nano")), ["config.json"])

    def test_an_answer_without_shares_is_a_failure(self):
        self.write("answer", '{"tasks": {"copy": {"right": 1, "prompt_tokens": 5}}}')
        found = long_context.read_scores(self.path("answer"))
        self.assertIn("KeyError: 'look-up'", found["failed"])
        self.write("answer", '{"tasks": ')
        self.assertIn("failed", long_context.read_scores(self.path("answer")))

    def test_an_unknown_row_and_a_report_of_nothing_are_refused(self):
        self.assertEqual(self.run_rows("all-mamba"), 2)
        self.assertEqual(self.main("report", "--work", self.work, "--docs", self.path("docs")), 2)

    def test_page_numbers_and_plots(self):
        self.assertEqual(self.run_rows("hybrid", "--seed", "1", "--seed", "2"), 0)
        page = self.report()
        header = next(line for line in page.splitlines() if line.startswith("| model"))
        self.assertIn("| 512 tokens, 100 cases | 2,048 tokens, 50 cases | 8,192 tokens, 20 cases"
                      " | 32,768 tokens, 10 cases |", header)
        self.assertEqual(sum("| hybrid |" in line for line in page.splitlines()), 4)
        self.assertTrue("kept" in page and "old" not in page)
        found = json.loads(self.read("docs", "ablations", "long-context.json"))
        self.assertEqual(found["training_length"], 512)
        self.assertEqual(found["runs"][1]["seed"], 2)
        self.assertEqual(found["runs"][0]["results"][1],
                         {"context": 2048, "cases": 50, "state": "finished", "case_seed": 1,
                          "tasks": {"copy": {"right": 1.0, "prompt_tokens": 2046.5},
                                    "look-up": {"right": 0.25, "prompt_tokens": 2046.0}}})
        self.assertEqual(found["runs"][2]["results"][1]["state"], "missing")

        root = ElementTree.fromstring(self.read("docs", "ablations", "long-context-look-up.svg"))
        lines = [node for node in root.iter(SVG + "polyline") if node.get("class") == "mean"]
        self.assertEqual(len(lines), 1)
        points = [tuple(map(float, pair.split(","))) for pair in lines[0].get("points").split()]
        self.assertEqual(len(points), len(LENGTHS))
        steps = [right[0] - left[0] for left, right in zip(points, points[1:])]
        for step in steps:  # four times as long is as far everywhere; prompts are 2 tokens short
            self.assertAlmostEqual(step, steps[0], delta=0.5)
        share = long_context_report.MARGIN / (1 + 2 * long_context_report.MARGIN)
        top = svg_plot.TOP + share * (svg_plot.BOTTOM - svg_plot.TOP)
        self.assertAlmostEqual(points[0][1], top, delta=0.01)  # of a share of 1
        (mark,) = [node for node in root.iter(SVG + "line") if node.get("class") == "reference"]
        self.assertEqual(mark.get("x1"), mark.get("x2"))
        self.assertAlmostEqual(float(mark.get("x1")), points[0][0], delta=1)
        texts = [node.text for node in root.iter(SVG + "text")]
        for expected in ("512", "32,768", "hybrid", "all MLA", "all KDA", "models/nano"):
            self.assertIn(expected, texts)
        ElementTree.fromstring(self.read("docs", "ablations", "long-context-copy.svg"))


    def files(self):
        folder = self.path("docs", "ablations")
        return {"page": self.read("docs", "ablations.md"),
                **{name: self.read(folder, name) for name in os.listdir(folder)}}

    def report_again(self, work):
        return self.main("report", "--work", self.path(work), "--docs", self.path("docs"))

    def test_rows_that_were_not_run_stay_to_the_byte(self):
        self.write("memory", "")
        self.write("nano/config.json", "{}")
        self.assertEqual(self.run_rows("all"), 1)  # all MLA fails
        self.assertEqual(self.run_rows("hybrid", "--seed", "2"), 0)
        self.report()
        before = self.files()
        self.assertEqual(self.main("run", "hybrid", "--k3", self.k3, "--work", self.path("one")), 0)
        self.assertEqual(self.report_again("one"), 0)
        self.assertEqual(self.files(), before)
        self.assertIn("kept as published, as no run in " + self.path("one") + " takes their place:"
                      " hybrid (seed 2), all-mla (seed 1), all-kda (seed 1), nano\n",
                      self.errors.getvalue())
        # One that is not measured to the end does not take the published place; one that is does.
        path = self.path("one", "hybrid-seed1", "context-2048.json")
        changed = self.read(path).replace("0.25", "0.75")
        os.remove(path)
        self.assertEqual(self.report_again("one"), 2)
        self.assertEqual(self.files(), before)
        self.write(path, changed)
        self.assertEqual(self.report_again("one"), 0)
        self.assertIn("| hybrid | look-up | 1.000 | 0.750 |", self.files()["page"])
        self.assertEqual(sum("| hybrid | look-up" in line
                             for line in self.files()["page"].splitlines()), 2)
        self.assertIn("| models/nano | copy | 1.000 |", self.files()["page"])

    def test_runs_of_other_steps_are_left_out(self):
        self.assertEqual(self.run_rows("hybrid", "all-kda"), 1)
        self.report()
        before = self.files()
        state = self.path("work", "hybrid-seed1.state.json")
        self.write(state, json.dumps({**json.loads(self.read(state)), "steps": 4}))
        self.assertEqual(self.report_again("work"), 0)
        self.assertIn("left out: hybrid-seed1 has 4 steps, and the page's runs of it have 3200",
                      self.errors.getvalue())
        self.assertEqual(self.files(), before)
        published = self.path("docs", "ablations", "long-context.json")
        self.write(published, before["long-context.json"].replace("6553600", "8192"))
        self.assertEqual(self.report_again("work"), 2)
        self.assertIn("hybrid, seed 1: published with 8192 tokens, expected 6553600",
                      self.errors.getvalue())

    def test_bad_input_is_refused_with_a_line(self):
        def refused(code, *expected):
            self.assertEqual(code, 2)
            for words in expected:
                self.assertIn(words, self.errors.getvalue())
            self.assertEqual(len(self.errors.getvalue().splitlines()), 1)
        good, self.k3 = self.k3, self.scratch
        refused(self.run_rows("all"), self.scratch, "found a directory", "--k3")
        self.k3 = self.write("silent", "#!/bin/sh\nexit 1\n")
        os.chmod(self.k3, 0o755)
        refused(self.run_rows("hybrid"), "hybrid-seed1: ", "ended with code 1, no message")
        self.k3 = good
        for content, expected in (("{", "expected JSON"), ('{"state": "finished"}', "steps: ")):
            path = self.write("work/hybrid-seed1.state.json", content)
            refused(self.run_rows("hybrid"), path, expected)
            refused(self.report_again("work"), path, expected)
        os.remove(path)
        self.assertEqual(self.run_rows("hybrid"), 0)
        for content in ("{", "[]", '{"context": 512, "cases": 100}',
                        '{"context": 512, "cases": 100, "tasks": {"copy": {"right": "1"}}}'):
            path = self.write("work/hybrid-seed1/context-512.json", content)
            refused(self.run_rows("hybrid"), path, "remove it, and it is measured again")
            refused(self.report_again("work"), path, "remove it, and it is measured again")
        self.work = self.write("file", "")
        refused(self.run_rows("hybrid"), self.work, "expected a directory", "--work")
        refused(self.report_again("file"), self.work, "expected a directory", "--work")
        for option, value in (("--seed", "-1"), ("--threads", "-3")):
            with self.assertRaises(SystemExit) as ended:
                self.run_rows("hybrid", f"{option}={value}")
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(f"argument {option}: expected a whole number", self.errors.getvalue())


class PageTest(unittest.TestCase):
    def test_the_page_of_the_project_is_what_its_results_say(self):
        docs = os.path.join(ROOT, "docs")
        notes = ablation_published.Notes("test")
        records = long_context_report.load_records(os.path.join(docs, "nowhere"), docs, notes)
        with open(os.path.join(docs, "ablations.md"), encoding="utf-8") as stream:
            page = stream.read()
        table = {long_context_report.TABLE: long_context_report.table(records)}
        self.assertEqual(ablation_report.fill_page(page, table), page)
        made = {"long-context.json": ablation_report.json_text(
            long_context_report.results(records, 512))}
        made |= {f"long-context-{kind}.svg": long_context_report.render(records, kind, 512)
                 for kind in long_context_rows.KINDS}
        for name, content in made.items():
            with open(os.path.join(docs, "ablations", name), encoding="utf-8") as stream:
                self.assertEqual(content, stream.read(), name)

    def test_the_page_of_the_project_has_the_markers_and_plots(self):
        with open(os.path.join(ROOT, "docs", "ablations.md"), encoding="utf-8") as stream:
            page = stream.read()
        ablation_report.fill_page(page, {long_context_report.TABLE: ""})
        for kind in long_context_rows.KINDS:
            self.assertIn(f"(ablations/long-context-{kind}.svg)", page)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} K3_BINARY")
    K3 = os.path.abspath(sys.argv.pop(1))
    unittest.main()
