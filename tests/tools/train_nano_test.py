#!/usr/bin/env python3
"""Tests of what makes models/nano: tools/train_nano.sh with programs that stand in for k3 and for
tools/gather_corpus.py, and what gather_corpus.py and train_nano_tokenizer.py refuse.
"""

import json
import os
import shutil
import subprocess
import sys
import unittest

from script_test import ROOT, TIMEOUT_S, ScriptTest

TEXTS = ("kjv", "devils-dictionary", "us-founding-documents", "jargon-file")
STAGES = ("nano-train", "nano-finish", "nano-polish")


class ToolTest(ScriptTest):
    def run_tool(self, *words, tool):
        return subprocess.run([tool, *words], cwd=self.scratch, capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False)

    def assert_refused(self, done, *expected):
        """That it ended with 2 and said this in its last line."""
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertNotIn("Traceback", done.stderr)
        for words in expected:
            self.assertIn(words, done.stderr.splitlines()[-1])


class TrainNanoTest(ToolTest):
    """In a project of its own, whose programs write down what they are asked."""

    def setUp(self):
        super().setUp()
        os.makedirs(self.path("project", "tools"))
        self.tool = shutil.copy(os.path.join(ROOT, "tools", "train_nano.sh"),
                                self.path("project", "tools"))
        self.k3 = self.program("k3", f'echo "k3 $*" >>"{self.path("calls")}"')
        self.program("project/tools/gather_corpus.py",
                     f'echo "gather $*" >>"{self.path("calls")}"')

    def program(self, name, text):
        path = self.write(name, f"#!/bin/sh\n{text}\n")
        os.chmod(path, 0o755)
        return path

    def train(self, *words):
        return self.run_tool(*words, tool=self.tool)

    def calls(self):
        return self.read("calls").splitlines() if os.path.exists(self.path("calls")) else []

    def write_corpus(self, texts):
        for name in ("SOURCES.md", *(f"{text}.txt" for text in texts)):
            self.write(f"project/corpus/{name}", "text\n")

    def test_the_four_texts_are_those_of_the_configurations(self):
        for stage in STAGES:
            with open(os.path.join(ROOT, "configs", f"{stage}.json"), encoding="utf-8") as stream:
                texts = json.load(stream)["text"]
            self.assertEqual(texts, [f"../corpus/{text}.txt" for text in TEXTS])

    def test_texts_are_gathered_unless_all_are_there(self):
        only = " ".join(f"--only {text}" for text in TEXTS)
        gather = f"gather {self.path('project', 'corpus')} {only}"
        for texts, expected in ((TEXTS[:1], [gather]), (TEXTS[1:], [gather]), (TEXTS, [])):
            shutil.rmtree(self.path("project", "corpus"), ignore_errors=True)
            self.write_corpus(texts)
            self.write("calls", "")
            self.assertEqual(self.train("work", self.k3).returncode, 0)
            self.assertEqual([call for call in self.calls() if call.startswith("gather")], expected)

    def test_the_stages_follow_each_other(self):
        self.write_corpus(TEXTS)
        self.assertEqual(self.train("a/b", "k3").returncode, 0)
        config = self.path("project", "configs")
        self.assertEqual(self.calls(), [
            f"k3 train {config}/nano-train.json --out a/b/nano-train --resume",
            f"k3 train {config}/nano-finish.json --out a/b/nano-finish --resume"
            " --from a/b/nano-train",
            f"k3 train {config}/nano-polish.json --out a/b/nano-polish --resume"
            " --from a/b/nano-finish"])

    def test_help_is_printed_and_other_options_are_refused(self):
        for words in (["--help"], ["-h"], ["work", "--help"]):
            done = self.train(*words)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("usage: tools/train_nano.sh WORK [K3]", done.stdout)
        for words in (["--resume"], ["work", "-x"], ["-"]):
            self.assert_refused(self.train(*words), f"train_nano: {words[-1]}: ", "--help")
        for words in ([], ["a", "b", "c"]):
            self.assert_refused(self.train(*words), f"found {len(words)} words")
        self.assertEqual(sorted(os.listdir(self.scratch)), ["k3", "project"])

    def test_a_program_that_is_none_is_refused(self):
        os.makedirs(self.path("folder"))
        self.write("text", "")
        for k3, expected in (("none", "there is no such program"), ("folder", "found a directory"),
                             ("text", "not executable"), ("", "found an empty name"),
                             ("sh", "no such program")):
            self.assert_refused(self.train("work", k3), expected)
        self.assert_refused(self.train("work"), "build/release/k3: there is no such program")
        self.assertFalse(os.path.exists(self.path("work")))

    def test_a_work_that_cannot_be_one_is_refused(self):
        self.write("file", "")
        for work, expected in (("file", "file: expected a directory, found a file"),
                               ("file/below", "file/below: cannot be made (Not a directory)"),
                               ("", "found an empty name")):
            self.assert_refused(self.train(work, self.k3), "train_nano: ", expected)
        self.assertEqual(self.calls(), [])


class ShellToolsTest(ToolTest):
    """What the other shell scripts say to words that they have no use for."""

    def test_help_and_bad_words(self):
        os.makedirs(self.path("folder"))
        self.write("file", "")
        for name, words, expected in (
                ("bootstrap.sh", [], "usage: tools/bootstrap.sh LIST..."),
                ("bootstrap.sh", ["none"], "none: expected a package list"),
                ("bootstrap.sh", ["folder"], "folder: expected a package list"),
                ("bootstrap.sh", ["--what"], "--what: there are no options"),
                ("run_fuzzers.sh", [], "usage: tools/run_fuzzers.sh BUILD_DIR SECONDS"),
                ("run_fuzzers.sh", ["folder", "x"], "SECONDS: expected a whole number"),
                ("run_fuzzers.sh", ["folder", "0"], "SECONDS: expected a whole number"),
                ("run_fuzzers.sh", ["folder", "1"], "no fuzzer in folder/src"),
                ("run_fuzzers.sh", ["file", "1"], "no fuzzer in file/src"),
                ("run_fuzzers.sh", ["--what", "1"], "--what: there are no options")):
            tool = os.path.join(ROOT, "tools", name)
            done = self.run_tool(*words, tool=tool)
            self.assert_refused(done, expected)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            done = self.run_tool("--help", tool=tool)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn(f"usage: tools/{name} ", done.stdout)
        self.assertEqual(sorted(os.listdir(self.scratch)), ["file", "folder"])


class GatherTest(ToolTest):
    TOOL = os.path.join(ROOT, "tools", "gather_corpus.py")

    def test_a_directory_that_cannot_be_one_is_refused_before_anything_is_read(self):
        self.write("file", "")
        for words, expected in ((["file"], "file: expected a directory"),
                                ([""], "found an empty name"),
                                (["out", "--only", "bible"], "unknown sources: bible"),
                                ([], "expected OUTDIR")):
            self.assert_refused(self.run_tool(*words, tool=self.TOOL), expected)
        self.assertEqual(os.listdir(self.scratch), ["file"])


class TokenizerTest(ToolTest):
    TOOL = os.path.join(ROOT, "tools", "train_nano_tokenizer.py")

    def train(self, *words):
        done = subprocess.run([sys.executable, self.TOOL, "out", *words], cwd=self.scratch,
                              capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        self.assertFalse(os.path.exists(self.path("out")))
        return done

    def test_what_is_missing_is_said(self):
        self.assert_refused(self.train("--corpus", "nowhere"), "nowhere/kjv.txt", "gather_corpus.py")
        for text in TEXTS:
            self.write(f"corpus/{text}.txt", "text\n")
        for k3, expected in (("none", "No such file"), (".", "Permission denied")):
            self.assert_refused(self.train("--corpus", "corpus", "--k3", k3),
                                f"{k3}: cannot be started ({expected}", "--k3")
        k3 = self.write("k3", "#!/bin/sh\necho words\n")
        os.chmod(k3, 0o755)
        self.assert_refused(self.train("--corpus", "corpus", "--k3", k3), "expected JSON lines")
        with open(self.path("corpus", "kjv.txt"), "wb") as stream:
            stream.write(b"\xff")
        self.assert_refused(self.train("--corpus", "corpus"), "kjv.txt: expected UTF-8")


if __name__ == "__main__":
    unittest.main()
