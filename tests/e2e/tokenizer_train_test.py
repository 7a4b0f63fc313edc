"""k3 tokenizer-train: what it writes, that other commands take it, and what it refuses."""

import base64
import json
import os
import re

import k3_binary
from k3_binary import KJV

HELDOUT = os.path.join(KJV, "heldout.txt")
MODEL, CONFIG = "tiktoken.model", "tokenizer_config.json"


def read(*names):
    with open(os.path.join(*names), "rb") as stream:
        return stream.read()


class TokenizerTrainTest(k3_binary.BinaryTest):

    def train(self, *files, ranks=1952, out="out"):
        result = self.succeed("tokenizer-train", *files, "--ranks", str(ranks),
                              "--out", self.path(out))
        return result.stdout.decode(), result.stderr.decode()

    def write(self, name, content):
        with open(self.path(name), "wb") as stream:
            stream.write(content)
        return self.path(name)

    def test_a_tokenizer_for_the_small_model(self):
        summary, notices = self.train(HELDOUT)
        self.assertEqual(notices, "")
        found = re.search(r": 1952 ranks, vocab_size 2048, ([\d.]+) bytes per token on (\d+) bytes,"
                          r" [\d.]+ s\n$", summary)
        self.assertTrue(found, summary)
        self.assertEqual(int(found[2]), len(read(HELDOUT)))
        lines = [line.split() for line in read(self.path("out", MODEL)).splitlines()]
        self.assertEqual([int(rank) for _, rank in lines], list(range(1952)))
        tokens = [base64.b64decode(token, validate=True) for token, _ in lines]
        self.assertEqual(tokens[:256], [bytes([byte]) for byte in range(256)])
        self.assertEqual(len(set(tokens)), 1952)
        # The control tokens are those of the small model, at the same ids.
        config = json.loads(read(self.path("out", CONFIG)))
        self.assertEqual(config, json.loads(read(KJV, CONFIG)))
        # In the place of the model's own tokenizer.
        model = self.copy_model(KJV)
        for name in (MODEL, CONFIG):
            os.replace(self.path("out", name), os.path.join(model, name))
        ids = self.succeed("tokenize", model, "--file", HELDOUT).stdout.decode().strip()
        count = ids.count(",") + 1
        self.assertAlmostEqual(float(found[1]), len(read(HELDOUT)) / count, places=2)
        self.assertGreater(float(found[1]), 3)
        head = ",".join(ids.split(",")[:2000])
        text = self.succeed("tokenize", model, "--decode", head).stdout
        self.assertTrue(len(text) > 4000 and read(HELDOUT).startswith(text))
        self.succeed("run", model, "In the beginning", "--max-tokens", "4")

    def test_the_same_texts_give_the_same_files(self):
        text = read(HELDOUT)
        first = self.write("first", text[:text.index(b"\n", 60000)])
        second = self.write("second", text[text.index(b"\n", 60000):])
        self.train(first, second, ranks=600, out="one")
        self.train(second, first, ranks=600, out=os.path.join("deep", "two"))
        for name in (MODEL, CONFIG):
            self.assertEqual(read(self.path("one", name)), read(self.path("deep", "two", name)))
        self.assertEqual(sorted(os.listdir(self.path("one"))), [MODEL, CONFIG])
        config = json.loads(read(self.path("one", CONFIG)))
        self.assertEqual(config["added_tokens_decoder"]["600"]["content"], "[BOS]")

    def test_little_text_gives_fewer_ranks(self):
        summary, notices = self.train(self.write("text", b"ab ab"), ranks=300)
        self.assertIn(": 257 ranks, vocab_size 353, ", summary)
        self.assertIn("257 ranks instead of 300", notices)
        config = json.loads(read(self.path("out", CONFIG)))
        self.assertEqual(config["added_tokens_decoder"]["257"]["content"], "[BOS]")
        self.train(self.write("empty", b""), self.path("text"), ranks=256, out="bytes")
        self.assertEqual(read(self.path("bytes", MODEL)).count(b"\n"), 256)

    def test_existing_files_stay(self):
        text = self.write("text", b"ab ab")
        for name in (MODEL, CONFIG):
            out = self.path("of_" + name)
            os.makedirs(out)
            with open(os.path.join(out, name), "wb") as stream:
                stream.write(b"mine")
            self.refuse("tokenizer-train", text, "--ranks", "300", "--out", out,
                        says=(os.path.join(out, name), "not overwritten", "--out"))
            self.assertEqual(os.listdir(out), [name])
            self.assertEqual(read(out, name), b"mine")

    def test_bad_texts(self):
        out = self.path("out")
        text = self.write("text", b"ab ab")
        words = ("--ranks", "300", "--out", out)
        bad = self.write("bad", b"caf\xc3\xa9 caf\xe9")
        self.refuse("tokenizer-train", text, bad, *words, says=(bad, "UTF-8", "byte offset 9"))
        cut = self.write("cut", b"caf\xc3")
        self.refuse("tokenizer-train", cut, *words, says=(cut, "byte offset 3"))
        empty = self.write("empty", b"")
        self.refuse("tokenizer-train", empty, *words, says=(empty, "an empty file"))
        self.refuse("tokenizer-train", empty, empty, *words, says=("only empty files",))
        self.refuse("tokenizer-train", self.path("none"), *words, says=(self.path("none"),))
        self.refuse("tokenizer-train", self.scratch, *words, says=(self.scratch,))
        self.assertFalse(os.path.exists(out))
        self.refuse("tokenizer-train", text, "--ranks", "300", "--out", text, says=(text,))

    def test_bad_words(self):
        text = self.write("text", b"ab ab")
        for ranks in ("255", "1000001", "-1", "1e3", "many", "99999999999999999999"):
            self.refuse("tokenizer-train", text, "--ranks", ranks, "--out", self.path("out"),
                        code=2, says=("--ranks",))
        words = ("tokenizer-train", text, "--ranks", "300")
        self.refuse(*words, code=2, says=("--out",))
        self.refuse("tokenizer-train", text, "--out", self.path("out"), code=2, says=("--ranks",))
        self.refuse("tokenizer-train", "--ranks", "300", "--out", self.path("out"), code=2,
                    says=("FILE",))
        self.refuse(*words, "--out", self.path("out"), "--special-tokens", "other", code=2,
                    says=("--special-tokens", "default"))
        self.assertFalse(os.path.exists(self.path("out")))


if __name__ == "__main__":
    k3_binary.main()
