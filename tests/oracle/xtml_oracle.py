#!/usr/bin/env python3
"""An independent renderer of XTML prompts, and random requests.

  xtml_oracle.py self-test            compares the oracle with tests/golden/xtml/prompts.json
  xtml_oracle.py write-cases          writes tests/golden/xtml/cases
  xtml_oracle.py render REQUEST.json  prints the segments of a request, one a line

Arguments and schemas go through Python's own json module: the reference is defined by what Python
prints. Segments are ("marker", text) and ("text", text); each text is tokenised alone.
"""

import json
import os
import random
import sys

from xtml_cases import golden_requests

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "xtml")
CASES = os.path.join(GOLDEN, "cases")
OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
EFFORTS = ("low", "high", "max")
IMAGE_TYPES = ("image", "image_url")


def read_json(path):
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


CONSTANTS = read_json(os.path.join(GOLDEN, "constants.json"))


class RequestError(Exception):
    """A request that cannot be rendered; `place` is where, such as messages[1]."""

    def __init__(self, place, reason):
        super().__init__(f"{place}: {reason}")
        self.place = place


# The renderer.


class Writer:
    """Collects segments: one a marker, one a piece of text, none for an empty text."""

    def __init__(self):
        self.segments = []

    def marker(self, text):
        self.segments.append(("marker", text))

    def text(self, text):
        if text:
            self.segments.append(("text", text))

    def open(self, tag, *attributes):
        self.marker(OPEN)
        self.text(tag)
        for key, value in attributes:
            self.text(" " + key)
            self.text('="')
            self.text(value.replace("&", "&amp;").replace('"', "&quot;"))
            self.text('"')
        self.marker(SEP)

    def close(self, tag):
        self.marker(CLOSE)
        self.text(tag)
        self.marker(SEP)

    def element(self, tag, attributes, *texts):
        self.open(tag, *attributes)
        for text in texts:
            self.text(text)
        self.close(tag)

    def message(self, attributes, *texts):
        self.element("message", attributes, *texts)
        self.marker(END)

    def system(self, kind, body):
        self.message([("role", "system"), ("type", kind)], body)


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def declare_tools(writer, tools, header, place):
    if tools is None:
        return
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestError(place, "tools is no list of objects")
    if tools:
        writer.system("tool-declare", header + compact(tools) + CONSTANTS["tool_declare_footer"])


def texts_of(content, place):
    """The texts of a message's content: one for a string, one for each part of a list."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise RequestError(place, "content is neither text, list nor null")
    texts = []
    for part in content:
        if not isinstance(part, dict):
            raise RequestError(place, "a part is no object")
        if part.get("type") in IMAGE_TYPES:
            raise RequestError(place, "images are not supported")
        if not isinstance(part.get("text"), str):
            raise RequestError(place, "a part has no text")
        texts.append(part["text"])
    return texts


def text_or_none(value, place):
    if value is not None and not isinstance(value, str):
        raise RequestError(place, "expected text")
    return value


def header_of(message, role, place):
    name = text_or_none(message.get("name"), place)
    return [("role", role)] + ([("name", name)] if name else [])


def type_name(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", int: "number", float: "number", dict: "object",
            list: "array"}[type(value)]


def render_arguments(writer, arguments, place):
    if isinstance(arguments, str):
        if not arguments.strip():
            return
        raw = arguments
        try:
            arguments = json.loads(raw)
        except json.JSONDecodeError:
            writer.element("json", [("type", "object")], raw)
            return
        if not isinstance(arguments, dict):
            raise RequestError(place, "the arguments parse to something else than an object")
    if arguments is None:
        return
    if not isinstance(arguments, dict):
        raise RequestError(place, "arguments is neither object, text nor null")
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        writer.element("argument", [("key", key), ("type", type_name(value))], text)


class Results:
    """Matches tool results with the calls of the latest assistant turn."""

    def __init__(self):
        self.names = []
        self.positions = {}
        self.count = 0

    def start_turn(self, calls):
        """`calls` holds (id or None, name) for each call of the turn."""
        self.names = [name for _, name in calls]
        self.positions = {}
        self.count = 0
        for position, (identifier, _) in enumerate(calls):
            if identifier is not None:
                self.positions.setdefault(str(identifier), position)

    def position_of(self, message):
        identifier = message["tool_call_id"] if "tool_call_id" in message else message.get("id")
        return None if identifier is None else self.positions.get(str(identifier))

    def name_of(self, message, place):
        name = text_or_none(message["tool"] if "tool" in message else message.get("name"), place)
        if name is not None:
            return name
        if self.count > len(self.names):
            raise RequestError(place, "nothing names the tool of this result")
        return self.names[self.count - 1]

    def render_run(self, writer, run):
        """`run` holds (place, message) of consecutive tool messages."""
        matched = [(self.position_of(message), place, message) for place, message in run]
        all_match = all(position is not None for position, _, _ in matched)
        if all_match:
            matched.sort(key=lambda entry: entry[0])
        for position, place, message in matched:
            self.count += 1
            name = self.names[position] if all_match else self.name_of(message, place)
            writer.message([("role", "tool"), ("tool", name), ("index", str(self.count))],
                           *texts_of(message.get("content"), place))


def render_assistant(writer, message, thinking, place):
    """Returns (id or None, name) for each call."""
    writer.open("message", *header_of(message, "assistant", place))
    if thinking:
        reasoning = (text_or_none(message.get("reasoning_content"), place)
                     or text_or_none(message.get("reasoning"), place) or "")
        writer.element("think", [], reasoning if reasoning.strip() else "")
    writer.element("response", [], *texts_of(message.get("content"), place))
    entries, calls = message.get("tool_calls"), []
    if not isinstance(entries, (list, type(None))):
        raise RequestError(place, "tool_calls is neither list nor null")
    for call in entries or []:
        function = call.get("function") if isinstance(call, dict) else None
        function = call if function is None else function
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(place, "a call has no name")
        if not calls:
            writer.open("tools")
        calls.append((call.get("id"), function["name"]))
        writer.open("call", ("tool", function["name"]), ("index", str(len(calls))))
        render_arguments(writer, function.get("arguments"), place)
        writer.close("call")
    if calls:
        writer.close("tools")
    writer.close("message")
    writer.marker(END)
    return calls


def render_messages(writer, messages, thinking):
    if not isinstance(messages, list):
        raise RequestError("messages", "messages is no list")
    results, run = Results(), []
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role == "tool":
            run.append((place, message))
            continue
        results.render_run(writer, run)
        run = []
        if role == "assistant":
            results.start_turn(render_assistant(writer, message, thinking, place))
        elif role in ("system", "developer") and message.get("tools") is not None:
            declare_tools(writer, message["tools"], CONSTANTS["tool_declare_dynamic_header"], place)
        elif role in ("system", "developer", "user"):
            writer.message(header_of(message, "user" if role == "user" else "system", place),
                           *texts_of(message.get("content"), place))
        else:
            raise RequestError(place, f"unknown role {role!r}")
    results.render_run(writer, run)


def setting(request, key):
    """A field of chat_template_kwargs, which wins, or of the request."""
    special = request.get("chat_template_kwargs") or {}
    return special[key] if key in special else request.get(key)


def switch(request, key):
    """A field that is on unless it is false."""
    value = setting(request, key)
    if not isinstance(value, (bool, type(None))):
        raise RequestError(key, "expected true or false")
    return value is not False


def render_effort(writer, request):
    special = request.get("chat_template_kwargs") or {}
    if "thinking_effort" in special:
        place, effort = "thinking_effort", special["thinking_effort"]
        if effort is None:
            return
    else:
        place, effort = "reasoning_effort", setting(request, "reasoning_effort")
        effort = "max" if effort is None else effort
    if effort not in EFFORTS:
        raise RequestError(place, f"the effort {effort!r} does not exist")
    writer.system("thinking-effort", CONSTANTS["thinking_effort_body_before_value"] + effort
                  + CONSTANTS["thinking_effort_body_after_value"])


def render_tool_choice(writer, choice):
    if choice in ("required", "none"):
        writer.system("tool-choice", CONSTANTS[f"tool_choice_{choice}_body"])
    elif choice not in (None, "auto"):
        function = choice.get("function") if isinstance(choice, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError("tool_choice", f"{choice!r} does not exist")


def schema_of(request, described):
    explicit = setting(request, "response_schema")
    if explicit is not None:
        return explicit
    if isinstance(described, dict):
        for key in ("schema", "json_schema"):
            if described.get(key) is not None:
                return described[key]
    if described is None:
        raise RequestError("response_format", "json_schema without a schema")
    return described


def render_response_format(writer, request):
    wanted = setting(request, "response_format")
    kind = wanted.get("type") if isinstance(wanted, dict) else wanted
    if kind == "json_object":
        writer.system("response-format", CONSTANTS["response_format_json_object_body"])
    elif kind == "json_schema":
        described = wanted.get("json_schema") if isinstance(wanted, dict) else None
        writer.system("response-format", CONSTANTS["response_format_json_schema_header"]
                      + compact(schema_of(request, described))
                      + CONSTANTS["response_format_json_schema_footer"])
    elif kind != "text" and wanted is not None:
        raise RequestError("response_format", f"{kind!r} does not exist")


def render(request):
    """The segments of a request."""
    writer = Writer()
    if not isinstance(request.get("chat_template_kwargs"), (dict, type(None))):
        raise RequestError("chat_template_kwargs", "expected an object")
    thinking = switch(request, "thinking") and setting(request, "reasoning_effort") != "none"
    declare_tools(writer, request.get("tools"), CONSTANTS["tool_declare_header"], "tools")
    if thinking:
        render_effort(writer, request)
    render_messages(writer, request.get("messages"), thinking)
    render_tool_choice(writer, setting(request, "tool_choice"))
    render_response_format(writer, request)
    if switch(request, "add_generation_prompt"):
        writer.open("message", ("role", "assistant"))
        writer.open("think" if thinking else "response")
    return writer.segments


def joined(segments):
    return "".join(text for _, text in segments)


# Random requests.

ALPHABETS = ("abc XYZ 019", " \t\r\n\u3000\u00a0", "\"\\/&<>='{}[],:|", "éßñ한국世界йΩ",
             "🌍😀𝔘\U0010ffff", "\u0000\u0001\u001c\u007f\u0085\u2028\ufeff\uffff\u200b\ud7ff\ue000")
WORDS = (OPEN, CLOSE, SEP, END, "<|kimi_image_placeholder|>", "&amp;", "&quot;", "message", "think",
         "In the beginning ", "```json\n", "\\u0041", "[EOS]")
NUMBERS = ("0", "-0", "-0.0", "1", "-17", "1e5", "1E5", "1.0", "2.50", "1e-7", "1e16", "1.5e300",
           "1e400", "123456789012345678901234567890", "9007199254740993", "0.1", "1e22", "1e23",
           "5e-324", "NaN", "Infinity", "-Infinity", "0.00001", "4.35", "2.2250738585072011e-308",
           "9007199254740992.5")


def random_text(rng, pieces=4):
    text = ""
    for _ in range(rng.randint(0, pieces)):
        if rng.random() < 0.25:
            text += rng.choice(WORDS)
        else:
            text += "".join(rng.choices(rng.choice(ALPHABETS), k=rng.randint(1, 6)))
    return text


def random_json(rng, depth=3):
    kind = rng.randint(0, 7 if depth else 5)
    if kind < 2:
        return random_text(rng, 2)
    if kind == 2:
        return rng.choice((0, 1, -1, rng.randint(-10**6, 10**6), rng.randint(-10**30, 10**30)))
    if kind == 3:
        return rng.choice((1, -1)) * rng.random() * 10.0 ** rng.randint(-30, 30)
    if kind == 4:
        return float(rng.randint(-10**9, 10**9)) * 10.0 ** rng.randint(0, 12)
    if kind == 5:
        return rng.choice((True, False, None))
    if kind == 6:
        return [random_json(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    return random_object(rng, depth - 1)


def random_object(rng, depth):
    return {random_text(rng, 2): random_json(rng, depth) for _ in range(rng.randint(0, 4))}


def random_json_text(rng, value):
    """JSON written in one of many ways, with other spellings of numbers."""
    def space():
        return rng.choice(("", "", "", " ", "\n", " \t\r\n "))
    if isinstance(value, dict):
        inside = ",".join(space() + json.dumps(key, ensure_ascii=rng.random() < 0.5) + space() + ":"
                          + random_json_text(rng, entry) for key, entry in value.items())
        return space() + "{" + inside + space() + "}" + space()
    if isinstance(value, list):
        inside = ",".join(random_json_text(rng, entry) for entry in value)
        return space() + "[" + inside + "]" + space()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and rng.random() < 0.5:
        return space() + rng.choice(NUMBERS) + space()
    return space() + json.dumps(value, ensure_ascii=rng.random() < 0.5) + space()


def random_arguments(rng):
    kind = rng.random()
    if kind < 0.15:
        return rng.choice((None, "", " \n", {}, "{}"))
    value = random_object(rng, 3)
    if kind < 0.3:
        return value
    text = random_json_text(rng, value)
    if kind < 0.5:  # one character gone, come or changed: mostly broken
        at = rng.randrange(len(text))
        new = rng.choice(("", *"\",:{}[]\\ 0e.-x\n\u3000"))
        text = text[:at] + new + text[at + rng.randint(0, 1):]
    return text


def random_content(rng):
    kind = rng.random()
    if kind < 0.1:
        return None
    if kind < 0.75:
        return random_text(rng)
    return [{"type": rng.choice(("text", "text", "input_text")), "text": random_text(rng)}
            for _ in range(rng.randint(0, 3))]


def with_some(rng, message, **fields):
    """The message with each field (a function) present half of the time."""
    for key, make in fields.items():
        if rng.random() < 0.5:
            message[key] = make()
    return message


def random_call(rng, identifiers):
    function = {"name": random_text(rng, 2) or "f"}
    if rng.random() < 0.95:
        function["arguments"] = random_arguments(rng)
    entry = {"type": "function", "function": function} if rng.random() < 0.8 else function
    if rng.random() < 0.9:
        identifier = rng.choice((f"call_{len(identifiers)}", len(identifiers),
                                 random_text(rng, 1) or "i", rng.choice(identifiers or ["x"])))
        identifiers.append(identifier)
        entry = {"id": identifier, **entry}
    return entry


def random_turn(rng):
    """An assistant turn and what its tools answer."""
    identifiers = []
    turn = with_some(rng, {"role": "assistant"}, content=lambda: random_content(rng),
                     reasoning_content=lambda: rng.choice((None, "", " \u3000", random_text(rng))),
                     reasoning=lambda: random_text(rng),
                     name=lambda: rng.choice((None, "", random_text(rng))))
    if rng.random() < 0.6:
        turn["tool_calls"] = [random_call(rng, identifiers) for _ in range(rng.randint(0, 4))]
    yield turn
    answered = identifiers * rng.choice((1, 1, 1, 2))
    rng.shuffle(answered)
    for identifier in answered[:rng.choice((len(answered), rng.randint(0, len(answered))))]:
        key = "tool_call_id" if rng.random() < 0.8 else "id"
        message = {"role": "tool", "content": random_content(rng),
                   key: rng.choice((identifier, identifier, str(identifier)))}
        if rng.random() < 0.05:
            message[key] = rng.choice(("nobody", None))
        if rng.random() < 0.3:
            message["name"] = rng.choice((None, "", random_text(rng, 2)))
        if rng.random() < 0.1:
            message["tool"] = rng.choice((None, random_text(rng, 2) or "t"))
        yield message
        if rng.random() < 0.1:
            yield {"role": "user", "content": random_text(rng)}


def random_messages(rng):
    messages = []
    for _ in range(rng.randint(0, 4)):
        kind = rng.random()
        if kind < 0.5:
            messages += random_turn(rng)
        elif kind < 0.6:
            messages.append(with_some(rng, {"role": rng.choice(("system", "developer"))},
                                      tools=lambda: random_tools(rng), content=lambda: "dropped"))
        else:
            messages.append(with_some(
                rng, {"role": rng.choice(("system", "developer", "user", "user"))},
                content=lambda: random_content(rng),
                name=lambda: rng.choice((None, "", random_text(rng)))))
    return messages


def random_tools(rng):
    return [random_object(rng, 3) for _ in range(rng.randint(0, 3))]


def random_options(rng):
    """Fields that may stand in the request or in chat_template_kwargs."""
    named = {"type": "function", "function": {"name": random_text(rng, 1) or "f"}}
    schema = {random_text(rng, 1) + "_": random_json(rng) for _ in range(2)}
    described = rng.choice((schema, {"name": "n", "schema": schema}, {"json_schema": schema}))
    form = rng.choice(("json_object", "json_schema", "text"))
    return with_some(
        rng, {}, tool_choice=lambda: rng.choice(("auto", "none", "required", named, None)),
        response_format=lambda: rng.choice(({"type": form, "json_schema": described}, form, None)),
        response_schema=lambda: {"_": random_json(rng)},
        reasoning_effort=lambda: rng.choice(EFFORTS),
        thinking=lambda: rng.random() < 0.7, add_generation_prompt=lambda: rng.random() < 0.7)


def random_request(rng):
    """A request of which nobody knows whether it can be rendered; mostly it can."""
    request = {"messages": random_messages(rng), **random_options(rng)}
    if rng.random() < 0.5:
        request["tools"] = random_tools(rng)
    if rng.random() < 0.5:
        request["chat_template_kwargs"] = random_options(rng)
        if rng.random() < 0.3:
            request["chat_template_kwargs"]["thinking_effort"] = rng.choice((*EFFORTS, None))
    if rng.random() < 0.03:
        request["reasoning_effort"] = rng.choice(("medium", "none"))
        request.pop("thinking", None)  # it may contradict the effort
        request.get("chat_template_kwargs", {}).pop("thinking", None)
    return request


def random_requests(seed, count):
    """`count` requests with what they render to, None where they cannot be rendered."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        request = random_request(rng)
        try:
            segments = render(request)
        except RequestError:
            segments = None
        try:
            joined(segments or []).encode()
        except UnicodeEncodeError:  # a changed character left half of a surrogate pair
            continue
        found.append((request, segments))
    return found


# Commands.


def as_json(segments):
    return [{kind: text} for kind, text in segments]


def case_of(request):
    try:
        return {"request": request, "segments": as_json(render(request))}
    except RequestError:
        return {"request": request, "error": True}


def case_text(case):
    """A case with one segment a line."""
    write = lambda value: json.dumps(value, ensure_ascii=False)
    if case.get("error"):
        return '{"request": ' + write(case["request"]) + ',\n "error": true}\n'
    segments = ",\n  ".join(write(segment) for segment in case["segments"])
    return '{"request": ' + write(case["request"]) + ',\n "segments": [\n  ' + segments + "]}\n"


def write_cases():
    for name in os.listdir(CASES):
        os.remove(os.path.join(CASES, name))
    requests = golden_requests()
    for name, request in requests.items():
        case = case_of(request)
        assert ("error" in case) == name.startswith("error_"), f"{name}: {case}"
        with open(os.path.join(CASES, name + ".json"), "w", encoding="utf-8") as stream:
            stream.write(case_text(case))
    print(f"{len(requests)} cases")


def self_test():
    prompts = read_json(os.path.join(GOLDEN, "prompts.json"))
    wrong = [name for name, case in prompts.items()
             if joined(render(case["request"])) != case["prompt"]]
    drawn = random_requests(1, 1000)
    refused = sum(segments is None for _, segments in drawn)
    print(f"{len(prompts) - len(wrong)} of {len(prompts)} prompts agree", *wrong)
    print(f"{refused} of {len(drawn)} random requests cannot be rendered")
    return 1 if wrong else 0


def main(words):
    if words == ["self-test"]:
        return self_test()
    if words == ["write-cases"]:
        return write_cases()
    if len(words) == 2 and words[0] == "render":
        try:
            for segment in as_json(render(read_json(words[1]))):
                print(json.dumps(segment, ensure_ascii=False))
        except RequestError as error:
            return f"{words[1]}: {error}"
        return 0
    return __doc__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
