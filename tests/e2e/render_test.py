"""k3 render against golden prompts, an independent renderer and random requests."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))

import k3_binary  # noqa: E402 pylint: disable=wrong-import-position
import xtml_oracle  # noqa: E402 pylint: disable=wrong-import-position
from k3_binary import KJV  # noqa: E402 pylint: disable=wrong-import-position
from xtml_cases import golden_requests  # noqa: E402 pylint: disable=wrong-import-position

MARKER_IDS = {"<|end_of_msg|>": 1954, "<|open|>": 1955, "<|close|>": 1956, "<|sep|>": 1957}
FIRST_CONTROL_ID = 1952
RANDOM_SEED = 4
RANDOM_REQUESTS = 300


def read_cases():
    """Every golden case by its name."""
    return {name.removesuffix(".json"): xtml_oracle.read_json(os.path.join(xtml_oracle.CASES, name))
            for name in sorted(os.listdir(xtml_oracle.CASES))}


class RenderTest(k3_binary.BinaryTest):

    @classmethod
    def setUpClass(cls):
        cls.cases = read_cases()
        cls.good = {name: case for name, case in cls.cases.items() if "segments" in case}

    def write(self, name, request):
        """The path of a file with this request; half of them are pure ASCII."""
        path = self.path(name + ".json")
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(request, stream, ensure_ascii=len(name) % 2 == 0)
        return path

    def render_all(self, requests, *words):
        """Runs k3 render on each request of a dict, several at a time."""
        def run(entry):
            name, request = entry
            return name, self.k3("render", KJV, self.write(name, request), *words)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return dict(pool.map(run, requests.items()))

    def output_of(self, name, result):
        self.assertEqual(result.returncode, 0, f"{name}: {result.stderr.decode()}")
        return result.stdout

    def test_prompts_to_the_byte(self):
        prompts = xtml_oracle.read_json(os.path.join(xtml_oracle.GOLDEN, "prompts.json"))
        results = self.render_all({name: case["request"] for name, case in prompts.items()})
        for name, case in prompts.items():
            with self.subTest(prompt=name):
                self.assertEqual(self.output_of(name, results[name]).decode(), case["prompt"])

    def test_golden_cases(self):
        results = self.render_all({name: case["request"] for name, case in self.good.items()},
                                  "--segments")
        for name, case in self.good.items():
            with self.subTest(case=name):
                self.assertEqual(json.loads(self.output_of(name, results[name])), case["segments"])

    def test_text_is_the_segments_joined(self):
        chosen = {name: case for name, case in self.good.items()
                  if name.startswith(("markers_", "unicode_", "control_", "arguments_"))}
        self.assertGreater(len(chosen), 20)
        results = self.render_all({name: case["request"] for name, case in chosen.items()})
        for name, case in chosen.items():
            with self.subTest(case=name):
                joined = "".join(text for segment in case["segments"] for text in segment.values())
                self.assertEqual(self.output_of(name, results[name]), joined.encode())

    def test_golden_cases_are_what_the_oracle_says(self):
        wanted = {name: xtml_oracle.case_of(request)
                  for name, request in golden_requests().items()}
        self.assertEqual(set(self.cases), set(wanted), "run xtml_oracle.py write-cases")
        for name, case in self.cases.items():
            with self.subTest(case=name):
                self.assertEqual(xtml_oracle.case_text(case), xtml_oracle.case_text(wanted[name]))

    def test_oracle_agrees_with_the_prompts(self):
        self.assertEqual(xtml_oracle.self_test(), 0)

    def test_errors_name_their_place(self):
        for name, case in self.cases.items():
            if "error" not in case:
                continue
            with self.subTest(case=name):
                path = self.write(name, case["request"])
                with self.assertRaises(xtml_oracle.RequestError) as caught:
                    xtml_oracle.render(case["request"])
                result = self.refuse("render", KJV, path, says=[caught.exception.place])
                self.assertEqual(result.stdout, b"")
                self.assertRegex(result.stderr.decode(), rf"(?m)^k3: [A-Za-z]+: \S*{name}\.json: ")

    def test_files_that_hold_no_request(self):
        for name, text in (("broken", '{"messages": ['), ("empty", ""), ("number", "1"),
                           ("no_messages", "{}"), ("null_messages", '{"messages": null}'),
                           ("text_messages", '{"messages": "hello"}'),
                           ("text_message", '{"messages": ["hello"]}'),
                           ("latin1", '{"messages": [{"role": "user", "content": "\xff"}]}')):
            with self.subTest(file=name):
                path = self.path(name + ".json")
                with open(path, "w", encoding="latin1") as stream:
                    stream.write(text)
                self.refuse("render", KJV, path, says=[name + ".json"])
        self.refuse("render", KJV, self.path("absent.json"), says=["absent.json"])

    def test_ids_and_that_markers_alone_give_control_tokens(self):
        results = self.render_all({name: case["request"] for name, case in self.good.items()},
                                  "--ids")
        texts = sorted({segment["text"] for case in self.good.values()
                        for segment in case["segments"] if "text" in segment})
        def tokenize(text):
            return self.succeed("tokenize", KJV, "-", stdin=text.encode()).stdout.decode()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ids_of = dict(zip(texts, pool.map(tokenize, texts)))
        ids_of = {text: [int(word) for word in ids.split(",")] for text, ids in ids_of.items()}
        for name, case in self.good.items():
            with self.subTest(case=name):
                wanted = []
                for segment in case["segments"]:
                    wanted += ([MARKER_IDS[segment["marker"]]] if "marker" in segment
                               else ids_of[segment["text"]])
                line = self.output_of(name, results[name]).decode()
                self.assertEqual(line, ",".join(map(str, wanted)) + "\n")
                control = [value for value in map(int, filter(None, line.strip().split(",")))
                           if value >= FIRST_CONTROL_ID]
                self.assertEqual(control, [MARKER_IDS[segment["marker"]]
                                           for segment in case["segments"] if "marker" in segment])
        for text, ids in ids_of.items():
            self.assertLess(max(ids), FIRST_CONTROL_ID, f"a control token from {text!r}")

    def test_random_requests(self):
        drawn = xtml_oracle.random_requests(RANDOM_SEED, RANDOM_REQUESTS)
        results = self.render_all({str(index): request for index, (request, _) in enumerate(drawn)},
                                  "--segments")
        refused = 0
        for index, (request, segments) in enumerate(drawn):
            with self.subTest(seed=RANDOM_SEED, index=index):
                result = results[str(index)]
                if segments is None:
                    refused += 1
                    self.assertEqual(result.returncode, 1, f"{request} cannot be rendered")
                else:
                    self.assertEqual(json.loads(self.output_of(request, result)),
                                     xtml_oracle.as_json(segments), f"{request}")
        self.assertLess(refused, RANDOM_REQUESTS // 4)

    def test_a_request_from_standard_input(self):
        case = self.good["unicode_everywhere"]
        request = json.dumps(case["request"]).encode()
        out = self.succeed("render", KJV, "-", "--segments", stdin=request).stdout
        self.assertEqual(json.loads(out), case["segments"])


if __name__ == "__main__":
    k3_binary.main()
