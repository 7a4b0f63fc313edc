"""k3 tasks and k3 eval --tasks: what is written, and how answers are counted."""

import json

import k3_binary
from k3_binary import KJV

KINDS = ["sum", "difference", "copy", "reverse", "sort", "look-up", "tool-call"]


class TasksTest(k3_binary.BinaryTest):

    def tasks(self, *words):
        return [json.loads(line) for line in self.succeed("tasks", *words).stdout.splitlines()]

    def test_lines_are_requests_with_their_answer(self):
        lines = self.tasks("--count", "60", "--seed", "5")
        self.assertEqual(len(lines), 60)
        self.assertEqual({line["task"] for line in lines}, set(KINDS))
        for line in lines:
            self.assertEqual(line["messages"][-1]["role"], "assistant")
            self.assertEqual(line["messages"][-1]["content"], line["answer"])
        self.assertEqual(self.tasks("--count", "10", "--seed", "5", "--first", "50"), lines[50:])
        self.assertNotEqual(self.tasks("--count", "60", "--seed", "6"), lines)
        held_out = self.tasks("--count", "60", "--seed", "5", "--held-out", "--kinds", "sum", "copy")
        self.assertEqual({line["task"] for line in held_out}, {"sum", "copy"})
        self.assertEqual(self.tasks("--count", "0"), [])

    def test_wrong_words(self):
        self.refuse("tasks", "--kinds", "product", says=("--kinds", "product", "sum"))
        self.refuse("tasks", "--count", "-1", code=2, says=("--count",))
        self.refuse("eval", KJV, code=2, says=("--text", "--tasks"))
        self.refuse("eval", KJV, "--tasks", "--cases", "0", code=2, says=("--cases",))

    def test_scores(self):
        # A model that knows the King James text alone answers none of them.
        scores = json.loads(self.succeed("eval", KJV, "--tasks", "--cases", "1", "--json").stdout)
        self.assertEqual(scores["cases"], 1)
        self.assertEqual(sorted(scores["tasks"]), sorted(KINDS))
        for kind, score in scores["tasks"].items():
            self.assertEqual(score["right"], 0, kind)
            self.assertIn("expected", score["wrong_example"])
        self.assertEqual(scores["tasks"]["tool-call"]["right_calls"], 0)


if __name__ == "__main__":
    k3_binary.main()
