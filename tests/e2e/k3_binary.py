"""What the end-to-end tests share: running the binary, and reading and damaging checkpoints."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KJV = os.path.join(ROOT, "models", "kjv")
NANO = os.path.join(ROOT, "models", "nano")
TINY = os.path.join(ROOT, "tests", "golden", "tiny-a")
TIMEOUT_S = 240  # for one run under a sanitizer on a busy machine
INDEX = "model.safetensors.index.json"


class ScratchTest(unittest.TestCase):
    """A test case with a scratch directory."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name

    def path(self, *names):
        return os.path.join(self.scratch, *names)


class BinaryTest(ScratchTest):
    """A test case with a scratch directory and the binary that main() was given."""

    binary = ""

    def k3(self, *words, target=None, stdin=None, **options):
        """Runs k3 with these words; bytes in, bytes out."""
        environment = {k: v for k, v in os.environ.items() if k != "K3_TARGET"}
        if target is not None:
            environment["K3_TARGET"] = target
        options.setdefault("stdout", subprocess.PIPE)
        return subprocess.run([self.binary, *words], input=stdin, stderr=subprocess.PIPE,
                              env=environment, timeout=TIMEOUT_S, check=False, **options)

    def succeed(self, *words, **options):
        result = self.k3(*words, **options)
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        return result

    def refuse(self, *words, code=1, says=(), **options):
        """Runs k3, which must exit with `code` and one line on stderr that holds all of `says`."""
        result = self.k3(*words, **options)
        error = result.stderr.decode(errors="replace")
        self.assertEqual(result.returncode, code, f"{words}: {error}")
        last = [line for line in error.splitlines() if line.startswith("k3: ")]
        self.assertTrue(last, f"{words}: no message in {error!r}")
        if code == 1:
            self.assertRegex(last[-1], r"^k3: [A-Z][A-Za-z]+: .", "the message names its code")
        for word in says:
            self.assertIn(word, error, f"{words}")
        return result

    def copy_model(self, source, name="model"):
        """A copy whose files may be changed."""
        target = self.path(name)
        os.makedirs(target)
        for entry in os.listdir(source):
            if os.path.isfile(os.path.join(source, entry)):
                shutil.copyfile(os.path.join(source, entry), os.path.join(target, entry))
        return target


def read_shard(path):
    """The header as a dict and the data behind it."""
    with open(path, "rb") as stream:
        length = struct.unpack("<Q", stream.read(8))[0]
        return json.loads(stream.read(length)), stream.read()


def write_shard(path, header, data):
    """`header` is a dict or JSON text."""
    text = header if isinstance(header, str) else json.dumps(header)
    raw = text.encode()
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw + data)


def shard_of(model, tensor):
    with open(os.path.join(model, INDEX), encoding="utf-8") as stream:
        return os.path.join(model, json.load(stream)["weight_map"][tensor])


def edit_json(path, edit):
    """Lets `edit` change the parsed file in place."""
    with open(path, encoding="utf-8") as stream:
        value = json.load(stream)
    edit(value)
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(value, stream)


def need_numpy():
    """Goes on with a Python that has numpy: Debian's, where another one is found first."""
    try:
        import numpy  # noqa: F401 pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        debian = "/usr/bin/python3"
        if os.path.realpath(sys.executable) == os.path.realpath(debian):
            sys.exit("these tests need numpy: install python3-numpy")
        os.execv(debian, [debian, *sys.argv])


def main():
    """Runs the tests of the calling file; its first argument is the binary."""
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} K3_BINARY")
    # The programs under test heed these, even where a shell started us in the background.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT
                      else signal.SIG_DFL)
    BinaryTest.binary = os.path.abspath(sys.argv.pop(1))
    unittest.main(warnings="ignore")
