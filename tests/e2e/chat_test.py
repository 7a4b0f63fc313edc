"""`k3 chat` at a real pseudo-terminal and in a pipe, and `k3 run` in its chat form."""

import json
import os
import re
import subprocess

import k3_binary
from k3_binary import KJV, BinaryTest
from pty_terminal import (END_OF_INPUT, ENTER, INTERRUPT, UP, PtyProgram, pasted,
                          saved_conversation, strip_escapes)

PROMPT = b"> "
QUESTIONS = ["Who art thou?", "And whence comest thou?", "Speak plainly."]
SAMPLING = ["--seed", "7", "--temperature", "0.8", "--repetition-penalty", "1.1"]


def reused_and_run(stats):
    """The prompt's tokens, those reused and those run, from a line of --stats or /stats."""
    found = re.search(rb"prompt: (\d+) tokens, (\d+) reused, (\d+) in", stats)
    return tuple(int(number) for number in found.groups())


class ChatInAPipeTest(BinaryTest):
    """Lines in, responses out."""

    def chat(self, lines, *words):
        text = "".join(line + "\n" for line in lines).encode()
        return self.succeed("chat", KJV, "--no-history", *words, stdin=text)

    def cold(self, messages, *words):
        """The answer of a new process to a conversation."""
        path = self.path("conversation.json")
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(messages, stream)
        result = self.succeed("run", KJV, "--json-messages", path, "--json", *SAMPLING, *words)
        return json.loads(result.stdout)

    def check_turns(self, *words):
        """Every turn costs its new tokens alone and answers as a cold run does."""
        saved = self.path("saved.json")
        lines = [line for question in QUESTIONS for line in (question, "/stats")]
        result = self.chat([*lines, f"/save {saved}"], *SAMPLING, *words)
        stats = [line for line in result.stdout.splitlines() if line.startswith(b"prompt: ")]
        self.assertEqual(len(stats), len(QUESTIONS))
        with open(saved, encoding="utf-8") as stream:
            messages = json.load(stream)["messages"]
        self.assertEqual([m["content"] for m in messages[::2]], QUESTIONS)
        for turn, line in enumerate(stats):
            cold = self.cold(messages[:2 * turn + 1], *words)
            self.assertEqual(cold["message"], messages[2 * turn + 1], f"turn {turn}")
            prompt, reused, run = reused_and_run(line)
            self.assertEqual(prompt, cold["usage"]["prompt_tokens"])
            history = self.tokens(messages[:2 * turn], *words) if turn else 0
            self.assertEqual((reused, run), (history, prompt - history), f"turn {turn}")
        return result, messages

    def tokens(self, messages, *words):
        request = {"messages": messages, "add_generation_prompt": False,
                   "thinking": "none" not in words}
        ids = self.succeed("render", KJV, "-", "--ids", stdin=json.dumps(request).encode()).stdout
        return ids.count(b",") + 1

    def test_later_turns_cost_their_new_tokens_and_equal_cold_runs(self):
        self.check_turns("--max-tokens", "40")

    def test_the_same_without_thinking_and_responses_alone_are_printed(self):
        result, messages = self.check_turns("--max-tokens", "40", "--effort", "none")
        for message in messages[1::2]:
            self.assertTrue(message["content"])
            self.assertIn(message["content"].encode(), result.stdout)
        self.assertNotIn(b"\x1b", result.stdout)

    def test_thinking_is_hidden_in_a_pipe_unless_asked_for(self):
        words = ["--max-tokens", "20", "--greedy"]
        self.assertEqual(self.chat(["Who?"], *words).stdout.strip(), b"")
        self.assertTrue(self.chat(["Who?"], *words, "--thinking", "show").stdout.strip())

    def test_threads_do_not_change_a_conversation(self):
        words = [*SAMPLING, "--effort", "none", "--max-tokens", "30"]
        one = self.chat(QUESTIONS, *words, "--threads", "1").stdout
        self.assertEqual(self.chat(QUESTIONS, *words, "--threads", "3").stdout, one)

    def test_save_and_load(self):
        path = self.path("kept.json")
        words = ["--effort", "none", "--max-tokens", "12"]
        self.chat(["/system Be brief.", "Who?", f"/save {path}"], *words)
        kept = self.succeed("render", KJV, path).stdout
        self.assertIn(b'role="system"<|sep|>Be brief.', kept)
        again = self.chat([f"/load {path}", "/system", "/stats"], *words)
        self.assertIn(b"messages: 3, effort: none", again.stdout)
        self.assertIn(b"Be brief.", again.stdout)
        # Nothing is written over, and a failed command ends a script.
        before = open(path, "rb").read()  # pylint: disable=consider-using-with
        self.refuse("chat", KJV, "--no-history", stdin=f"/save {path}\n".encode(),
                    says=["there is a file of this name"])
        self.assertEqual(open(path, "rb").read(), before)  # pylint: disable=consider-using-with
        self.refuse("chat", KJV, "--no-history", stdin=b"/load nowhere.json\n", says=["nowhere"])

    def test_commands_that_are_wrong(self):
        for line, says in [("/nonsense", "there is no command \"/nonsense\""),
                           ("/effort medium", "expected none, low, high or max"),
                           ("/thinking maybe", "expected show, fold or hide"),
                           ("/save", "expected a file's name"), ("/load", "expected a file's name"),
                           ("/result x", "no tool call waits"), ("/retry", "found none")]:
            self.refuse("chat", KJV, "--no-history", stdin=line.encode() + b"\n", says=[says])

    def test_slashes_retry_reset_and_effort(self):
        words = ["--effort", "none", "--max-tokens", "12", "--seed", "1"]
        path = self.path("slashes.json")
        self.chat(["//etc is a place", "/retry", "/effort low", "/reset", "Who?", f"/save {path}"],
                  *words)
        with open(path, encoding="utf-8") as stream:
            saved = json.load(stream)
        self.assertEqual(len(saved["messages"]), 2)
        self.assertEqual(saved["chat_template_kwargs"],
                         {"thinking": True, "thinking_effort": "low"})

    def test_results_of_calls_whatever_their_ids(self):
        def call(name, **more):
            return {**more, "function": {"name": name, "arguments": "{}"}}

        for number, ids in enumerate((({}, {}), ({"id": "a"}, {"id": "a"}),
                                      ({"id": "a"}, {"id": "b"}))):
            with self.subTest(ids):
                calls = [call("f", **ids[0]), call("g", **ids[1])]
                loaded, saved = self.path("calls.json"), self.path(f"results{number}.json")
                with open(loaded, "w", encoding="utf-8") as stream:
                    json.dump([{"role": "user", "content": "q"},
                               {"role": "assistant", "content": "", "tool_calls": calls}], stream)
                self.chat([f"/load {loaded}", "/result one", "/result two", "Thanks.",
                           f"/save {saved}"], "--max-tokens", "3")
                with open(saved, encoding="utf-8") as stream:
                    roles = [message["role"] for message in json.load(stream)["messages"]]
                self.assertEqual(roles, ["user", "assistant", "tool", "tool", "assistant", "user",
                                         "assistant"])
                self.refuse("chat", KJV, "--no-history", "--load", saved, stdin=b"/result x\n",
                            says=["no tool call waits"])

    def test_retry_costs_the_message_alone(self):
        result = self.chat([QUESTIONS[0], QUESTIONS[1], "/retry", "/stats"], *SAMPLING,
                           "--max-tokens", "8")
        prompt, reused, run = reused_and_run(result.stdout)
        self.assertGreater(reused, run)
        self.assertEqual(reused + run, prompt)

    def test_a_conversation_that_ends_with_a_message_can_be_answered(self):
        path = self.path("open.json")
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({"messages": [{"role": "user", "content": "Who?"}],
                       "add_generation_prompt": False, "reasoning_effort": "none"}, stream)
        words = ["--greedy", "--max-tokens", "8"]
        answer = self.chat(["/retry"], "--load", path, *words).stdout
        cold = self.succeed("run", KJV, "--json-messages", path, "--json", *words).stdout
        self.assertEqual(answer.decode(), json.loads(cold)["message"]["content"] + "\n")
        self.refuse("chat", KJV, "--no-history", stdin=b"/retry\n", says=["found none"])

    def test_saving_does_not_touch_what_was_loaded(self):
        path = self.path("loaded.json")
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({"model": "x", "messages": []}, stream)
        self.refuse("chat", KJV, "--no-history", stdin=f"/load {path}\n/save\n".encode(),
                    says=["expected a file's name"])
        self.refuse("chat", KJV, "--no-history", stdin=b"/load -\n", says=["found -"])

    def test_what_only_fails_later_is_refused_first(self):
        self.refuse("chat", KJV, "--no-history", "--max-tokens=-1", code=2, stdin=b"")
        self.refuse("chat", KJV, "--no-history", "--logit-bias", "99999=1", stdin=b"",
                    says=["logit_bias"])

    def test_thinking_that_is_hidden_is_mentioned(self):
        result = self.chat(["Who?"], "--max-tokens", "4")
        self.assertIn(b"only thinking came", result.stderr)

    def test_a_closed_standard_input_is_an_empty_one(self):
        command = f"exec '{self.binary}' chat '{KJV}' --no-history <&-"
        result = subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=60,
                                check=False)
        self.assertEqual((result.returncode, result.stdout), (0, b""))

    def test_a_line_with_a_backslash_goes_on(self):
        path = self.path("lines.json")
        self.chat(["one\\", "two", f"/save {path}"], "--max-tokens", "2")
        with open(path, encoding="utf-8") as stream:
            self.assertEqual(json.load(stream)["messages"][0]["content"], "one\ntwo")


class RunChatTest(BinaryTest):
    """`k3 run` in its chat form."""

    def test_a_prompt_is_a_users_message(self):
        words = ["--effort", "none", "--max-tokens", "16", "--greedy"]
        plain = self.succeed("run", KJV, "Who art thou?", "--chat", *words).stdout
        whole = json.loads(self.succeed("run", KJV, "Who art thou?", "--json", *words).stdout)
        self.assertEqual(whole["message"]["content"].encode() + b"\n", plain)
        self.assertEqual(whole["finish_reason"], "length")
        self.assertEqual(whole["usage"]["completion_tokens"], 16)
        request = {"messages": [{"role": "user", "content": "Who art thou?"}],
                   "reasoning_effort": "none"}
        path = self.path("request.json")
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(request, stream)
        same = self.succeed("run", KJV, "--json-messages", path, "--json", *words).stdout
        self.assertEqual(json.loads(same), whole)
        # The ids behind the rendered prompt are those of the answer.
        ids = self.succeed("run", KJV, "Who art thou?", "--chat", "--ids", *words).stdout.decode()
        parsed = json.loads(self.succeed("parse", KJV, ids.strip(), "--start", "response").stdout)
        self.assertEqual(parsed["content"], whole["message"]["content"])

    def test_system_tools_and_messages_are_in_the_prompt(self):
        tools = self.path("tools.json")
        with open(tools, "w", encoding="utf-8") as stream:
            json.dump([{"type": "function", "function": {"name": "look"}}], stream)

        def count(*words):
            result = self.succeed("run", KJV, "Who?", "--max-tokens", "3", "--json", *words)
            return json.loads(result.stdout)["usage"]["prompt_tokens"]

        plain = count("--effort", "none")
        self.assertGreater(count("--effort", "none", "--system", "Be brief."), plain)
        self.assertGreater(count("--effort", "none", "--tools", tools), plain)
        self.assertGreater(count("--effort", "low"), plain)

    def test_log_probabilities_are_part_of_the_answer(self):
        words = ["Who?", "--chat", "--effort", "none", "--max-tokens", "6", "--seed", "2",
                 "--logprobs", "3"]
        whole = json.loads(self.succeed("run", KJV, *words, "--json").stdout)
        lines = self.succeed("run", KJV, *words).stdout.splitlines()
        self.assertEqual(whole["logprobs"], [json.loads(line) for line in lines])
        self.assertEqual(len(whole["logprobs"]), whole["usage"]["completion_tokens"])
        self.assertEqual("".join(token["text"] for token in whole["logprobs"]),
                         whole["message"]["content"])
        self.refuse("run", KJV, "Who?", "--json", "--ids", says=["--ids"])

    def test_a_stop_string_ends_the_response(self):
        words = ["--effort", "none", "--max-tokens", "40", "--greedy", "--json"]
        whole = json.loads(self.succeed("run", KJV, "Who?", *words).stdout)["message"]["content"]
        stop = whole[10:16]
        cut = json.loads(self.succeed("run", KJV, "Who?", *words, "--stop", stop).stdout)
        self.assertEqual(cut["message"]["content"], whole[:whole.index(stop)])
        self.assertEqual(cut["finish_reason"], "stop")

    def test_empty_values_ask_for_the_chat_form_too(self):
        words = ["--max-tokens", "4", "--greedy", "--thinking", "show"]
        chat = self.succeed("run", KJV, "Who?", *words).stdout
        self.assertEqual(self.succeed("run", KJV, "Who?", "--system", "", *words).stdout, chat)
        self.refuse("run", KJV, "Who?", "--tools", "")
        self.refuse("run", KJV, "Who?", "--json-messages", "")

    def test_lists_take_one_word_each(self):
        words = ["--max-tokens", "3", "--ids"]
        biased = self.succeed("run", KJV, "--logit-bias", "5=100", "Hi", *words).stdout
        self.assertEqual(biased, b"5,5,5\n")
        self.succeed("run", KJV, "--stop-id", "6", "Hi", *words)

    def test_the_end_of_a_message_ends_every_form(self):
        words = ["--effort", "none", "--ignore-eos", "--logit-bias", "1954=100", "--max-tokens", "5"]
        self.assertEqual(self.succeed("run", KJV, "Hi", *words, "--ids").stdout, b"\n")
        whole = json.loads(self.succeed("run", KJV, "Hi", *words, "--json").stdout)
        self.assertEqual(whole["finish_reason"], "stop")

    def test_refusals(self):
        bad = self.path("bad.json")
        for content, says in [("{", "expected valid JSON"), ('[{"role": "robot"}]', "messages[0].role"),
                              ('[{"role":"user","content":[{"type":"image_url"}]}]', "images")]:
            with open(bad, "w", encoding="utf-8") as stream:
                stream.write(content)
            self.refuse("run", KJV, "--json-messages", bad, says=[bad, says])
        with open(bad, "w", encoding="utf-8") as stream:
            stream.write("{}")
        self.refuse("run", KJV, "x", "--tools", bad, says=[bad, "an array of tools"])
        with open(bad, "w", encoding="utf-8") as stream:
            stream.write("[]")
        self.refuse("run", KJV, "--json-messages", bad, says=["the conversation is empty"])
        self.refuse("run", KJV, "--chat", says=["empty"])
        self.refuse("run", KJV, "x", "--effort", "medium", code=2, says=["medium"])


class ChatAtATerminalTest(BinaryTest):
    """Typed at a pseudo-terminal."""

    def start(self, *words, **options):
        argv = [self.binary, "chat", KJV, "--history", self.path("history"), *words]
        program = PtyProgram(argv, **options)
        self.addCleanup(program.close)
        program.expect(PROMPT)
        return program

    @staticmethod
    def until(program, pattern):
        """Waits for the pattern; what came up to its end."""
        start = len(program.output()) - len(program.unseen())
        program.expect(pattern)
        return program.output()[start:len(program.output()) - len(program.unseen())]

    def leave(self, program):
        program.send(END_OF_INPUT)
        self.assertEqual(program.wait(), 0)

    def test_typing_answers_and_history(self):
        program = self.start("--max-tokens", "12", "--effort", "none")
        program.send(b"Who art thou?" + ENTER)
        program.expect(re.compile(rb"cut after 12 tokens"))
        program.expect(PROMPT)
        program.send(UP + ENTER)
        program.expect(re.compile(rb"cut after 12 tokens"))
        program.expect(PROMPT)
        messages = saved_conversation(program, PROMPT, self.path("typed.json"))
        self.assertEqual([m["content"] for m in messages[::2]], ["Who art thou?"] * 2)
        self.assertTrue(messages[1]["content"])
        self.leave(program)
        self.assertTrue(os.path.exists(self.path("history")))

    def test_utf8(self):
        program = self.start("--max-tokens", "2", "--effort", "none")
        text = "안녕 世界 🌍 é"
        program.send(text.encode() + ENTER)
        program.expect(b"cut after")
        program.expect(PROMPT)
        messages = saved_conversation(program, PROMPT, self.path("utf8.json"))
        self.assertEqual(messages[0]["content"], text)
        self.leave(program)

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        program = self.start("--max-tokens", "1000000", "--effort", "none")
        for turn in range(3):
            program.send(b"Go on for ever." + ENTER)
            program.expect(b"\n")
            program.expect(re.compile(rb"[^>]{60}", re.DOTALL))
            program.send(INTERRUPT)
            program.expect(b"[stopped]")
            program.expect(PROMPT)
            messages = saved_conversation(program, PROMPT, self.path(f"stopped{turn}.json"))
            self.assertEqual(len(messages), 2 * turn + 2)
            self.assertGreater(len(messages[-1]["content"]), 10)
        # Also while a command waits for what goes on behind it.
        program.send(b"/stats" + ENTER)
        program.send(INTERRUPT)
        program.expect(b"session: ")
        program.expect(PROMPT)
        # At the prompt it drops the line.
        program.send(b"never mind" + INTERRUPT)
        program.expect(PROMPT)
        self.assertEqual(len(saved_conversation(program, PROMPT, self.path("still.json"))), 6)
        self.leave(program)

    def test_thinking_is_dim_or_folded(self):
        program = self.start("--max-tokens", "30")
        program.send(b"Who?" + ENTER)
        shown = self.until(program, b"cut after 30 tokens")
        self.assertIn(b"\x1b[2m", shown)
        program.expect(PROMPT)
        program.send(b"/thinking fold" + ENTER)
        program.expect(PROMPT)
        program.send(b"Who?" + ENTER)
        folded = self.until(program, b"cut after 30 tokens")
        program.expect(PROMPT)
        self.assertRegex(strip_escapes(folded), rb"thought for [0-9.]+ s, \d+ tokens")
        messages = saved_conversation(program, PROMPT, self.path("folded.json"))
        words = messages[-1]["reasoning_content"].split()
        self.assertNotIn(" ".join(words[:4]).encode(), strip_escapes(folded))
        program.send(b"/thinking" + ENTER)
        program.expect(" ".join(words[:3]).encode())
        program.expect(PROMPT)
        self.leave(program)

    def test_a_paste_of_100_kb_is_one_message(self):
        program = self.start("--max-tokens", "2", "--effort", "none")
        lines = "".join(f"{n} verily 한 🌍 \x1b[31mred\n" for n in range(3600))
        self.assertGreater(len(lines.encode()), 100_000)
        # As a system message, which takes no time to read.
        program.send(b"/system " + pasted(lines.encode()))
        program.expect(b"pasted #1, 3,600 lines")
        program.send(ENTER)
        program.expect(PROMPT)
        content = saved_conversation(program, PROMPT, self.path("pasted.json"))[0]["content"]
        self.assertEqual(content.replace("\x1b", ""), lines.replace("\x1b", "").strip())
        # Reading it can be stopped, and the message is taken back.
        program.send(b"Who?" + ENTER)
        program.expect(b"reading the prompt")
        program.send(INTERRUPT)
        program.expect(b"[stopped]")
        program.expect(PROMPT)
        self.assertEqual(len(saved_conversation(program, PROMPT, self.path("stopped.json"))), 1)
        self.leave(program)

    def test_resizing(self):
        program = self.start("--max-tokens", "200", "--effort", "none")
        program.send(b"a line that is typed while the window changes")
        program.resize(rows=10, columns=20)
        program.send(b" and changes")
        program.resize(rows=40, columns=120)
        program.send(ENTER)
        program.resize(rows=5, columns=8)
        program.expect(b"cut after")
        program.expect(PROMPT)
        program.resize(rows=24, columns=80)
        messages = saved_conversation(program, PROMPT, self.path("resized.json"))
        self.assertEqual(messages[0]["content"],
                         "a line that is typed while the window changes and changes")
        self.leave(program)

    def test_a_failure_goes_on_and_does_not_drive_the_terminal(self):
        program = self.start("--max-tokens", "2", "--effort", "none")
        program.send(pasted(b"/load \x1b]0;title\x07nowhere.json") + ENTER)
        shown = self.until(program, b"NotFound")
        shown += self.until(program, PROMPT)
        self.assertNotIn(b"\x1b]0;", shown)
        program.send(b"Who?" + ENTER)
        program.expect(b"cut after")
        program.expect(PROMPT)
        self.leave(program)


if __name__ == "__main__":
    k3_binary.main()
