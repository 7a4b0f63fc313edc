#!/usr/bin/env python3
"""Tests of bench/depth: depth_test.py K3"""

import json
import os
import subprocess
import sys
import unittest

from script_test import ROOT, TIMEOUT_S, ScriptTest

SCRIPT = os.path.join(ROOT, "bench", "depth")
NANO = os.path.join(ROOT, "models", "nano")

# Says what it was asked, and answers: a token takes 1 ms, and 1 ms more for every 1,000 of depth.
STAND_IN = '''#!{python} -IS
import json, sys
arguments = sys.argv[1:]
def option(name, otherwise):
    return int(arguments[arguments.index(name) + 1]) if name in arguments else otherwise
open({calls!r}, "a").write(" ".join(arguments) + "\\n")
depth = option("--depth", 0)
found = {{"prefill_tok_s": option("--prompt", 0) / 2.0, "decode_tok_s": 1e3 / (1 + depth / 1e3),
          "peak_rss_bytes": 1000000 + depth, "bytes_per_token": 5000000 + 500 * depth}}
if "--no-yardsticks" not in arguments:
    found.update(read_gb_s=50.0, gemm_gflop_s=400.0)
print(json.dumps(found))
'''


class DepthTest(ScriptTest):
    def depth(self, *arguments, k3=None):
        command = [sys.executable, SCRIPT, *arguments, "--k3", k3 or self.path("k3")]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S,
                              check=False)

    def setUp(self):
        super().setUp()
        self.write("k3", STAND_IN.format(python=sys.executable, calls=self.path("calls")))
        os.chmod(self.path("k3"), 0o755)

    def test_figures_and_floor(self):
        done = self.depth(NANO, "--depths", "3000,1000", "--prefill", "64", "--rounds", "2",
                          "--threads", "2", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = json.loads(done.stdout)
        first, second = found["models"][0]["decode"]
        self.assertEqual((first["depth"], second["depth"]), (1000, 3000))
        self.assertAlmostEqual(first["ms"], 2)
        self.assertAlmostEqual(second["ms"], 4)
        self.assertEqual((first["floor_ms"], second["bytes_read"]), (0, 6500000))
        # A megabyte at 50 GB/s; two layers' 4 heads of 2 * 48 + 16 are less at 400 GFLOP/s.
        self.assertAlmostEqual(second["floor_ms"], 0.02)
        self.assertEqual(found["models"][0]["prefill"], [{"tokens": 64, "seconds": 2.0}])
        calls = self.read("calls").splitlines()
        self.assertEqual(len(calls), 1 + 2 * 2 + 1)
        self.assertNotIn("--no-yardsticks", calls[0])
        self.assertEqual(sum("--depth 3000 --no-yardsticks" in call for call in calls), 2)

    def test_the_larger_floor_counts(self):
        # 12 heads on wide latents have more operations than bytes.
        config = {"num_attention_heads": 120, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
                  "max_position_embeddings": 4096,
                  "linear_attn_config": {"full_attn_layers": [4]}}
        self.write("wide/config.json", json.dumps(config))
        done = self.depth(self.path("wide"), "--depths", "1000,2000", "--rounds", "1", "--json")
        row = json.loads(done.stdout)["models"][0]["decode"][1]
        self.assertAlmostEqual(row["floor_ms"], 1e3 * 1000 * 2 * 120 * (2 * 512 + 64) / 400e9)

    def test_the_table_of_the_real_program(self):
        done = self.depth(NANO, "--depths", "64,512", "--rounds", "1", "--gen", "4", k3=K3)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("| 512 |", done.stdout)

    def test_a_program_that_answers_something_else(self):
        for answer in ("rubbish", "", "{}", "[]", '{"decode_tok_s": null}', "\\377"):
            with self.subTest(answer):
                self.write("k3", f"#!/bin/sh\nprintf '{answer}'\n")
                done = self.depth(NANO, "--depths", "1")
                self.assertEqual(done.returncode, 2)
                self.assertIn("expected its JSON", done.stderr)
                self.assertNotIn("Traceback", done.stderr)
        self.write("k3", "#!/bin/sh\nkill -9 $$\n")
        self.assertIn("ended with -9, no message", self.depth(NANO, "--depths", "1").stderr)

    def test_a_context_without_room_is_seen_first(self):
        done = self.depth(NANO, "--depths", "1,1048576")
        self.assertEqual(done.returncode, 2)
        self.assertIn("1,048,576 tokens", done.stderr)
        self.assertFalse(os.path.exists(self.path("calls")))

    def test_bad_input(self):
        for arguments, says in (((NANO, "--depths", "a"), "whole numbers"),
                                ((NANO, "--depths", "0"), "from 1 on"),
                                ((NANO, "--rounds", "0"), "at least 1"),
                                ((), "DIR"),
                                ((self.path("nowhere"), "--depths", "64"), "config.json")):
            with self.subTest(says=says):
                done = self.depth(*arguments)
                self.assertEqual(done.returncode, 2)
                self.assertIn(says, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
        done = self.depth(NANO, "--depths", "64", k3=self.path("no-k3"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("no-k3", done.stderr)
        done = self.depth(self.path("nowhere"), "--depths", "64", k3=K3)
        self.assertEqual(done.returncode, 2)
        self.assertIn("nowhere", done.stderr)


if __name__ == "__main__":
    K3 = os.path.abspath(sys.argv.pop(1))
    unittest.main()
