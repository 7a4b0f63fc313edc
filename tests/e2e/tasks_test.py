"""k3 tasks and k3 eval --tasks: what is written, and how answers are counted."""

import json
import os

import k3_binary
from k3_binary import KJV, NANO

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

    def test_conversations(self):
        words = ("--count", "40", "--seed", "5", "--turns", "6", "--distractors", "20", "--words", "48")
        lines = self.tasks(*words)
        answers = [sum(message["role"] == "user" for message in line["messages"]) for line in lines]
        self.assertEqual(set(answers), {1, 2, 3, 4, 5, 6})
        self.assertEqual(self.tasks(*words, "--first", "0"), lines)
        # What k3 train makes of the same settings is the same: it reads these lines as chat data.
        self.assertTrue(all("task" not in line for line in lines))
        questions = [line["messages"][0]["content"] for line in lines]
        self.assertTrue(any("Remember these words" in question for question in questions))
        self.assertTrue(any(" the " in question and "Numbers: " in question
                            for question in questions))

    def test_wrong_words(self):
        self.refuse("tasks", "--turns", "0", code=2, says=("--turns",))
        self.refuse("tasks", "--distractors", "-1", code=2, says=("--distractors",))
        self.refuse("tasks", "--words", "7", code=2, says=("--words",))
        self.refuse("eval", KJV, "--tasks", "--kinds", "chess", says=("--kinds", "chess", "sum"))
        self.refuse("eval", KJV, "--tasks", "--context", "0", code=2, says=("--context",))
        self.refuse("eval", KJV, "--tasks", "--context", "100", "--kinds", "copy",
                    says=("does not fit", "100"))
        self.refuse("eval", KJV, "--tasks", "--context", "900", "--kinds", "copy", "sum",
                    says=("sum", "copy and look-up"))
        for words in (("--kinds", "copy"), ("--cases", "5"), ("--seed", "2")):
            self.refuse("eval", KJV, "--text", KJV + "/heldout.txt", *words,
                        says=(words[0], "--tasks"))
        for words in (("--max-tokens", "5"), ("--prefill-chunk", "all")):
            self.refuse("eval", KJV, "--tasks", *words, says=(words[0], "--text"))
        for context in (1048577, 10**10, 2**63 - 1):
            self.refuse("eval", NANO, "--tasks", "--context", str(context),
                        says=("--context", "1048576"))
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

    def test_a_context_without_room_for_answers_is_refused(self):
        model = self.copy_model(NANO)
        k3_binary.edit_json(os.path.join(model, "config.json"), lambda config: config[
            "text_config"].update({"max_position_embeddings": 200}))
        words = ("eval", model, "--tasks", "--cases", "3", "--kinds", "copy", "--context")
        self.refuse(*words, "200", says=("with its answer", "200", "smaller --context"))
        self.succeed(*words, "150")

    def test_prompts_are_filled(self):
        # A kind given twice is asked once.
        twice = json.loads(self.succeed("eval", NANO, "--tasks", "--cases", "2", "--kinds", "sum",
                                        "sum", "copy", "--json").stdout)
        self.assertEqual(list(twice["tasks"]), ["sum", "copy"])
        for context in (700, 1500):
            scores = json.loads(self.succeed("eval", NANO, "--tasks", "--cases", "3", "--context",
                                             str(context), "--json").stdout)
            self.assertEqual(scores["context"], context)
            self.assertEqual(sorted(scores["tasks"]), ["copy", "look-up"])
            for score in scores["tasks"].values():
                # The next sentence, of some eight tokens, would not have fitted.
                self.assertLessEqual(score["prompt_tokens"], context)
                self.assertGreater(score["prompt_tokens"], context - 16)

    def test_the_model_of_the_repository_answers(self):
        # Its README has the shares of 200 cases each: of ten, a tenth or two may be missed.
        scores = json.loads(self.succeed("eval", NANO, "--tasks", "--cases", "10",
                                         "--json").stdout)
        self.assertEqual(sorted(scores["tasks"]), sorted(KINDS))
        for kind, score in scores["tasks"].items():
            self.assertGreaterEqual(score["right"], 0.7, (kind, score))
        asked = self.succeed("run", NANO, "What is 347 + 85?", "--chat", "--thinking", "show")
        thinking, answer = asked.stdout.decode().strip().split("\n\n")
        self.assertEqual(thinking, "7+5=12, 4+8+1=13, 3+0+1=4. So 432.")
        self.assertEqual(answer, "432")


if __name__ == "__main__":
    k3_binary.main()
