"""What the tests of tools/ share: where the scripts are, and a scratch directory with files."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tools"), os.path.join(ROOT, "tests", "e2e")]

from k3_binary import ScratchTest  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
TIMEOUT_S = 120


class ScriptTest(ScratchTest):
    def write(self, name, content, mode="w"):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), mode, encoding="utf-8") as stream:
            stream.write(content)
        return self.path(name)

    def read(self, *names):
        with open(self.path(*names), encoding="utf-8") as stream:
            return stream.read()
