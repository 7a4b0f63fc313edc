"""k3 parse: ids of an answer as JSON, whole and streamed, and what is refused."""

import json

import k3_binary
from k3_binary import KJV

OPEN, CLOSE, SEP, END = 1955, 1956, 1957, 1954


class ParseTest(k3_binary.BinaryTest):

    def encode(self, text):
        words = self.succeed("tokenize", KJV, "--", text).stdout.decode().strip()
        return [int(word) for word in words.split(",")] if words else []

    def markup(self, *parts):
        """Ids of texts, and of markers given as numbers."""
        return sum(([part] if isinstance(part, int) else self.encode(part) for part in parts), [])

    def answer(self):
        return self.markup(
            "So.", CLOSE, "think", SEP, OPEN, "response", SEP, "Hi \"é\"", CLOSE, "response", SEP,
            OPEN, "tools", SEP,
            OPEN, "call tool=\"weather\" index=\"1\"", SEP,
            OPEN, "argument key=\"city\" type=\"string\"", SEP, "Oslo", CLOSE, "argument", SEP,
            OPEN, "argument key=\"days\"", SEP, "2", CLOSE, "argument", SEP, CLOSE, "call", SEP,
            OPEN, "call tool=\"time\" index=\"2\"", SEP)

    def parse(self, ids, *words, **options):
        text = ",".join(map(str, ids))
        return json.loads(self.succeed("parse", KJV, text, *words, **options).stdout)

    def test_the_whole_answer(self):
        call = {"id": "call_1", "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 2}'}}
        cut = {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": ""}}
        expected = {"reasoning_content": "So.", "content": "Hi \"é\"", "tool_calls": [call],
                    "incomplete_tool_calls": [cut], "ended": False}
        self.assertEqual(self.parse(self.answer()), expected)
        ended = self.parse(self.markup("So.", END))
        self.assertEqual(ended, {"reasoning_content": "So.", "content": "", "ended": True})

    def test_the_channel_of_the_start(self):
        ids = self.encode("So.")
        self.assertEqual(self.parse(ids, "--start", "response"), {"content": "So.", "ended": False})
        self.assertEqual(self.parse(ids, "--start", "think"), self.parse(ids))
        self.refuse("parse", KJV, "5", "--start", "tools", code=2, says=("--start",))

    def test_ids_come_from_words_a_file_or_standard_input(self):
        ids = self.answer()
        text = ",".join(map(str, ids)).encode()
        with open(self.path("ids"), "wb") as stream:
            stream.write(text.replace(b",", b"\n"))
        expected = self.succeed("parse", KJV, text.decode()).stdout
        self.assertEqual(self.succeed("parse", KJV, "-", stdin=text).stdout, expected)
        self.assertEqual(self.succeed("parse", KJV, "@" + self.path("ids")).stdout, expected)

    def test_streamed_lines_make_the_whole(self):
        text = ",".join(map(str, self.answer()))
        lines = self.succeed("parse", KJV, text, "--stream").stdout.decode().splitlines()
        events = [json.loads(line) for line in lines]
        join = lambda key: "".join(event.get(key, "") for event in events)
        self.assertEqual(join("reasoning_content"), "So.")
        self.assertEqual(join("content"), "Hi \"é\"")
        self.assertEqual(join("arguments"), '{"city": "Oslo", "days": 2}')
        self.assertEqual([event for event in events if "name" in event or "end" in event],
                         [{"tool_call": 0, "name": "weather"}, {"tool_call": 0, "end": True},
                          {"tool_call": 1, "name": "time"}])

    def test_schemas_type_the_arguments(self):
        tools = [{"type": "function", "function": {
            "name": "weather", "parameters": {"properties": {"days": {"type": "string"}}}}}]
        with open(self.path("tools.json"), "w", encoding="utf-8") as stream:
            json.dump(tools, stream)
        call = self.parse(self.answer(), "--tools", self.path("tools.json"))["tool_calls"][0]
        self.assertEqual(call["function"]["arguments"], '{"city": "Oslo", "days": "2"}')
        with open(self.path("tools.json"), "w", encoding="utf-8") as stream:
            stream.write("{}")
        self.refuse("parse", KJV, "5", "--tools", self.path("tools.json"),
                    says=("InvalidArgument", "tools.json", "expected an array", "an object"))
        self.refuse("parse", KJV, "5", "--tools", self.path("absent"), says=("NotFound", "absent"))

    def test_bad_ids(self):
        self.refuse("parse", KJV, "5,2048", says=("IDS: entry 2: expected a token id in [0, 2048), "
                                                  "found 2048",))
        self.refuse("parse", KJV, "-", stdin=b"1 2 x", says=("standard input: entry 3",))
        with open(self.path("ids"), "wb") as stream:
            stream.write(b" \n")
        self.refuse("parse", KJV, "@" + self.path("ids"),
                    says=(self.path("ids"), "at least one token id"))
        self.refuse("parse", KJV, "@" + self.path("absent"), says=("NotFound", "absent"))
        self.refuse("parse", self.path("absent"), "5", says=("NotFound", "absent"))


if __name__ == "__main__":
    k3_binary.main()
