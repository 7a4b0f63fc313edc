"""OpenAI's own client for JavaScript against the real server: chat, streams, tools, structured
output, log-probabilities. Its second argument is a folder to install the client in, once."""

import os
import shutil
import subprocess
import sys
import unittest

import k3_binary
from k3_binary import NANO, BinaryTest
from k3_server import Server

CLIENT = os.path.join(k3_binary.ROOT, "tests", "e2e", "openai")
INSTALL_TIMEOUT_S = 300
SKIPPED = 77


def install_client(folder):
    """Makes node_modules in `folder` by the lock file; its path."""
    os.makedirs(folder, exist_ok=True)
    lock = os.path.join(CLIENT, "package-lock.json")
    installed = os.path.join(folder, "package-lock.json")
    modules = os.path.join(folder, "node_modules")
    with open(lock, "rb") as stream:
        wanted = stream.read()
    if os.path.isdir(os.path.join(modules, "openai")) and os.path.exists(installed):
        with open(installed, "rb") as stream:
            if stream.read() == wanted:
                return folder
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(os.path.join(CLIENT, name), os.path.join(folder, name))
    result = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=INSTALL_TIMEOUT_S, check=False)
    if result.returncode != 0:
        # Not installed: the next run has to try again.
        os.remove(installed)
        text = result.stdout.decode(errors="replace")
        if any(word in text for word in ("ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "EAI_AGAIN")):
            print("skipped: no network to install the client with\n" + text)
            sys.exit(SKIPPED)
        sys.exit("npm could not install the client:\n" + text)
    return folder


class OpenAiClientTest(BinaryTest):
    """One test: the script names each of its cases."""

    folder = ""

    def test_every_case_of_the_script(self):
        with Server(self.binary, NANO) as server:
            result = subprocess.run(
                ["node", os.path.join(CLIENT, "client_test.mjs"), server.base],
                env={**os.environ, "NODE_MODULES": self.folder}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=k3_binary.TIMEOUT_S, check=False)
        output = result.stdout.decode(errors="replace")
        print(output)
        self.assertEqual(result.returncode, 0, output)
        self.assertGreaterEqual(output.count("ok "), 16)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} K3_BINARY CLIENT_FOLDER")
    OpenAiClientTest.folder = install_client(os.path.abspath(sys.argv.pop(2)))
    k3_binary.main()
