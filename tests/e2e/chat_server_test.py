"""`k3 chat --server`: the same answers as with a model of its own, and servers that fail."""

import http.server
import json
import re
import threading
import time

import k3_binary
from k3_binary import KJV, NANO, BinaryTest
from k3_server import Server
from pty_terminal import END_OF_INPUT, ENTER, INTERRUPT, PtyProgram, saved_conversation

PROMPT = b"> "
STATS = re.compile(r"prompt: (\d+) tokens, (\d+) reused, .*; generated: (\d+) tokens in .*; "
                   r"finished: (\w+)")
LINES = ["What is 347 + 85?", "/stats", "Sort these words: sun moon star", "/stats", "/retry",
         "/stats", "/effort none", "Repeat: river, apple.", "/stats", "/system Be brief.",
         "//etc is what?", "/stats"]
# A server holds calls to the tools that are declared; this is one that the model calls by itself.
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}]
CALLS = ["What is the weather in Oslo?", "/stats", "/result sunny", "/stats"]


def without_stats(output):
    """The lines that are no statistics, and of those that are prompt, generated, finished."""
    lines = output.decode().splitlines()
    kept = [l for l in lines if not STATS.match(l) and not l.startswith("session: ")]
    stats = [STATS.match(l) for l in lines]
    return kept, [s.group(1, 3, 4) for s in stats if s]


class RemoteTest(BinaryTest):
    def chat(self, lines, *words, check="succeed"):
        text = "".join(line + "\n" for line in lines).encode()
        return getattr(self, check)("chat", "--no-history", *words, stdin=text)


class SameAnswersTest(RemoteTest):
    """One server for all of them, and the model itself beside it."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.binary, NANO, "--log-level", "warn").__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None, None, None)

    def same(self, lines, *words):
        """Asks both; the messages of the conversation."""
        self.count = getattr(self, "count", 0) + 1
        found = []
        for name, who in [("remote", ["--server", self.server.base]), ("local", [NANO])]:
            path = self.path(f"{name}{self.count}.json")
            result = self.chat([*lines, f"/save {path}"], *who, "--thinking", "show", *words)
            with open(path, encoding="utf-8") as stream:
                saved = json.load(stream)
            shown = without_stats(result.stdout.replace(path.encode(), b"FILE"))
            found.append((saved, shown, result.stderr))
        self.assertEqual(*found)
        return found[0][0]["messages"]

    def test_turns_commands_and_files(self):
        for seed in ("0", "7", str(2**64 - 1)):
            messages = self.same(LINES, "--seed", seed)
            self.assertEqual(len(messages), 9)

    def test_every_option_that_draws(self):
        for words in (["--greedy"], ["--temperature", "1.3", "--top-k", "20", "--top-p", "0.7"],
                      ["--temperature", "0.8", "--min-p", "0.05", "--repetition-penalty", "1.1",
                       "--presence-penalty", "0.3", "--frequency-penalty", "-0.2"],
                      ["--logit-bias", "300=3.5", "--logit-bias", "17=-100", "--seed", "3"],
                      ["--stop", "moon", "--stop", "2"], ["--max-tokens", "9"]):
            with self.subTest(words):
                self.same(LINES[:6], *words)

    def test_tools_and_their_results(self):
        path = self.path("tools.json")
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(TOOLS, stream)
        messages = self.same(CALLS, "--tools", path, "--greedy")
        self.assertEqual([m["role"] for m in messages], ["user", "assistant", "tool", "assistant"])
        call = messages[1]["tool_calls"][0]
        self.assertEqual((call["id"], call["function"]["name"]), ("call_1", "get_weather"))
        self.assertIn("city", json.loads(call["function"]["arguments"]))

    def test_a_saved_conversation_goes_on(self):
        path = self.path("begun.json")
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({"messages": [{"role": "user", "content": "What is 6 + 7?"}],
                       "reasoning_effort": "low", "add_generation_prompt": False}, stream)
        self.same(["/retry", "And 3 + 4?", f"/load {path}", "/retry"], "--load", path)

    def test_later_turns_reuse_what_the_server_has(self):
        words = "Repeat these words: " + " ".join(["river", "apple", "moon"] * 60)
        result = self.chat([words, "/stats"], "--server", self.server.base + "/v1/")
        self.server.wait_idle()
        path = self.path("first.json")
        self.chat([words, f"/save {path}"], "--server", self.server.base)
        self.server.wait_idle()
        second = self.chat(["And 3 + 4?", "/stats"], "--server", self.server.base, "--load", path)
        first_prompt = int(STATS.search(result.stdout.decode()).group(1))
        self.assertGreater(int(STATS.search(second.stdout.decode()).group(2)), first_prompt - 16)
        self.assertIn(f"kept by {self.server.base}", second.stdout.decode())

    def test_what_the_server_refuses_is_one_line(self):
        for words, says in [(["--logit-bias", "99999=1"], "400: logit_bias: expected ids"),
                            (["--stop", "a"] * 17, "400: stop: expected")]:
            result = self.chat(["Hi"], "--server", self.server.base, *words, check="refuse")
            self.assertEqual(result.stderr.decode().count("\n"), 1)
            self.assertIn(f"k3: InvalidArgument: {self.server.base}: {says}",
                          result.stderr.decode())

    def test_options_that_do_not_go_together(self):
        url = ["--server", self.server.base]
        for words in ([NANO, *url], [], [*url, "--threads", "2"], [NANO, "--api-key-file", "x"],
                      ["--server", ""]):
            self.refuse("chat", *words, code=2, stdin=b"")
        for words, says in [([*url, "--max-tokens", "0"], "--max-tokens"),
                            ([*url, "--stop", b"\xff"], "--stop"),
                            ([*url, "--api-key-file", self.path("none")], "none"),
                            (["--server", "https://127.0.0.1"], "https is not supported"),
                            (["--server", "127.0.0.1:80"], "expected a URL")]:
            self.refuse("chat", "--no-history", *words, stdin=b"", says=[says])


class ServersLifeTest(RemoteTest):
    def test_keys(self):
        keys = self.path("keys")
        with open(keys, "w", encoding="utf-8") as stream:
            stream.write("# one a line\n\nfirst-key\nsecond-key\n")
        with Server(self.binary, NANO, "--api-key-file", keys, "--log-level", "warn") as server:
            result = self.chat(["Hi"], "--server", server.base, check="refuse")
            self.assertEqual(result.stderr.decode(),
                             f"k3: InvalidArgument: {server.base}: 401: a valid API key is needed, "
                             "as in `Authorization: Bearer KEY`; --api-key-file gives one\n")
            self.chat(["Hi"], "--server", server.base, "--api-key-file", keys)
        self.refuse("chat", "--server", server.base, stdin=b"",
                    says=[f"Unavailable: {server.base}: no connection: Connection refused"])


class TerminalTest(BinaryTest):
    """Typed at a pseudo-terminal."""

    def start(self, server, *words):
        argv = [self.binary, "chat", "--server", server.base, "--no-history", *words]
        program = PtyProgram(argv)
        self.addCleanup(program.close)
        program.expect(b"Ctrl-D leaves")
        program.expect(PROMPT)
        return program

    def await_free(self, server):
        """The server stops within one pass of the client's leaving."""
        deadline = time.monotonic() + 10
        while server.metrics()["k3_streams_decoding"] > 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_ctrl_c_stops_the_answer_and_keeps_what_came(self):
        with Server(self.binary, KJV, "--log-level", "warn") as server:
            program = self.start(server, "--max-tokens", "50000", "--effort", "none")
            for turn in range(3):
                program.send(b"Go on for ever." + ENTER)
                program.expect(b"\n")
                program.expect(re.compile(rb"[^>]{60}", re.DOTALL))
                program.send(INTERRUPT)
                program.expect(b"[stopped]")
                program.expect(PROMPT)
                self.await_free(server)
                messages = saved_conversation(program, PROMPT, self.path(f"stopped{turn}.json"))
                self.assertEqual(len(messages), 2 * turn + 2)
                self.assertGreater(len(messages[-1]["content"]), 10)
            program.send(b"/stats" + ENTER)
            program.expect(b"stopped and not counted")
            program.expect(PROMPT)
            # While the prompt is read, before anything came: the message is taken back.
            program.send(b"/system " + b"verily " * 60_000 + ENTER)
            program.expect(PROMPT)
            program.send(b"Who?" + ENTER)
            program.expect(b"reading the prompt")
            program.send(INTERRUPT)
            program.expect(b"[stopped]")
            program.expect(PROMPT)
            self.assertEqual(len(saved_conversation(program, PROMPT, self.path("read.json"))), 7)
            # A server that is gone is a failure to read, and the program goes on.
            server.kill()
            program.send(b"Who?" + ENTER)
            program.expect(b"Unavailable")
            program.expect(PROMPT)
            self.assertEqual(len(saved_conversation(program, PROMPT, self.path("gone.json"))), 7)
            program.send(END_OF_INPUT)
            self.assertEqual(program.wait(), 0)


class FakeServer:
    """Answers as its `answer` says: status, type and body."""

    def __init__(self):
        self.models = (200, "application/json", b'{"data": [{"id": "fake"}]}')
        self.answer = None
        self.bodies = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def reply(self, status, content_type, body):
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):  # pylint: disable=invalid-name
                self.reply(*outer.models)

            def do_POST(self):  # pylint: disable=invalid-name
                size = int(self.headers["Content-Length"])
                outer.bodies.append(json.loads(self.rfile.read(size)))
                self.reply(*outer.answer)

            def log_message(self, *_):  # pylint: disable=arguments-differ
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def stream(self, *events):
        """Deltas as dicts, anything else as it is."""
        frames = []
        for event in events:
            if isinstance(event, dict) and "choices" not in event and "error" not in event:
                event = {"choices": [{"index": 0, "delta": event, "finish_reason": None}]}
            text = event if isinstance(event, str) else json.dumps(event)
            frames.append(f"data: {text}\n\n")
        self.answer = (200, "text/event-stream", "".join(frames).encode())


def end(reason):
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def call(index, **fields):
    return {"tool_calls": [{"index": index, **fields}]}


class FakeServersTest(RemoteTest):
    def setUp(self):
        super().setUp()
        self.fake = FakeServer()
        self.addCleanup(self.fake.close)

    def refused(self, *says):
        result = self.chat(["Hi"], "--server", self.fake.base, check="refuse")
        lines = result.stderr.decode().splitlines()
        self.assertEqual(len(lines), 1, lines)
        for word in says:
            self.assertIn(word, lines[0])
        return result

    def test_errors_are_one_line_with_their_status(self):
        for status, code, message in [
                (429, "ResourceExhausted", "the queue is full"), (503, "Unavailable", "draining"),
                (404, "NotFound", "model: there is no model x"), (500, "Internal", "oh"),
                (400, "InvalidArgument", "messages: 9 tokens\nleave no room"),
                (502, "Unavailable", None), (301, "InvalidArgument", None)]:
            body = b"<html>" if message is None else json.dumps(
                {"error": {"message": message, "type": "x", "param": None, "code": None}}).encode()
            self.fake.answer = (status, "application/json", body)
            self.refused(f"k3: {code}: {self.fake.base}: {status}: ",
                         "<html>" if message is None else message.replace("\n", " "))

    def test_errors_in_the_middle_of_an_answer(self):
        failure = {"error": {"message": "the server is full", "code": "rate_limit_exceeded"}}
        self.fake.stream({"content": "Half"}, failure, "[DONE]")
        result = self.refused(f"ResourceExhausted: {self.fake.base}: the server is full")
        self.assertEqual(result.stdout, b"Half\n")
        self.fake.stream({"content": "Half"})
        self.refused("Unavailable", "ended without saying why")

    def test_what_is_no_answer_is_said(self):
        for event in ("{", "[]", "{}", '{"choices": 3}', {"tool_calls": 1}, call(None),
                      call(1, function={"name": "x"}), call(-1, function={"name": "x"}), call(0),
                      call(2**40, function={}), call(0, incomplete=True)):
            with self.subTest(event):
                self.fake.stream(event, end("stop"), "[DONE]")
                self.refused("Corruption", self.fake.base)
        self.fake.stream(call(0, function={"name": "f", "arguments": "{}"}), {"content": "x"},
                         call(0, function={"arguments": "{}"}))
        self.refused("Corruption", "goes on")
        self.fake.answer = (200, "application/json", b"{}")
        self.refused("Corruption", "a stream of events")
        for models in ((200, "text/html", b"<html>"), (200, "x", b'{"data": []}')):
            self.fake.models = models
            self.refused("Corruption", "a list of models")
        self.fake.models = (503, "application/json", b'{"error": {"message": "it loads"}}')
        self.refused("Unavailable", "503: it loads")

    def test_calls_and_those_that_are_not_complete(self):
        path = self.path("calls.json")
        self.fake.stream({"role": "assistant"}, {"reasoning_content": "Hm."},
                         {"content": "I look."},
                         call(0, id="a", function={"name": "f", "arguments": ""}),
                         call(0, function={"arguments": '{"x": '}),
                         call(0, function={"arguments": "1}"}),
                         call(1, function={"name": "g", "arguments": "{}"}),
                         call(2, function={"name": "h", "arguments": '{"y": "'}),
                         call(2, incomplete=True), end("tool_calls"), "[DONE]")
        result = self.chat(["Hi", f"/save {path}"], "--server", self.fake.base)
        self.assertTrue(result.stdout.startswith(b'I look.\nf({"x": 1})\ng({})\nh({"y": "\n'),
                        result.stdout)
        with open(path, encoding="utf-8") as stream:
            answer = json.load(stream)["messages"][1]
        self.assertEqual(answer["reasoning_content"], "Hm.")
        self.assertEqual([c["function"] for c in answer["tool_calls"]],
                         [{"name": "f", "arguments": '{"x": 1}'}, {"name": "g", "arguments": "{}"}])

    def test_only_what_was_asked_for_is_sent(self):
        self.fake.stream({"content": "Yes."}, end("stop"), "[DONE]")
        self.chat(["Hi"], "--server", self.fake.base)
        self.assertEqual(self.fake.bodies[-1], {
            "model": "fake", "messages": [{"role": "user", "content": "Hi"}], "stream": True,
            "stream_options": {"include_usage": True}, "max_tokens": 4096, "seed": 0,
            "chat_template_kwargs": {"thinking": True, "thinking_effort": "max"}})


if __name__ == "__main__":
    k3_binary.main()
