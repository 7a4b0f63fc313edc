"""`k3 serve` from outside: answers, streams, refusals, the cache across restarts, keys, draining."""

import http.client
import json
import signal
import threading
import time

import k3_binary
from k3_binary import NANO, BinaryTest
from k3_server import Server

QUESTION = [{"role": "user", "content": "What is 347 + 85?"}]
WORDS = "Repeat these words: " + " ".join(["river", "apple", "moon", "sun", "stone"] * 60)
CHAT = "/v1/chat/completions"


class AnswersTest(BinaryTest):
    """One server for all of them."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.binary, NANO, "--log-level", "warn").__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None, None, None)

    def test_it_answers_as_the_command_line_does(self):
        cold = json.loads(self.succeed("run", NANO, QUESTION[0]["content"], "--chat", "--json",
                                       "--max-tokens", "100").stdout)
        body = self.server.chat(QUESTION)
        message = body["choices"][0]["message"]
        self.assertEqual(message["content"], cold["message"]["content"])
        self.assertEqual(message["reasoning_content"], cold["message"]["reasoning_content"])
        self.assertEqual(body["usage"]["prompt_tokens"], cold["usage"]["prompt_tokens"])

    def test_deltas_joined_are_the_unstreamed_answer(self):
        for seed in range(6):
            fields = {"messages": [{"role": "user", "content": "Tell me of the sea."}],
                      "seed": seed, "temperature": 1.3, "max_tokens": 60}
            whole = self.server.chat(**fields)["choices"][0]
            joined = {"content": "", "reasoning_content": ""}
            finish = None
            for event in self.server.stream(CHAT, fields):
                for choice in event["choices"]:
                    for name in joined:
                        piece = choice["delta"].get(name)
                        if "role" not in choice["delta"]:
                            self.assertNotEqual(piece, "", "empty fields are left out")
                        joined[name] += piece or ""
                    finish = choice["finish_reason"] or finish
            self.assertEqual(joined["content"], whole["message"]["content"] or "")
            self.assertEqual(joined["reasoning_content"],
                             whole["message"].get("reasoning_content", ""))
            self.assertEqual(finish, whole["finish_reason"])

    def test_a_turn_reuses_all_of_the_turns_before(self):
        messages = [{"role": "user", "content": WORDS}]
        first = self.server.chat(messages, max_tokens=50)
        self.server.wait_idle()
        messages += [first["choices"][0]["message"], {"role": "user", "content": "And 3 + 4?"}]
        second = self.server.chat(messages)
        usage = second["usage"]
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"],
                                first["usage"]["total_tokens"] - 48)
        salted = self.server.chat(messages, cache_salt="somebody else")
        self.assertEqual(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(salted["choices"][0]["message"], second["choices"][0]["message"])

    def test_what_is_not_supported_is_refused_by_name(self):
        for field, value in [("made_up", 1), ("audio", {}), ("functions", []), ("top_p", 7),
                             ("temperature", "hot"), ("n", 0), ("reasoning_effort", "medium"),
                             ("stream_options", {"include_usage": True}), ("tool_choice", "maybe"),
                             ("logit_bias", {"x": 1}), ("seed", 1.5), ("max_tokens", -3)]:
            status, body = self.server.post(CHAT, {"messages": QUESTION, field: value})
            self.assertEqual(status, 400, (field, body))
            self.assertEqual(sorted(body["error"]), ["code", "message", "param", "type"])
            self.assertTrue(str(body["error"]["param"]).startswith(field), body)
            self.assertIn(field, body["error"]["message"])

    def test_what_is_compressed_is_not_read_as_if_it_were_plain(self):
        body = {"messages": QUESTION, "max_tokens": 1}
        status, headers, raw = self.server.request("POST", CHAT, body,
                                                   {"Content-Encoding": "gzip"})
        self.assertEqual(status, 415)
        self.assertEqual(json.loads(raw)["error"]["code"], "unsupported_content_encoding")
        self.assertEqual(headers.get("Accept-Encoding"), "identity")
        self.assertEqual(self.server.request("POST", CHAT, body,
                                             {"Content-Encoding": "identity"})[0], 200)

    def test_short_forms_say_the_same(self):
        tools = [{"type": "function", "function": {"name": "get", "parameters": {}}}]
        for field, short, long in [
                ("response_format", "json_object", {"type": "json_object"}),
                ("tool_choice", {"name": "get"}, {"type": "function",
                                                  "function": {"name": "get"}})]:
            more = {"tools": tools} if field == "tool_choice" else {}
            answers = [self.server.chat(QUESTION, max_tokens=40.0, **{field: value}, **more)
                       for value in (short, long)]
            messages = [answer["choices"][0]["message"] for answer in answers]
            for call in [call for message in messages for call in message.get("tool_calls", [])]:
                call.pop("id")
            self.assertEqual(messages[0], messages[1])

    def test_a_long_list_of_values_is_compiled_at_once(self):
        schema = {"enum": [f"value {n}" for n in range(1000)]}
        answer = self.server.chat(QUESTION, max_tokens=100, reasoning_effort="none",
                                  response_format={"type": "json_schema", "json_schema": {
                                      "name": "n", "schema": schema}})["choices"][0]
        self.assertIn(json.loads(answer["message"]["content"]), schema["enum"])

    def test_a_schema_outside_the_subset_names_its_place(self):
        schema = {"type": "object", "properties": {"a": {"type": "string", "format": "email"}}}
        status, body = self.server.post(CHAT, {"messages": QUESTION, "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
        self.assertEqual(status, 400)
        self.assertIn("properties.a.format", body["error"]["message"])

    def test_a_prompt_that_is_too_long_is_refused_before_a_stream(self):
        status, body = self.server.post("/v1/completions", {
            "prompt": [5] * 1_048_576, "stream": True, "max_tokens": 1})
        self.assertEqual(status, 400, body)
        self.assertEqual(body["error"]["code"], "context_length_exceeded")

    def test_structured_output_is_what_the_schema_says(self):
        schema = {"type": "object", "additionalProperties": False, "required": ["a", "b"],
                  "properties": {"a": {"type": "array", "items": {"type": "integer"},
                                       "maxItems": 4}, "b": {"enum": ["x", "y"]}}}
        for seed in range(8):
            answer = self.server.chat(QUESTION, seed=seed, temperature=1.0, max_tokens=400,
                                      response_format={"type": "json_schema", "json_schema": {
                                          "name": "n", "schema": schema}})["choices"][0]
            if answer["finish_reason"] != "stop":
                continue
            value = json.loads(answer["message"]["content"])
            self.assertEqual(sorted(value), ["a", "b"])
            self.assertTrue(len(value["a"]) <= 4 and all(type(n) is int for n in value["a"]))
            self.assertIn(value["b"], ["x", "y"])

    def test_tokens_and_text(self):
        status, body = self.server.post("/tokenize", {"prompt": "In the beginning"})
        self.assertEqual(status, 200)
        self.assertEqual(body["count"], len(body["tokens"]))
        status, back = self.server.post("/detokenize", {"tokens": body["tokens"]})
        self.assertEqual((status, back["prompt"]), (200, "In the beginning"))

    def test_routes_that_are_not_there(self):
        self.assertEqual(self.server.post("/v1/embeddings", {})[0], 404)
        for method, path, allowed in [("GET", CHAT, "POST, OPTIONS"),
                                      ("PUT", "/tokenize", "POST, OPTIONS"),
                                      ("POST", "/health", "GET, HEAD, OPTIONS"),
                                      ("DELETE", "/v1/models", "GET, HEAD, OPTIONS")]:
            status, headers, raw = self.server.request(method, path)
            self.assertEqual(status, 405)
            self.assertEqual(json.loads(raw)["error"]["code"], "method_not_allowed")
            self.assertEqual(headers.get("Allow"), allowed)
        self.assertEqual(self.server.post(CHAT, {"messages": QUESTION, "model": "other"})[0], 404)

    def test_a_client_that_leaves_during_a_long_prompt_frees_its_place(self):
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": [7, 8, 9] * 30_000, "max_tokens": 5, "cache_salt": "leaver"}).encode())
        deadline = time.monotonic() + 30
        while self.server.metrics()["k3_streams_running"] == 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        connection.close()
        left = time.monotonic()
        while self.server.metrics()["k3_streams_running"] > 0:
            self.assertLess(time.monotonic() - left, 10)
            time.sleep(0.01)


class OperationsTest(BinaryTest):
    def test_a_restart_finds_its_prefixes_on_disk(self):
        messages = [{"role": "user", "content": WORDS}]
        options = [NANO, "--cache-dir", self.path("prefixes"), "--log-level", "warn"]
        with Server(self.binary, *options) as server:
            first = server.chat(messages, max_tokens=30)
            self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            server.wait_idle()
        with Server(self.binary, *options) as server:
            second = server.chat(messages, max_tokens=30)
            self.assertGreater(second["usage"]["prompt_tokens_details"]["cached_tokens"],
                               first["usage"]["prompt_tokens"] - 32)
            self.assertEqual(second["choices"][0]["message"], first["choices"][0]["message"])
            self.assertGreaterEqual(server.metrics()['k3_cache_hits_total{kind="disk"}'], 1)
            # Two servers must not write into one directory.
            self.refuse("serve", NANO, "--port", "0", "--cache-dir", self.path("prefixes"),
                        says=["prefixes"])

    def test_killed_while_it_writes_it_starts_again_and_says_the_same(self):
        options = [NANO, "--cache-dir", self.path("prefixes"), "--log-level", "warn"]
        prompts = [[{"role": "user", "content": f"{WORDS} {n}"}] for n in range(4)]
        expected = {}
        for attempt in range(4):
            with Server(self.binary, *options) as server:
                for n, messages in enumerate(prompts[:attempt + 1]):
                    answer = server.chat(messages, max_tokens=10)["choices"][0]["message"]
                    self.assertEqual(expected.setdefault(n, answer), answer)
                server.kill()
        result = self.succeed("cache", "verify", "--cache-dir", self.path("prefixes"))
        self.assertEqual(result.returncode, 0)

    def test_keys_and_origins(self):
        keys = self.path("keys")
        with open(keys, "w", encoding="utf-8") as stream:
            stream.write("# one a line\nfirst-key\nsecond-key\n")
        with Server(self.binary, NANO, "--api-key-file", keys, "--cors-origin",
                    "https://app.example", "--log-level", "warn") as server:
            body = {"messages": QUESTION, "max_tokens": 2}
            self.assertEqual(server.post(CHAT, body)[0], 401)
            for key, status in [("first-key", 200), ("second-key", 200), ("first-ke", 401)]:
                headers = {"Authorization": f"Bearer {key}", "Origin": "https://app.example"}
                found, answered, _ = server.request("POST", CHAT, body, headers)
                self.assertEqual(found, status)
                self.assertEqual(answered.get("Access-Control-Allow-Origin"),
                                 "https://app.example")
            headers = {"Authorization": "Bearer first-key", "Origin": "https://other.example",
                       "Content-Type": "text/plain"}
            self.assertEqual(server.request("POST", CHAT, body, headers)[0], 403)
            self.assertEqual(server.health(), "ready")
        with open(keys, "w", encoding="utf-8") as stream:
            stream.write("# none\n")
        self.refuse("serve", NANO, "--port", "0", "--api-key-file", keys, says=["keys"])

    def test_sigterm_lets_a_stream_finish_and_refuses_new_ones(self):
        with Server(self.binary, NANO, "--log-level", "warn") as server:
            events = []
            done = threading.Event()

            def read():
                events.extend(server.stream("/v1/completions", {
                    "prompt": "And the LORD said", "max_tokens": 1500, "seed": 1,
                    "temperature": 1.0}))
                done.set()

            reader = threading.Thread(target=read)
            reader.start()
            deadline = time.monotonic() + 30
            while server.metrics()["k3_streams_decoding"] == 0:
                self.assertLess(time.monotonic(), deadline)
            server.process.send_signal(signal.SIGTERM)
            while server.health() == "ready":
                self.assertLess(time.monotonic(), deadline)
            reader.join()
            self.assertTrue(done.is_set())
            self.assertIn(events[-1]["choices"][0]["finish_reason"], ("stop", "length"))
            self.assertEqual(server.process.wait(30), 0)

    def test_whoever_outlasts_the_grace_is_told(self):
        with Server(self.binary, NANO, "--log-level", "warn", "--grace-seconds", "1",
                    "--max-streams", "1") as server:
            texts, statuses = [], []
            body = {"prompt": "And the LORD said", "max_tokens": 900_000, "seed": 1,
                    "temperature": 1.5, "logit_bias": {"2466": -100}}
            threads = [
                threading.Thread(target=lambda: texts.append(server.request(
                    "POST", "/v1/completions", {**body, "stream": True})[2].decode())),
                threading.Thread(target=lambda: statuses.append(server.post(
                    "/v1/completions", body)[0]))]
            threads[0].start()
            deadline = time.monotonic() + 30
            while server.metrics()["k3_streams_decoding"] == 0:
                self.assertLess(time.monotonic(), deadline)
            threads[1].start()
            while server.metrics()['k3_queue_length{class="foreground"}'] == 0:
                self.assertLess(time.monotonic(), deadline)
            server.process.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join()
            self.assertIn('"error"', texts[0])
            self.assertTrue(texts[0].endswith("data: [DONE]\n\n"))
            self.assertEqual(statuses, [503])

    def test_choices_beyond_the_queue_are_refused_together(self):
        with Server(self.binary, NANO, "--log-level", "warn", "--max-streams", "1",
                    "--max-queue", "3") as server:
            self.assertEqual(len(server.chat(QUESTION, n=4)["choices"]), 4)
            status, body = server.post(CHAT, {"messages": QUESTION, "n": 5})
            self.assertEqual((status, body["error"]["param"]), (400, "n"))

    def test_without_tools_there_are_no_calls(self):
        with Server(self.binary, NANO, "--log-level", "warn") as server:
            for content in ("What is the weather in Strex?", "", "71.9 inches in metres?"):
                answer = server.chat([{"role": "user", "content": content}], max_tokens=60)
                self.assertNotIn("tool_calls", answer["choices"][0]["message"])
            for parameters in ({"type": "object", "properties": {}}, {}, None):
                tools = [{"type": "function", "function": {"name": "get",
                                                           "parameters": parameters}}]
                message = server.chat([{"role": "user", "content": "Set an alarm at 18:20"}],
                                      tools=tools, tool_choice="required", temperature=1.2,
                                      seed=1)["choices"][0]["message"]
                self.assertEqual(message["tool_calls"][0]["function"]["arguments"], "{}")

    def test_bad_options_are_refused_with_their_reason(self):
        self.refuse("serve", self.path("nowhere"), "--port", "0", says=["nowhere"])
        self.refuse("serve", NANO, "--port", "70000", code=2, says=["--port"])
        self.refuse("serve", NANO, "--cache-bytes", "lots", code=2, says=["--cache-bytes"])
        self.refuse("serve", NANO, "--port", "0", "--cache-bytes", "4G", "--memory-bytes", "1G",
                    says=["4294967296"])
        self.refuse("serve", NANO, "--port", "0", "--log-level", "loud", says=["loud"])
        with Server(self.binary, NANO, "--log-level", "off") as server:
            self.refuse("serve", NANO, "--port", str(server.port), says=[str(server.port)])

    def test_metrics_are_prometheus_text(self):
        with Server(self.binary, NANO, "--log-level", "warn") as server:
            server.chat(QUESTION)
            server.wait_idle()  # figures are counted behind the answer
            _, headers, raw = server.request("GET", "/metrics")
            self.assertTrue(headers["Content-Type"].startswith("text/plain; version=0.0.4"))
            for name in ("k3_first_token_seconds_bucket", "k3_queue_length", "k3_batch_tokens",
                         "k3_cache_misses_total", "k3_tokens_total", "k3_cache_bytes"):
                self.assertIn(name, raw.decode())

    def test_logs_are_json_lines_without_what_was_said(self):
        with Server(self.binary, NANO) as server:
            server.chat([{"role": "user", "content": "Add 6 and 73."}])
        lines = [json.loads(line) for line in server.log]
        self.assertIn("completion", {line["event"] for line in lines})
        self.assertNotIn("Add 6", "".join(server.log))


if __name__ == "__main__":
    k3_binary.main()
