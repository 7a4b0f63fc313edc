#!/usr/bin/env python3
"""Trains the tokenizer of models/nano: tools/train_nano_tokenizer.py OUTDIR

It reads the texts that configs/nano-train.json trains on (tools/gather_corpus.py makes them),
synthetic tasks, and the fixed sentences of K3's chat format, all of them without digits: so every
digit is a token of its own, and numbers are written and added digit by digit. The words that tasks
are made of become tokens of their own because they stand in so many tasks. Ends with 2, and a line
that says why, when it cannot be made.
"""

import argparse
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from typing import NoReturn

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS = 2464  # and 96 control tokens: a vocabulary of 2560
TASKS = 8000
TOOL_TASKS = 600
TEXT_CHARACTERS = 1_500_000  # of each file: the tasks are to count as much as all of them
TEXTS = ("kjv", "devils-dictionary", "us-founding-documents", "jargon-file")


def fail(message: str) -> NoReturn:
    print(f"train_nano_tokenizer: {message}", file=sys.stderr)
    sys.exit(2)


def run(command: list[str], text: str | None = None) -> str:
    """What the command prints; ends with its message when it fails."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace",
                              check=False)
    except OSError as error:
        fail(f"{command[0]}: cannot be started ({error.strerror}); build it with `make`, or name the"
             " k3 program with --k3")
    if done.returncode != 0:
        words = done.stderr.strip() or f"ended with code {done.returncode}, no message"
        fail(f"{' '.join(command[:2])}: {words}")
    return done.stdout


def read_text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:TEXT_CHARACTERS]
    except FileNotFoundError:
        only = " ".join(f"--only {text}" for text in TEXTS)
        fail(f"{path} is missing; make it with: tools/gather_corpus.py corpus {only}")
    except OSError as error:
        fail(f"{path}: {error.strerror}; name the directory of the texts with --corpus")
    except UnicodeDecodeError as error:
        fail(f"{path}: expected UTF-8 ({error}); make it again with tools/gather_corpus.py")


def task_lines(k3: str, arguments: list[str]) -> list[dict]:
    """Synthetic conversations."""
    answer = run([k3, "tasks", *arguments])
    try:
        return [json.loads(line) for line in answer.splitlines()]
    except ValueError:
        fail(f"{k3} tasks: expected JSON lines, found {answer[:60]!r}; name the k3 program with --k3")


def spoken(conversations: list[dict]) -> str:
    """What is said and thought in them, a message a line."""
    texts = []
    for conversation in conversations:
        for message in conversation["messages"]:
            texts += [message[key] for key in ("reasoning_content", "content") if message.get(key)]
    return "\n".join(texts) + "\n"


def frame(k3: str, model: str, request: dict) -> str:
    """The fixed sentences of the chat format, without its markers."""
    prompt = run([k3, "render", model, "-"], json.dumps(request))
    return re.sub(r"<\|[a-z_]+\|>", "\n", prompt) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", help="the directory to write; it must hold no tokenizer")
    parser.add_argument("--k3", default=str(ROOT / "build/release/k3"))
    parser.add_argument("--corpus", default=str(ROOT / "corpus"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the scratch directory goes
    texts = []
    for name in TEXTS:
        texts.append(read_text(pathlib.Path(options.corpus) / f"{name}.txt"))
    model = str(ROOT / "models/kjv")  # any: rendering reads no weights
    tasks = task_lines(options.k3, ["--count", str(TASKS), "--turns", "8"])
    texts.append(spoken(tasks))
    tools = task_lines(options.k3, ["--count", str(TOOL_TASKS), "--kinds", "tool-call"])
    for task in tools:
        texts.append(frame(options.k3, model, {"messages": task["messages"][:2],
                                               "tools": task["tools"]}))
    for effort in ("low", "high", "max"):
        request = {"messages": [{"role": "user", "content": ""}], "reasoning_effort": effort}
        texts.append(frame(options.k3, model, request) * TOOL_TASKS)
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for i, text in enumerate(texts[: len(TEXTS) + 1] + ["".join(texts[len(TEXTS) + 1 :])]):
            path = pathlib.Path(directory) / f"{i}.txt"
            path.write_text(re.sub(r"\d", "", text), encoding="utf-8")
            paths.append(str(path))
        print(run([options.k3, "tokenizer-train", *paths, "--ranks", str(RANKS), "--out",
                   options.out]), end="")


if __name__ == "__main__":
    main()
