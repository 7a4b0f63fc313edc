#!/usr/bin/env python3
"""Proves that the build refuses an undeclared include: room_enforcement_test.py BUILD_DIR

Takes each room's compile command from compile_commands.json and asks the compiler itself which
other rooms it can reach; that must be within the table of docs/architecture.md, section 1.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Room -> the rooms that it may include, and theirs.
MAY_INCLUDE = {
    "base": [],
    "sys": ["base"],
    "tensor": ["sys"],
    "kernels": ["tensor"],
    "ops": ["kernels"],
    "config": ["base"],
    "checkpoint": ["tensor", "config"],
    "weights": ["checkpoint"],
    "text": ["config"],
    "vision": ["ops", "weights"],
    "cache": ["tensor", "config"],
    "parallel": ["tensor"],
    "model": ["ops", "weights", "cache", "parallel"],
    "sample": ["base", "text"],
    "engine": ["model", "sample", "text", "vision"],
    "server": ["engine", "grammar", "sys"],
    "grammar": ["text", "sample"],
    "data": ["text", "tensor"],
    "train": ["model", "data"],
    "eval": ["engine", "train"],
    "terminal": ["sys", "text"],
}


def reachable_by_table(room):
    rooms, todo = set(), [room]
    while todo:
        name = todo.pop()
        if name not in rooms:
            rooms.add(name)
            todo += MAY_INCLUDE[name]
    return rooms


def room_commands(build):
    """Room -> (folder, compiler and flags) of one of its library sources."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as stream:
        entries = json.load(stream)
    commands = {}
    for entry in entries:
        match = re.search(r"/k3_(\w+)\.dir/", entry.get("output", "") or entry["command"])
        path = os.path.relpath(entry["file"], SOURCE).replace(os.sep, "/").split("/")
        if not match or len(path) < 3 or path[0] != "src" or path[1] != match.group(1):
            continue
        words = shlex.split(entry["command"])
        output = words.index("-o")
        del words[output:output + 2]
        words = [word for word in words if word not in ("-c", entry["file"], "ccache")]
        commands.setdefault(path[1], (entry["directory"], words))
    return commands


def first_header(room):
    folder = os.path.join(SOURCE, "src", room)
    names = sorted(name for name in os.listdir(folder)
                   if name.endswith(".h") and not name.endswith("-inl.h"))
    return f"{room}/{names[0]}" if names else None


class RoomEnforcement(unittest.TestCase):
    build = ""

    @classmethod
    def setUpClass(cls):
        cls.commands = room_commands(cls.build)
        cls.headers = {room: first_header(room) for room in cls.commands}
        cls.headers = {room: header for room, header in cls.headers.items() if header}

    def run_compiler(self, room, text, *flags):
        folder, words = self.commands[room]
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, "includes.cc")
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text)
            return subprocess.run([*words, *flags, path], cwd=folder, capture_output=True,
                                  text=True, check=False)

    def test_the_build_has_rooms_and_the_table_knows_them(self):
        self.assertGreaterEqual(set(self.commands), {"base", "sys", "tensor"})
        for room in self.commands:
            self.assertIn(room, MAY_INCLUDE, f"{room} is missing in the table of this test")

    def test_no_room_reaches_more_than_the_table_allows(self):
        question = "".join(f'#if __has_include("{header}")\nreaches {room};\n#endif\n'
                           for room, header in sorted(self.headers.items()))
        for room in self.commands:
            result = self.run_compiler(room, question, "-E", "-P")
            self.assertEqual(result.returncode, 0, result.stderr)
            reached = set(re.findall(r"^reaches (\w+);", result.stdout, re.MULTILINE))
            with self.subTest(room=room):
                self.assertIn(room, reached | (set(self.commands) - set(self.headers)))
                self.assertEqual(reached - reachable_by_table(room), set(),
                                 f"src/{room} can include rooms that it may not")

    def test_an_undeclared_include_does_not_compile(self):
        for room in ("base", "sys"):
            for other in sorted(set(self.headers) - reachable_by_table(room)):
                text = f'#include "{self.headers[other]}"\n'
                result = self.run_compiler(room, text, "-fsyntax-only")
                self.assertNotEqual(result.returncode, 0, f"src/{room} could include {text}")
                self.assertRegex(result.stderr, "No such file|file not found")

    def test_a_declared_include_compiles(self):
        for room, header in (("base", "base/status.h"), ("sys", "base/status.h"),
                             ("tensor", "sys/arena.h"), ("tensor", "base/check.h")):
            result = self.run_compiler(room, f'#include "{header}"\n', "-fsyntax-only")
            self.assertEqual(result.returncode, 0, f"src/{room}, {header}: {result.stderr}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: room_enforcement_test.py BUILD_DIR")
    RoomEnforcement.build = sys.argv.pop(1)
    unittest.main()
