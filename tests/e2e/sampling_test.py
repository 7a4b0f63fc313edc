"""How tokens are drawn and reported: seeds, penalties, biases, log-probabilities and stop strings."""

import json
import os

import k3_binary
from k3_binary import KJV

k3_binary.need_numpy()

import numpy as np  # noqa: E402 pylint: disable=wrong-import-position

TARGETS = ("scalar", "avx2", "avx512")
VOCABULARY = 2048
PROMPT = "And the king said unto"
# One float32 rounding of a number that float64 gives.
FIRST_TOLERANCE = 1e-5
# Generated tokens go through the absorbed form of MLA, `k3 logits` through the prefill form: they
# differ by rounding, measured 2e-6.
FOLLOWING_TOLERANCE = 1e-4
EVERYTHING = ("--temperature", "1.2", "--top-k", "400", "--top-p", "0.97", "--min-p", "0.001",
              "--repetition-penalty", "1.3", "--presence-penalty", "0.4", "--frequency-penalty",
              "-0.3", "--logit-bias", "44=-2.5", "--logit-bias", "258=1")


def read_greedy():
    with open(os.path.join(KJV, "reference.json"), encoding="utf-8") as stream:
        reference = json.load(stream)
    return reference["prompt"], reference["greedy_40"], reference["greedy_text"]


class SamplingTest(k3_binary.BinaryTest):

    def lines(self, *words, **options):
        """What `k3 run --logprobs` says of each token."""
        return [json.loads(line) for line in
                self.succeed("run", KJV, *words, **options).stdout.splitlines()]

    def encode(self, text):
        out = self.succeed("tokenize", KJV, "-", stdin=text).stdout.decode()
        return [int(word) for word in out.split(",")]

    def log_softmax(self, ids):
        """float64 log-probabilities [T, V] of what `k3 logits` writes for these tokens."""
        out = self.path("logits.f32")
        self.succeed("logits", KJV, "--tokens", ",".join(map(str, ids)), "--out", out)
        logits = np.fromfile(out, "<f4").reshape(len(ids), VOCABULARY).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def force(self, *ids):
        """Options that make these distinct tokens come in turn, whatever the model says: biases that
        fall, and a penalty that takes the bias of a drawn token away."""
        self.assertLessEqual(len(set(ids)), 5)
        self.assertEqual(len(set(ids)), len(ids))
        words = ["--greedy", "--repetition-penalty", "1000000", "--max-tokens", str(len(ids))]
        for place, token in enumerate(ids):
            words += ["--logit-bias", f"{token}={100 - 80 // len(ids) * place}"]
        return words


class SeedTest(SamplingTest):

    def test_a_seed_gives_the_same_text_and_log_probs_everywhere(self):
        ways = [(("--threads", count), None) for count in ("1", "2", "3")]
        ways += [(("--prefill-chunk", "2"), None)]
        for target in TARGETS:
            result = self.k3("--version", target=target)
            if result.returncode == 0:
                ways.append(((), target))
            else:
                self.assertIn(b"this processor has no", result.stderr)
                print(f"{target}: not on this processor")
        for options in ((), EVERYTHING):
            words = ("run", KJV, PROMPT, "--seed", "11", "--max-tokens", "16", *options)
            text = self.succeed(*words).stdout
            log_probs = self.succeed(*words, "--logprobs", "5").stdout
            self.assertEqual(len(log_probs.splitlines()), 16)
            for way, target in ways:
                with self.subTest(way=way, target=target, options=options):
                    self.assertEqual(self.succeed(*words, *way, target=target).stdout, text)
                    again = self.succeed(*words, *way, "--logprobs", "5", target=target).stdout
                    self.assertEqual(again, log_probs)

    def test_every_option_changes_what_is_drawn(self):
        words = ("run", KJV, PROMPT, "--max-tokens", "40", "--ids")
        plain = self.succeed(*words).stdout
        for option in (("--seed", "12"), ("--repetition-penalty", "1.5"),
                       ("--presence-penalty", "2"), ("--frequency-penalty", "2"),
                       ("--frequency-penalty", "-2"), ("--logit-bias", "44=-100")):
            self.assertNotEqual(self.succeed(*words, *option).stdout, plain, option)
        for option in (("--repetition-penalty", "1"), ("--presence-penalty", "0"),
                       ("--frequency-penalty", "-0"), ("--logit-bias", "44=0"), ("--seed", "00")):
            self.assertEqual(self.succeed(*words, *option).stdout, plain, option)


class LogProbsTest(SamplingTest):

    def test_they_agree_with_the_logits(self):
        prompt = self.encode(PROMPT.encode())
        for options in (("--greedy",), ("--seed", "5"), ("--seed", "6", *EVERYTHING)):
            lines = self.lines(PROMPT, "--max-tokens", "24", "--logprobs", "5", *options)
            ids = [line["id"] for line in lines]
            self.assertEqual(len(ids), 24)
            table = self.log_softmax(prompt + ids[:-1])[len(prompt) - 1:]
            worst = 0.0
            for place, (line, expected) in enumerate(zip(lines, table, strict=True)):
                order = np.argsort(-expected, kind="stable")[:5]
                self.assertEqual([entry["id"] for entry in line["top"]], order.tolist())
                for entry in [line, *line["top"]]:
                    error = abs(entry["logprob"] - expected[entry["id"]])
                    bound = FIRST_TOLERANCE * abs(expected[entry["id"]]) if place == 0 else (
                        FOLLOWING_TOLERANCE)
                    self.assertLessEqual(error, bound, f"token {place}: {entry}")
                    worst = max(worst, error)
            print(f"log-probabilities: within {worst:.1e} of k3 logits")

    def test_a_line_holds_the_token_and_its_bytes(self):
        words = (PROMPT, "--seed", "3", "--max-tokens", "30", "--temperature", "1.5", "--top-p", "1")
        text = self.succeed("run", KJV, *words).stdout
        lines = self.lines(*words, "--logprobs", "2")
        for line in lines:
            self.assertEqual(list(line), ["id", "text", "bytes", "logprob", "top"])
            self.assertEqual(bytes(line["bytes"]).decode(errors="replace"), line["text"])
            self.assertEqual([list(entry) for entry in line["top"]],
                             [["id", "text", "logprob"]] * 2)
            self.assertLessEqual(line["logprob"], 0)
        joined = b"".join(bytes(line["bytes"]) for line in lines)
        self.assertEqual(joined.decode(errors="replace").encode() + b"\n", text)

    def test_bytes_that_are_no_text(self):
        emoji = "\N{GRINNING FACE}".encode()
        lines = self.lines(PROMPT, "--logprobs", "1", *self.force(*self.encode(emoji)))
        self.assertEqual([line["bytes"] for line in lines], [[byte] for byte in emoji])
        self.assertEqual([line["text"] for line in lines], ["\ufffd"] * 4)

    def test_how_many_alternatives(self):
        greedy = (PROMPT, "--greedy", "--max-tokens", "2", "--logprobs")
        self.assertEqual([line["top"] for line in self.lines(*greedy, "0")], [[], []])
        for line in self.lines(*greedy, "20"):
            top = [(-entry["logprob"], entry["id"]) for entry in line["top"]]
            self.assertEqual(top, sorted(top))
            self.assertEqual(len(top), 20)
            self.assertEqual(line["top"][0]["id"], line["id"])
            self.assertEqual(line["top"][0]["logprob"], line["logprob"])


class AdjustmentTest(SamplingTest):

    def ids(self, *words):
        out = self.succeed("run", KJV, *words, "--ids", "--ignore-eos").stdout.decode()
        return [int(word) for word in out.split(",")]

    def test_a_bias_forces_and_bans(self):
        prompt, greedy, _ = read_greedy()
        words = (prompt, "--max-tokens", "12", "--greedy")
        self.assertEqual(self.ids(*words, "--logit-bias", "7=100"), [7] * 12)
        banned = self.ids(*words, "--logit-bias", f"{greedy[0]}=-100", "--logit-bias",
                          f"{greedy[1]}=-100")
        self.assertFalse(set(greedy[:2]) & set(banned))
        self.assertEqual(self.ids(prompt, *self.force(3, 1999, 5)), [3, 1999, 5])
        # What is reported is the model's own opinion.
        plain = self.lines(prompt, "--max-tokens", "1", "--greedy", "--logprobs", "3")
        biased = self.lines(prompt, "--max-tokens", "1", "--greedy", "--logprobs", "3",
                            "--logit-bias", "7=100")
        self.assertEqual(biased[0]["id"], 7)
        self.assertLess(biased[0]["logprob"], -2)
        self.assertEqual(biased[0]["top"], plain[0]["top"])

    def test_penalties_keep_tokens_from_coming_again(self):
        prompt, greedy, _ = read_greedy()
        self.assertLess(len(set(greedy)), 20, "the reference repeats itself")
        words = (prompt, "--max-tokens", "40", "--greedy")
        seen = self.encode(prompt.encode())
        for token in self.ids(*words, "--repetition-penalty", "1000000"):
            self.assertNotIn(token, seen)
            seen.append(token)
        for penalty in ("--presence-penalty", "--frequency-penalty"):
            self.assertGreater(len(set(self.ids(*words, penalty, "2"))), len(set(greedy)))


class StopTest(SamplingTest):

    def stopped(self, *words):
        """The text without its line break, and why it ended."""
        result = self.succeed("run", KJV, *words, "--stats")
        self.assertTrue(result.stdout.endswith(b"\n"))
        return result.stdout[:-1], result.stderr.decode().split("finished: ")[1].strip()

    def test_a_stop_string_may_span_tokens(self):
        prompt, greedy, text = read_greedy()
        # " f", "ow", "ls": it begins and ends inside of a token.
        pieces = [self.succeed("tokenize", KJV, "--decode", str(token)).stdout.decode()
                  for token in greedy[6:9]]
        stop = "".join(pieces)[1:-1]
        self.assertTrue(all(len(piece) > 1 for piece in pieces), "choose other tokens")
        words = (prompt, "--greedy", "--max-tokens", "40", "--stop", stop)
        expected = (text[:text.index(stop)].encode(), "stop")
        self.assertEqual(self.stopped(*words), expected)
        self.assertEqual(self.stopped(*words, "--stop", "nowhere"), expected)
        # Where tokens are printed, the one that completes the stop string is the last.
        ids = self.succeed("run", KJV, *words, "--ids").stdout.decode()
        self.assertEqual([int(word) for word in ids.split(",")], greedy[:9])
        self.assertEqual([line["id"] for line in self.lines(*words, "--logprobs", "0")], greedy[:9])

    def test_the_first_of_several_ends_the_text(self):
        prompt, _, text = read_greedy()
        words = (prompt, "--greedy", "--max-tokens", "40")
        self.assertEqual(self.stopped(*words, "--stop", "fowls of", "--stop", "fowls"),
                         (text[:text.index("fowls")].encode(), "stop"))
        self.assertEqual(self.stopped(*words, "--stop", "owls", "--stop", "fowls"),
                         (text[:text.index("fowls")].encode(), "stop"))

    def test_what_became_no_stop_string_is_printed(self):
        prompt, _, text = read_greedy()
        words = (prompt, "--greedy", "--max-tokens", "40")
        self.assertEqual(self.stopped(*words, "--stop", "fowls of the sea"),
                         (text.encode(), "length"))
        # Held to the very end.
        self.assertEqual(self.stopped(*words, "--stop", text[-10:] + "?"), (text.encode(), "length"))

    def test_a_stop_string_may_be_half_an_emoji(self):
        emoji = "\N{GRINNING FACE}".encode()
        words = (PROMPT, *self.force(*self.encode(emoji)))
        self.assertEqual(self.stopped(*words), (emoji, "length"))
        self.assertEqual(self.stopped(*words, "--stop", emoji[:2]), (b"", "stop"))
        # The half before it is no character any more.
        self.assertEqual(self.stopped(*words, "--stop", emoji[2:]), ("\ufffd".encode(), "stop"))
        self.assertEqual(self.stopped(*words, "--stop", emoji[1:3]), ("\ufffd".encode(), "stop"))

    def test_a_stop_string_is_taken_as_it_is(self):
        # What the parser of options has a meaning for, and nothing is an escape.
        for stop in (b"{}", b"[a,b]", b"[]", b"'ab", b"\"ab", b"\\n", b"a=b", b"-x", b"--", b"%%"):
            with self.subTest(stop):
                ids = self.encode(stop)
                words = self.force(*ids) if len(set(ids)) > 1 else (
                    "--greedy", "--logit-bias", f"{ids[0]}=100", "--max-tokens", "2")
                self.assertEqual(self.stopped(PROMPT, *words), (stop, "length"))
                self.assertEqual(self.stopped(PROMPT, *words, "--stop", stop), (b"", "stop"))
                self.assertEqual(self.stopped(PROMPT, *words, b"--stop=" + stop), (b"", "stop"))


class RefusalTest(SamplingTest):

    def test_values_that_an_option_cannot_take(self):
        for option, values in (
                ("--temperature", ("-1", "nan", "inf", "1e999", "x")),
                ("--top-k", ("-1", "1.5", "9223372036854775808")), ("--top-p", ("0", "1.5", "nan")),
                ("--min-p", ("2", "-0.1", "nan")), ("--seed", ("-1", "18446744073709551616", "x")),
                ("--max-tokens", ("-1", "9223372036854775808", "1e3")),
                ("--repetition-penalty", ("0", "-1", "inf", "nan")),
                ("--presence-penalty", ("2.5", "-3", "nan")), ("--frequency-penalty", ("2.5", "x")),
                ("--logit-bias", ("5", "5=", "=1", "-1=1", "5=101", "5=nan", "5:1", "2147483648=1")),
                ("--logprobs", ("21", "-1")), ("--stop-id", ("-1", "9223372036854775808")),
                ("--stop", ("", "x" * 4097))):
            for value in values:
                with self.subTest(option + " " + value[:30]):
                    self.refuse("run", KJV, "a", option, value, code=2,
                                says=("Usage: " + option, "expected"))
        self.refuse("run", KJV, "a", "--logprobs", "1", "--ids", code=2, says=("excludes",))

    def test_values_that_need_a_second_look(self):
        self.refuse("run", KJV, "a", "--logit-bias", "5=1", "--logit-bias", "5=2",
                    says=("logit_bias", "token 5 more than once"))
        self.refuse("run", KJV, "a", "--logit-bias", "2048=1", says=("token 2048", "[0, 2048)"))
        self.refuse("run", KJV, "a", *["--stop=x"] * 65, says=("--stop", "at most 64"))
        self.succeed("run", KJV, "a", "--max-tokens", "1", *["--stop=x"] * 64)

    def test_the_largest_seed_is_one(self):
        words = ("run", KJV, PROMPT, "--max-tokens", "30", "--ids", "--seed")
        largest = self.succeed(*words, str(2**64 - 1)).stdout
        self.assertNotEqual(self.succeed(*words, str(2**63 - 1)).stdout, largest)


if __name__ == "__main__":
    k3_binary.main()
