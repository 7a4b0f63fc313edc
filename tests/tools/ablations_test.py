#!/usr/bin/env python3
"""Tests of tools/ablations.py and its plots: ablations_test.py K3_BINARY

Rows are checked against the real configuration reader, which looks for the texts last. Numbers,
tables and plots are checked on metrics that are written here, runs with a program that stands in
for k3.
"""

import contextlib
import copy
import io
import json
import math
import os
import stat
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

from script_test import ROOT, SVG, TIMEOUT_S, ScriptTest

import ablation_files  # noqa: E402
import ablation_published  # noqa: E402
import ablation_report  # noqa: E402
import ablation_rows  # noqa: E402
import ablations  # noqa: E402
import svg_plot  # noqa: E402
from svg_plot import Chart, Reference, Series  # noqa: E402

K3 = ""

# Writes a falling val_loss; fails after two steps where the configuration has the seed 2 and no
# balancing. `eval` and `inspect` answer with numbers of their own.
STAND_IN = '''#!{python}
import json, os, sys
if sys.argv[1] == "inspect":
    print(json.dumps({{"total": {{"parameters": 1000}}}}))
elif sys.argv[1] == "eval":
    print(json.dumps({{"nats_per_token": 3.25}}))
else:
    config = json.load(open(sys.argv[2]))
    out = sys.argv[sys.argv.index("--out") + 1]
    os.makedirs(out, exist_ok=True)
    open(os.path.join(out, "calls"), "a").write(" ".join(sys.argv[1:]) + "\\n")
    fails = config["seed"] == 2 and config["balancing"]["rule"] == "none" and config["steps"] > 1
    with open(os.path.join(out, "metrics.jsonl"), "w") as stream:
        for step in range(1, (2 if fails else config["steps"]) + 1):
            stream.write(json.dumps({{"step": step, "val_loss": 4.0 + config["seed"] / step}}) + "\\n")
    if fails:
        sys.exit("k3: step 3/5\\nk3: Internal: step 3: expected a finite | loss, " + out + " has 2")
'''


def metrics_line(step, val_loss, violations, dead=(0, 0), **health):
    layers = [{"layer": 0, "hidden_rms": 1.0, "hidden_max": 2.0, **health},
              {"layer": 1, "hidden_rms": 3.0, "hidden_max": 5.0}]
    return {"step": step, "val_loss": val_loss, "health": layers if val_loss else [],
            "balance": [{"layer": i + 1, "max_violation": v, "dead_experts": d}
                        for i, (v, d) in enumerate(zip(violations, dead))]}


class RecordsTest(ScriptTest):
    def write_run(self, row, seed, lines, state="finished", message="", **more):
        name = ablation_report.run_name(row, seed)
        self.write(f"{name}/metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        self.write(f"{name}.state.json", json.dumps(
            {"row": row, "seed": seed, "state": state, "message": message, "steps": 10,
             "tokens": 20480, "q": 128.0, **more}))

    def records(self):
        return {row.name: [ablation_report.load_record(self.scratch, row.name, seed)
                           for seed in ablation_rows.SEEDS] for row in ablation_rows.ROWS}


class RowsTest(RecordsTest):
    def test_every_row_changes_fields_that_are_there(self):
        base = ablation_rows.load_base()
        untouched = copy.deepcopy(base)
        for row in ablation_rows.ROWS:
            config = ablation_rows.make_config(row, 7)
            self.assertEqual(config["seed"], 7)
            self.assertEqual(config != ablation_rows.make_config(ablation_rows.ROWS[0], 7),
                             bool(row.changes), row.name)
        ablation_rows.apply_changes(base, {"optimizer.per_head": False})
        self.assertEqual(base, untouched)

    def test_a_field_that_is_nowhere_is_refused(self):
        base = ablation_rows.load_base()
        for path in ("optimiser.per_head", "optimizer.perhead", "model.text_config.x", "seed.x"):
            with self.assertRaisesRegex(ablation_rows.AblationError, path):
                ablation_rows.apply_changes(base, {path: 1})

    def test_k3_accepts_every_row(self):
        for row in ablation_rows.ROWS:
            config = ablation_rows.make_config(row, 1, None, self.path("nowhere"))
            path = self.write("config.json", json.dumps(config))
            found = subprocess.run([K3, "train", path, "--out", self.path("out")], text=True,
                                   capture_output=True, timeout=TIMEOUT_S, check=False)
            self.assertEqual(found.returncode, 1, row.name)
            self.assertIn("NotFound: " + self.path("nowhere", "kjv.txt"), found.stderr, row.name)

    def test_kinds_of_attention_have_as_many_parameters(self):
        counts = {}
        for name in ("base", "all-mla", "all-kda"):
            config = ablation_rows.make_config(ablation_rows.row_named(name), 1)
            path = self.write("model.json", json.dumps(config["model"]))
            found = subprocess.run([K3, "inspect", path, "--json"], capture_output=True,
                                   timeout=TIMEOUT_S, check=True)
            counts[name] = json.loads(found.stdout)["total"]["parameters"]
        for name, count in counts.items():
            self.assertLess(abs(count / counts["base"] - 1), 0.01, counts)
            self.assertNotEqual(count, counts["base"] if name != "base" else 0)

    def test_tokens_and_load(self):
        config = ablation_rows.make_config(ablation_rows.ROWS[0], 1)
        self.assertEqual(ablation_rows.tokens_of(config), 250 * 2048)
        self.assertEqual(ablation_rows.target_load(config), 2048 * 4 / 64)

    def test_missing_texts_are_named_with_the_command(self):
        with self.assertRaisesRegex(ablation_rows.AblationError,
                                    "gather_corpus.py --only kjv .*nowhere"):
            ablation_rows.check_corpus([self.path("nowhere", "kjv.txt")])


class RunTest(RecordsTest):
    def setUp(self):
        super().setUp()
        self.k3 = self.write("k3", STAND_IN.format(python=sys.executable))
        os.chmod(self.k3, os.stat(self.k3).st_mode | stat.S_IXUSR)
        for path in ablation_rows.load_base()["text"]:
            self.write(os.path.join("corpus", os.path.basename(path)), "text\n")

    def main(self, *words):
        self.errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(self.errors):
            return ablations.main(list(words))

    def refused(self, code, *expected):
        """That a command ended with 2 and said this, in a line."""
        self.assertEqual(code, 2)
        for words in expected:
            self.assertIn(words, self.errors.getvalue())
        self.assertEqual(len(self.errors.getvalue().splitlines()), 1, self.errors.getvalue())

    def run_rows(self, *words, steps=5):
        return self.main("run", *words, "--steps", str(steps), "--k3", self.k3, "--corpus",
                         self.path("corpus"), "--work", self.path("work"))

    def state(self, name):
        return ablation_files.read_object(self.path("work", name + ".state.json"), "")

    def calls(self, name):
        with open(self.path("work", name, "calls"), encoding="utf-8") as stream:
            return stream.read().splitlines()

    def test_a_failure_is_recorded_and_does_not_stop_the_rest(self):
        self.assertEqual(self.run_rows("balance-none", "swiglu"), 1)
        self.assertEqual(self.state("balance-none-seed1")["state"], "finished")
        failed = self.state("balance-none-seed2")
        self.assertEqual(failed["state"], "failed")
        self.assertIn("Internal: step 3: expected a finite", failed["message"])
        self.assertEqual(self.state("swiglu-seed2")["state"], "finished")
        # Neither is made again; a failed one is when that is asked for, and then it goes on.
        self.assertEqual(self.run_rows("balance-none", "swiglu"), 1)
        self.assertEqual(len(self.calls("balance-none-seed2")), 1)
        self.assertEqual(len(self.calls("swiglu-seed2")), 1)
        self.assertEqual(self.run_rows("balance-none", "--retry"), 1)
        self.assertEqual(len(self.calls("balance-none-seed2")), 2)
        self.assertTrue(self.calls("balance-none-seed2")[1].endswith("--resume"))

        docs = self.path("docs")
        self.write("docs/ablations.md", page_with_markers())
        work = self.path("work")
        self.assertEqual(self.main("report", "--work", work, "--docs", docs, "--steps", "5"), 0)
        with open(os.path.join(docs, "ablations.md"), encoding="utf-8") as stream:
            row = next(line for line in stream if "run balance-none`" in line)
        self.assertIn("seed 1: finished; seed 2: failed, Internal: step 3: expected a finite"
                      " \\| loss, balance-none-seed2 has 2", row)
        self.assertIn("4.2000 (seed 1 alone)", row)
        self.assertNotIn(work, row)

    def test_rounding_starts_from_the_base_of_its_seed(self):
        self.assertEqual(self.run_rows("rounded-after", "--seed", "2"), 0)
        self.assertEqual(self.state("base-seed2")["state"], "finished")
        self.assertIn("--from " + self.path("work", "base-seed2"),
                      self.calls("rounded-after-seed2")[0])
        record = ablation_report.load_record(self.path("work"), "rounded-after", 2)
        self.assertEqual(ablation_report.eval_loss(record), 3.25)

    def test_another_number_of_steps_is_not_mixed_in(self):
        self.assertEqual(self.run_rows("swiglu", "--seed", "1"), 0)
        self.assertEqual(self.run_rows("swiglu", "--seed", "1", steps=6), 2)

    def test_an_unknown_row_is_refused(self):
        self.assertEqual(self.run_rows("balance-sometimes"), 2)

    def test_what_is_no_program_is_refused(self):
        os.makedirs(self.path("folder"))
        self.write("text", "#!/bin/sh\n")
        for path, expected in (("folder", "found a directory"), ("text", "not executable"),
                               ("none", "not there")):
            self.k3 = self.path(path)
            self.refused(self.run_rows("all"), self.k3, expected, "--k3")
        self.k3 = self.write("garbage", "\1\2")
        os.chmod(self.k3, 0o755)
        self.refused(self.run_rows("swiglu"), "garbage: cannot be started", "--k3")

    def test_a_program_that_says_nothing_or_something_else(self):
        for text, expected in (("exit 1", "ended with code 1, no message"),
                               ("kill -9 $$", "ended by signal 9"),
                               ("echo {}", "expected JSON with total.parameters, found '{}"),
                               ("echo words", "found 'words")):
            self.k3 = self.write("other", f"#!/bin/sh\n{text}\n")
            os.chmod(self.k3, 0o755)
            self.refused(self.run_rows("swiglu", "--seed", "1"), "swiglu-seed1: ", expected)

    def test_the_message_is_that_of_the_last_attempt(self):
        log = self.write("log", "k3: an old message\n")
        found = ablations.run_process(["/bin/sh", "-c", "exit 3"], self.path("out"), log)
        self.assertEqual(found, "ended with code 3")
        found = ablations.run_process(["/bin/sh", "-c", "echo k3: new >&2; exit 3"],
                                      self.path("out"), log)
        self.assertEqual(found, "new")

    def test_a_work_that_is_no_directory_is_refused(self):
        self.write("work", "")
        self.refused(self.run_rows("swiglu"), self.path("work"), "expected a directory", "--work")
        report = self.main("report", "--work", self.path("work"))
        self.refused(report, self.path("work"), "expected a directory", "--work")
        below = self.path("work", "below")
        found = self.main("run", "swiglu", "--k3", self.k3, "--corpus", self.path("corpus"),
                          "--work", below)
        self.refused(found, below, "Not a directory", "--work")
        self.refused(self.main("report", "--work", ""), "--work", "found an empty name")

    def test_a_state_file_that_is_none_is_refused(self):
        for content, expected in (("{", "expected JSON"), ("[1]", "expected a JSON object"),
                                  ('{"state": "finished"}', "steps: expected a whole number"),
                                  ('{"state": "done", "steps": 5}', "expected one of running"),
                                  ('{"state": "failed", "steps": 5, "message": 1}', "message: "),
                                  ("{}", "state: expected")):
            path = self.write("work/swiglu-seed1.state.json", content)
            for found in (lambda: self.run_rows("swiglu", "--seed", "1"),
                          lambda: self.main("report", "--work", self.path("work"))):
                self.refused(found(), path, expected, "remove it")
        with open(path, "wb") as stream:
            stream.write(b"\xff")
        self.refused(self.run_rows("swiglu", "--seed", "1"), path, "expected JSON")

    def test_numbers_that_k3_would_refuse_are_refused_first(self):
        for option, value in (("--steps", "0"), ("--seed", "-1"), ("--threads", "-3"),
                              ("--threads", "1025"), ("--steps", "many")):
            with self.assertRaises(SystemExit) as ended:
                self.run_rows("swiglu", f"{option}={value}")
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(f"argument {option}: expected a whole number", self.errors.getvalue())
            self.assertFalse(os.path.exists(self.path("work")))

    def test_a_failure_before_the_first_step_is_not_that_of_other_steps(self):
        self.write("work/swiglu-seed1.state.json", json.dumps(
            {"state": "failed", "message": "steps: expected 1 or more", "steps": 0}))
        self.assertEqual(self.run_rows("swiglu", "--seed", "1"), 0)
        self.assertEqual(self.state("swiglu-seed1")["state"], "finished")


def page_with_markers():
    return "# Page\n" + "".join(f"<!-- table:{name} -->\nold\n<!-- end -->\nkept {name}\n"
                                for name in ablation_report.QUESTIONS)


class PublishedTest(RecordsTest):
    """Reports of which some runs are only on the page."""

    def setUp(self):
        super().setUp()
        self.write("docs/ablations.md", page_with_markers())

    def write_all(self, folder, rows=ablation_rows.ROWS):
        for row in rows:
            for seed in ablation_rows.SEEDS:
                self.write_finished(folder, row, seed, 3.0 + seed)

    def write_finished(self, folder, row, seed, loss, steps=None):
        steps = steps or ablation_rows.make_config(row, seed)["steps"]
        name = os.path.join(folder, ablation_report.run_name(row.name, seed))
        lines = [metrics_line(1, loss, (2, 3)), metrics_line(steps, loss, (1, 2))]
        self.write(f"{name}/metrics.jsonl",
                   "".join(json.dumps(line) + "\n" for line in lines[steps == 1:]))
        self.write(f"{name}.eval.json", '{"nats_per_token": 3.5}')
        self.write(f"{name}.state.json", json.dumps(
            {"state": "finished", "message": "", "steps": steps, "tokens": 2048 * steps,
             "q": 128.0}))

    def report(self, folder, *words):
        self.errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(self.errors):
            return ablations.main(["report", "--work", self.path(folder), "--docs",
                                   self.path("docs"), *words])

    def files(self):
        found = {"page": self.read("docs", "ablations.md")}
        if os.path.isdir(self.path("docs", "ablations")):
            found |= {name: self.read("docs", "ablations", name)
                      for name in os.listdir(self.path("docs", "ablations"))}
        return found

    def test_rows_that_were_not_run_stay_to_the_byte(self):
        self.write_all("all")
        self.assertEqual(self.report("all"), 0)
        self.assertEqual(self.errors.getvalue(), "")
        before = self.files()
        swiglu = ablation_rows.row_named("swiglu")
        self.write_all("some", [swiglu])
        self.assertEqual(self.report("some"), 0)
        self.assertEqual(self.files(), before)
        self.assertIn("kept as published", self.errors.getvalue())
        self.assertIn("base (seeds 1, 2), ", self.errors.getvalue())
        self.assertNotIn("swiglu", self.errors.getvalue())
        self.assertIn("activation-loss", self.errors.getvalue())  # it has the base's curve too

        self.write_finished("some", swiglu, 2, 9.0)
        self.assertEqual(self.report("some"), 0)
        after = self.files()
        self.assertEqual({name for name in after if after[name] != before[name]},
                         {"page", "results.json"})
        self.assertIn("| 6.5000 ± 2.5000 (4.0000, 9.0000) | +2.0000 ± 2.0000 (+0.0000, +4.0000) |",
                      after["page"])
        # A plot whose rows were all run is drawn.
        self.write_all("some", [ablation_rows.row_named(name)
                                for name in ablation_report.QUESTIONS["activation"][0]])
        self.write_finished("some", swiglu, 2, 8.0)
        self.assertEqual(self.report("some"), 0)
        self.assertNotEqual(self.files()["activation-loss.svg"], before["activation-loss.svg"])
        self.assertEqual(self.files()["muon-loss.svg"], before["muon-loss.svg"])

    def test_nothing_run_writes_nothing(self):
        self.write_all("all")
        self.report("all")
        before = self.files()
        self.assertEqual(self.report("none"), 2)
        self.assertIn("no runs", self.errors.getvalue())
        self.write("begun/base-seed1.state.json",
                   '{"state": "interrupted", "steps": 250, "message": "after step 3"}')
        self.assertEqual(self.report("begun"), 2)
        self.assertEqual(self.files(), before)

    def test_the_page_of_the_project_is_what_its_results_say(self):
        docs = os.path.join(ROOT, "docs")
        notes = ablation_published.Notes("test")
        records = ablation_report.load_records(self.path("none"), docs, None, notes)
        self.assertEqual(len(notes.kept), len(ablation_rows.ROWS) * len(ablation_rows.SEEDS))
        with open(os.path.join(docs, "ablations.md"), encoding="utf-8") as stream:
            page = stream.read()
        tables = {name: ablation_report.table(name, records) for name in ablation_report.QUESTIONS}
        self.assertEqual(ablation_report.fill_page(page, tables), page)
        with open(os.path.join(docs, "ablations", "results.json"), encoding="utf-8") as stream:
            self.assertEqual(ablation_report.json_text(ablation_report.results(records)),
                             stream.read())
        for plot in ablation_report.charts(records):
            self.assertTrue(ablation_report.is_kept(plot, docs, records), plot)

    def test_runs_of_other_steps_are_left_out_unless_they_are_asked_for(self):
        row = ablation_rows.row_named("swiglu")
        self.write_finished("work", row, 1, 3.0, steps=4)
        self.write_finished("work", row, 2, 4.0)
        self.assertEqual(self.report("work"), 0)
        self.assertIn("left out: swiglu-seed1 has 4 steps, and the page's runs of it have 250",
                      self.errors.getvalue())
        self.assertIn("| 4.0000 (seed 2 alone) |", self.files()["page"])
        self.assertIn("seed 1: not run; seed 2: finished", self.files()["page"])
        before = self.files()
        os.remove(self.path("work", "swiglu-seed2.state.json"))
        self.assertEqual(self.report("work"), 2)
        self.assertEqual(self.files(), before)
        # Asked for, they do not stand beside what was published with other steps.
        self.assertEqual(self.report("work", "--steps", "4"), 2)
        self.assertIn("swiglu, seed 2: published with 250 steps, expected 4", self.errors.getvalue())
        self.assertEqual(self.files(), before)
        os.remove(self.path("docs", "ablations", "results.json"))
        self.assertEqual(self.report("work", "--steps", "4"), 0)
        self.assertIn("| 3.0000 (seed 1 alone) |", self.files()["page"])

    def test_a_failure_that_takes_a_published_place_is_said(self):
        self.write_all("all")
        self.report("all")
        self.write("failed/swiglu-seed1.state.json",
                   '{"state": "failed", "steps": 250, "message": "no luck"}')
        self.assertEqual(self.report("failed"), 0)
        self.assertIn("give way to runs that failed", self.errors.getvalue())
        self.assertIn("swiglu (seed 1)", self.errors.getvalue())
        self.assertIn("seed 1: failed, no luck; seed 2: finished", self.files()["page"])

    def test_a_finished_run_without_its_measurements_is_left_out(self):
        self.write_all("all")
        self.report("all")
        before = self.files()
        for gone, expected in (("swiglu-seed1/metrics.jsonl", "does not reach step 250"),
                               ("qat-seed2.eval.json", "its eval.json is gone")):
            os.remove(self.path("all", gone))
            self.assertEqual(self.report("all"), 0)
            self.assertIn(expected, self.errors.getvalue())
            self.assertEqual(self.files(), before)

    def test_results_and_metrics_that_are_none_are_refused(self):
        self.write_all("all")
        good = {"row": "base", "seed": 1, "state": "finished", "message": "", "steps": 250,
                "values": {}}
        contents = ["{", "[]", "{}", '{"runs": [1]}'] + [
            json.dumps({"runs": [{**good, **change}]})
            for change in ({"values": {"val_loss": "x"}}, {"seed": None}, {"state": "?"},
                           {"steps": "250"}, {"message": None})]
        for content in contents:
            path = self.write("docs/ablations/results.json", content)
            before = self.files()
            self.assertEqual(self.report("all"), 2, content)
            self.assertIn(path, self.errors.getvalue())
            self.assertIn("git checkout", self.errors.getvalue())
            self.assertEqual(self.files(), before)
        os.remove(path)
        for line in ("1", '{"val_loss": 1}', '{"step": 1, "health": [1]}', '{"step": "1"}'):
            path = self.write("all/base-seed1/metrics.jsonl", line + "\n")
            self.assertEqual(self.report("all"), 2, line)
            self.assertIn(f"{path}: line 1: expected", self.errors.getvalue())

    def test_a_page_that_cannot_be_written_is_refused(self):
        self.write_all("all")
        self.write("docs/ablations", "")
        self.assertEqual(self.report("all"), 2)
        self.assertIn(self.path("docs", "ablations"), self.errors.getvalue())
        os.remove(self.path("docs", "ablations.md"))
        os.remove(self.path("docs", "ablations"))
        self.assertEqual(self.report("all"), 2)
        self.assertIn("--docs", self.errors.getvalue())


class ReportTest(RecordsTest):
    def test_numbers_by_hand(self):
        # Ten steps, so that the tail is steps 9 and 10.
        for seed, loss in ((1, 3.5), (2, 3.7)):
            lines = [metrics_line(step, None, (100, 100)) for step in range(1, 9)]
            lines += [metrics_line(9, None, (1, 2), (4, 0)),
                      metrics_line(10, loss, (3, 4 + seed), (2, 6), expert_hidden_max=8.0 + seed,
                                   tile_log_decay_min=-math.log(10) * 7, routed_rms=0.5)]
            lines[0] = metrics_line(1, 9.0, (100, 100), expert_hidden_max=20.0, routed_rms=0.25)
            self.write_run("base", seed, lines, parameters=1000)
        records = self.records()
        rows = ablation_report.results(records)["rows"]["base"]
        self.assertEqual(rows["val_loss"]["seeds"], {1: 3.5, 2: 3.7})
        self.assertAlmostEqual(rows["val_loss"]["mean"], 3.6)
        self.assertAlmostEqual(rows["val_loss"]["half_range"], 0.1)
        # Seed 1: (1.5 + 4) / 2; seed 2: (1.5 + 4.5) / 2.
        self.assertEqual(rows["max_violation"]["seeds"], {1: 2.75, 2: 3.0})
        self.assertEqual(rows["dead_mean"]["seeds"], {1: 3.0, 2: 3.0})  # (2 + 4) / 2
        self.assertEqual(rows["dead_max"]["seeds"], {1: 5.0, 2: 5.0})  # (4 + 6) / 2
        self.assertEqual(rows["expert_max"]["mean"], 20.0)
        self.assertEqual(rows["expert_max_end"]["seeds"], {1: 9.0, 2: 10.0})
        self.assertAlmostEqual(rows["reciprocal_log10"]["mean"], 7.0)
        self.assertEqual(rows["routed_growth"]["mean"], 2.0)
        self.assertEqual(rows["hidden_growth"]["mean"], 3.0)
        self.assertNotIn("head_spread", rows)
        base, parameters = (ablation_report.table(name, records).splitlines()[2]
                            for name in ("balance", "attention"))
        self.assertIn("| 3.6000 ± 0.1000 (3.5000, 3.7000) |", base)
        self.assertIn("| 20,480 | 1, 2 | finished | `tools/ablations.py run base` |", base)
        self.assertIn("| 1,000 |", parameters)

    def test_differences_are_taken_seed_by_seed(self):
        for seed in (1, 2):
            self.write_run("base", seed, [metrics_line(10, 3.0 + seed, (1,))])
            self.write_run("swiglu", seed, [metrics_line(10, 3.25 + seed, (1,))])
        row = ablation_report.table("activation", self.records()).splitlines()[3]
        self.assertIn("| +0.2500 ± 0.0000 (+0.2500, +0.2500) |", row)

    def test_what_is_missing_cut_off_or_not_finite(self):
        self.write_run("base", 1, [metrics_line(10, 3.0, (float("nan"), 2.0))],
                       head_update_spread=None)
        self.write("base-seed1/metrics.jsonl", '{"step": 11, "val', "a")
        self.write_run("base", 2, [metrics_line(5, 3.0, (1,))], "failed", "step 6")
        records = self.records()
        self.assertEqual(len(records["base"][0].lines), 1)
        found = ablation_report.results(records)
        json.dumps(found, allow_nan=False)
        self.assertEqual(found["rows"]["base"]["max_violation"]["seeds"], {1: 2.0})
        failed = next(run for run in found["runs"] if run["row"] == "base" and run["seed"] == 2)
        self.assertEqual((failed["last_step"], failed["values"]["val_loss"]), (5, 3.0))
        for name, chart in ablation_report.charts(records).items():
            picture = svg_plot.render(chart)
            ElementTree.fromstring(picture)
            self.assertNotIn("nan", picture, name)
        self.assertIn("not run", ablation_report.table("muon", records))

    def test_the_page_keeps_what_is_not_a_table(self):
        tables = {name: f"new {name}" for name in ablation_report.QUESTIONS}
        once = ablation_report.fill_page(page_with_markers(), tables)
        self.assertNotIn("old", once)
        self.assertIn("new muon", once)
        self.assertIn("kept muon", once)
        self.assertEqual(ablation_report.fill_page(once, tables), once)
        with self.assertRaises(ablation_rows.AblationError):
            ablation_report.fill_page("# nothing\n", tables)

    def test_the_page_of_the_project_has_every_marker_and_plot(self):
        with open(os.path.join(ROOT, "docs", "ablations.md"), encoding="utf-8") as stream:
            page = stream.read()
        ablation_report.fill_page(page, {name: "" for name in ablation_report.QUESTIONS})
        for name in ablation_report.charts(self.records()):
            self.assertIn(f"(ablations/{name}.svg)", page)


class PlotTest(unittest.TestCase):
    def polylines(self, chart, kind):
        root = ElementTree.fromstring(svg_plot.render(chart))
        found = [node for node in root.iter(SVG + "polyline") if node.get("class") == kind]
        return [[tuple(map(float, pair.split(","))) for pair in node.get("points").split()]
                for node in found]

    def test_points_stand_where_the_axes_say(self):
        chart = Chart("t", "x", "y", [Series("a", [[(0, 10), (5, 15), (10, 20)]])])
        (points,) = self.polylines(chart, "mean")
        self.assertEqual([x for x, _ in points],
                         [svg_plot.LEFT, (svg_plot.LEFT + svg_plot.RIGHT) / 2, svg_plot.RIGHT])
        self.assertAlmostEqual(points[1][1], (svg_plot.TOP + svg_plot.BOTTOM) / 2, places=2)
        self.assertGreater(points[0][1], points[2][1])  # up is more

    def test_logarithmic_axis(self):
        chart = Chart("t", "x", "y", [Series("a", [[(0, 0.01), (1, 1), (2, 100)]])], log_y=True)
        (points,) = self.polylines(chart, "mean")
        self.assertAlmostEqual(points[1][1], (points[0][1] + points[2][1]) / 2, places=1)
        self.assertEqual(svg_plot.log_ticks(0.005, 200), [0.01, 0.1, 1.0, 10.0, 100.0])

    def test_mean_and_thin_lines_of_two_seeds(self):
        chart = Chart("t", "x", "y", [Series("a", [[(0, 0), (1, 2)], [(0, 2), (1, 4), (2, 9)]])])
        self.assertEqual(svg_plot.mean_curve(chart.series[0].runs), [(0, 1), (1, 3)])
        self.assertEqual(len(self.polylines(chart, "run")), 2)
        self.assertEqual([len(points) for points in self.polylines(chart, "mean")], [2])

    def test_gaps(self):
        values = [1, 2, math.nan, 3, math.inf, 0, 4, 5]
        chart = Chart("t", "x", "y", [Series("a", [list(enumerate(values))])], log_y=True)
        self.assertEqual([len(part) for part in self.polylines(chart, "mean")], [2, 2, 2])
        for empty in ([], [[]], [[(0, math.nan)]]):
            picture = svg_plot.render(Chart("t", "x", "y", [Series("a", empty)]))
            ElementTree.fromstring(picture)
            self.assertNotIn("nan", picture)

    def test_reference_lines_are_inside_and_named(self):
        chart = Chart("a < b", "x", "y", [Series("s & t", [[(0, 1), (1, 2)]])],
                      [Reference(40.0, "limit")])
        root = ElementTree.fromstring(svg_plot.render(chart))
        (line,) = [node for node in root.iter(SVG + "line") if node.get("class") == "reference"]
        self.assertEqual(line.get("y1"), line.get("y2"))
        self.assertTrue(svg_plot.TOP < float(line.get("y1")) < svg_plot.BOTTOM)
        texts = [node.text for node in root.iter(SVG + "text")]
        for expected in ("limit", "a < b", "s & t"):
            self.assertIn(expected, texts)

    def test_ticks_are_round(self):
        self.assertEqual(svg_plot.linear_ticks(0, 500), [0, 100, 200, 300, 400, 500])
        self.assertEqual([svg_plot.tick_label(x) for x in svg_plot.linear_ticks(3.41, 3.52)],
                         ["3.42", "3.44", "3.46", "3.48", "3.5", "3.52"])
        self.assertEqual([svg_plot.tick_label(x) for x in (0, 1e-5, 2e7, 1234.5)],
                         ["0", "1e-5", "2e7", "1234.5"])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} K3_BINARY")
    K3 = os.path.abspath(sys.argv.pop(1))
    unittest.main()
