"""run, eval, tokenize, inspect, init and --version on real models, and how the program ends."""

import json
import os
import re
import signal
import subprocess

import k3_binary
from k3_binary import KJV, TINY

KIMI_K3_CONFIG = os.path.join(k3_binary.ROOT, "tests", "data", "kimi_k3_config.json")


def read_json(*names):
    with open(os.path.join(*names), encoding="utf-8") as stream:
        return json.load(stream)


class RunTest(k3_binary.BinaryTest):

    def test_greedy_text_and_ids_are_those_of_the_reference(self):
        reference = read_json(KJV, "reference.json")
        words = ("run", KJV, reference["prompt"], "--greedy", "--max-tokens", "40")
        self.assertEqual(self.succeed(*words).stdout.decode(), reference["greedy_text"] + "\n")
        ids = self.succeed(*words, "--ids").stdout.decode()
        self.assertEqual([int(word) for word in ids.split(",")], reference["greedy_40"])

    def test_the_prompt_comes_from_words_standard_input_or_a_file(self):
        with open(self.path("prompt"), "wb") as stream:
            stream.write("In the beginning".encode())
        more = ("--max-tokens", "5", "--temperature", "0")
        said = self.succeed("run", KJV, "In the beginning", *more).stdout
        self.assertEqual(self.succeed("run", KJV, "-", *more, stdin=b"In the beginning").stdout, said)
        self.assertEqual(
            self.succeed("run", KJV, "--prompt-file", self.path("prompt"), *more).stdout, said)

    def test_a_prompt_is_taken_as_it_is(self):
        for prompt in ("[a,b]", "{}", "%%", "\"q\"", "'q'", "a=b", " lead", "tail ", "<|open|>"):
            with self.subTest(prompt):
                ids = self.succeed("tokenize", KJV, prompt).stdout
                back = self.succeed("tokenize", KJV, "--decode", ids.decode().strip()).stdout
                self.assertEqual(back.decode(), prompt)
        self.succeed("run", KJV, "--max-tokens", "1", "--", "--dashes")

    def test_a_seed_repeats_and_the_default_is_one(self):
        words = ("run", KJV, "And the king", "--max-tokens", "12", "--ids")
        plain = self.succeed(*words).stdout
        self.assertEqual(self.succeed(*words, "--seed", "0").stdout, plain)
        self.assertEqual(self.succeed(*words, "--threads", "1", "--prefill-chunk", "1").stdout, plain)
        self.assertNotEqual(self.succeed(*words, "--seed", "1").stdout, plain)
        best = self.succeed(*words, "--greedy").stdout
        self.assertEqual(self.succeed(*words, "--top-k", "1", "--seed", "5").stdout, best)
        self.assertEqual(self.succeed(*words, "--top-p", "0.0001", "--seed", "5").stdout, best)
        self.assertEqual(self.succeed(*words, "--min-p", "1", "--seed", "5").stdout, best)

    def test_stop_ids_end_the_text(self):
        reference = read_json(KJV, "reference.json")["greedy_40"]
        words = ("run", KJV, "In the beginning", "--greedy", "--ids", "--max-tokens", "40")
        ended = self.succeed(*words, "--stop-id", "2047", "--stop-id", str(reference[3])).stdout
        self.assertEqual(ended.decode(), ",".join(map(str, reference[:3])) + "\n")
        ignored = self.succeed(*words, "--stop-id", str(reference[3]), "--ignore-eos").stdout
        self.assertEqual(len(ignored.split(b",")), 40)

    def test_stats_go_to_standard_error(self):
        result = self.succeed("run", KJV, "In the beginning", "--max-tokens", "3", "--stats")
        self.assertRegex(result.stderr.decode(), r"k3: prompt: 4 tokens in .* generated: 3 tokens .*"
                                                 r" finished: length")

    def test_the_context_is_a_limit(self):
        model = self.copy_model(KJV)

        def shorten(config):
            config["text_config"]["max_position_embeddings"] = 6
        k3_binary.edit_json(os.path.join(model, "config.json"), shorten)
        result = self.succeed("run", model, "In the beginning", "--ids")
        self.assertEqual(len(result.stdout.split(b",")), 2)
        self.refuse("run", model, "In the beginning God created",
                    says=("InvalidArgument", "context of 6", "shorten"))

    def test_control_tokens_that_are_not_special_are_printed(self):
        model = self.path("random")
        config = self.path("config.json")
        with open(os.path.join(TINY, "config.json"), encoding="utf-8") as source, \
                open(config, "w", encoding="utf-8") as target:
            target.write(source.read())
        self.succeed("init", "--config", config, "--out", model)
        decoded = self.succeed("tokenize", model, "--decode", "259,260,261").stdout
        self.assertEqual(decoded, b"<|open|><|close|><|sep|>")
        result = self.succeed("run", model, "hello", "--max-tokens", "200", "--ignore-eos",
                              "--temperature", "3", "--top-p", "1")
        self.assertNotIn(b"reserved_token", result.stdout)
        self.assertNotIn(b"[BOS]", result.stdout)


class EvalTest(k3_binary.BinaryTest):

    def test_the_loss_is_that_of_the_reference(self):
        reference = read_json(KJV, "reference.json")
        result = self.succeed("eval", KJV, "--text", os.path.join(KJV, "heldout.txt"), "--context",
                              "512", "--max-tokens", "8192", "--json")
        found = json.loads(result.stdout)
        print(f"kjv: {found['nats_per_token']:.6f} nats per token")
        self.assertEqual(found["tokens"], reference["tokens"])
        # The reference is float64; float32 comes within about 1e-7 of it.
        self.assertAlmostEqual(found["nats_per_token"], reference["nats_per_token"], delta=1e-4)
        for window, expected in zip(found["per_window"], reference["per_window"], strict=True):
            self.assertAlmostEqual(window, expected, delta=1e-3)

    def test_text_form_and_target(self):
        words = ("eval", KJV, "--text", os.path.join(KJV, "heldout.txt"), "--context", "64",
                 "--max-tokens", "100")
        plain = self.succeed(*words).stdout
        self.assertRegex(plain.decode(), r"^nats per token: \d\.\d{6}\nperplexity: \d+\.\d{4}\n"
                                         r"tokens: 98 ")
        forced = self.succeed(*words, "--prefill-chunk", "9", target="scalar")
        self.assertEqual(forced.stdout, plain)
        self.assertIn(b"K3_TARGET", forced.stderr)

    def test_texts_it_cannot_measure(self):
        with open(self.path("short"), "w", encoding="utf-8") as stream:
            stream.write("a")
        with open(self.path("latin1"), "wb") as stream:
            stream.write(b"caf\xe9 noir")
        self.refuse("eval", KJV, "--text", self.path("short"), says=("short", "at least 2"))
        self.refuse("eval", KJV, "--text", self.path("latin1"), says=("latin1", "UTF-8", "3"))
        self.refuse("eval", KJV, "--text", self.path("absent"), says=("NotFound", "absent"))
        self.refuse("eval", KJV, "--text", os.path.join(KJV, "heldout.txt"), "--context", "1",
                    says=("context", "found 1"))


class TokenizeTest(k3_binary.BinaryTest):

    def test_cases_of_the_reference(self):
        for case in read_json(KJV, "tokenizer_cases.json"):
            with self.subTest(case["text"][:20]):
                text = case["text"].encode()
                out = self.succeed("tokenize", KJV, "-", stdin=text).stdout.decode()
                self.assertEqual([int(word) for word in out.split(",") if word.strip()], case["ids"])
                back = self.succeed("tokenize", KJV, "--decode", out.strip()).stdout
                self.assertEqual(back, text)

    def test_forms(self):
        self.assertEqual(self.succeed("tokenize", KJV, "In the").stdout, b"1147,258\n")
        self.assertEqual(self.succeed("tokenize", KJV, "In the", "--pieces").stdout,
                         b'1147\t"In"\n258\t" the"\n')
        self.assertEqual(json.loads(self.succeed("tokenize", KJV, "In the", "--json").stdout),
                         {"ids": [1147, 258], "pieces": ["In", " the"]})

    def test_it_needs_no_weights(self):
        model = self.path("tokenizer")
        os.makedirs(model)
        for name in ("config.json", "tiktoken.model", "tokenizer_config.json"):
            os.symlink(os.path.join(KJV, name), os.path.join(model, name))
        self.assertEqual(self.succeed("tokenize", model, "In the").stdout, b"1147,258\n")


class InspectTest(k3_binary.BinaryTest):

    def test_the_released_configuration(self):
        report = json.loads(self.succeed("inspect", KIMI_K3_CONFIG, "--json").stdout)
        total = report["total"]
        self.assertAlmostEqual(total["parameters"] / 1e12, 2.78, delta=0.005)
        self.assertAlmostEqual(total["active_parameters"] / 1e9, 104.19, delta=0.005)
        parts = {name: row["active_parameters"] / 1e9 for name, row in report["components"].items()}
        for name, billions in (("routed experts", 48.62), ("shared experts", 12.16),
                               ("latent projections", 4.73), ("router", 0.59),
                               ("KDA attention", 30.62), ("MLA attention", 5.57),
                               ("dense MLP", 0.73), ("head", 1.17)):
            self.assertAlmostEqual(parts[name], billions, delta=0.006, msg=name)
        # 497,220 tensors of the release without its 3 + 3 + 27 * 6 of vision.
        vision = 3 + 2 + 27 * 6 + 1
        self.assertEqual(total["tensors"], 497_220 - vision)
        self.assertEqual(report["config"]["unknown_fields"], [])
        self.assertEqual(len(report["config"]["mla_layers"]), 24)
        self.assertIs(report["memory"]["fits_in_memory"], False)
        # 24 layers of (512 + 64) float32 a token; the rest is KDA's.
        states = {entry["tokens"]: entry["bytes"] for entry in report["memory"]["state_bytes"]}
        self.assertAlmostEqual((states[1048576] - states[131072]) / (1048576 - 131072) / 4,
                               24 * 576, delta=1)
        text = self.succeed("inspect", KIMI_K3_CONFIG).stdout.decode()
        self.assertIn("2.78 T", text)
        self.assertIn("104.19 B", text)

    def test_a_checkpoint(self):
        report = json.loads(self.succeed("inspect", KJV, "--json").stdout)
        from_config = json.loads(
            self.succeed("inspect", os.path.join(KJV, "config.json"), "--json").stdout)
        self.assertEqual(report["files"]["missing"], [])
        self.assertEqual(report["files"]["unexpected"], [])
        self.assertAlmostEqual(report["total"]["parameters"] / 1e6, 8.0, delta=0.1)
        self.assertEqual(report["components"]["routed experts"],
                         from_config["components"]["routed experts"])
        self.assertIs(report["memory"]["fits_in_memory"], True)
        text = self.succeed("inspect", KJV).stdout.decode()
        self.assertIn("every tensor that the configuration asks for is there", text)

    def test_tensors(self):
        lines = self.succeed("inspect", TINY, "--tensors").stdout.decode().splitlines()
        self.assertEqual(len(lines), len(read_json(TINY, k3_binary.INDEX)["weight_map"]))
        found = [line for line in lines if line.startswith("language_model.lm_head.weight\t")]
        self.assertRegex(found[0], r"\tBF16\t\[512, 96\]\t98304\tmodel-00003-of-00003.safetensors\t\d+$")

    def test_missing_and_unexpected_tensors_and_unknown_fields(self):
        model = self.copy_model(TINY)
        name = "language_model.model.norm.weight"
        shard = k3_binary.shard_of(model, name)
        header, data = k3_binary.read_shard(shard)
        header = {("language_model.model.stranger" if key == name else key): value
                  for key, value in header.items()}
        k3_binary.write_shard(shard, header, data)

        def rename(index):
            weights = index["weight_map"]
            weights["language_model.model.stranger"] = weights.pop(name)
        k3_binary.edit_json(os.path.join(model, k3_binary.INDEX), rename)
        k3_binary.edit_json(os.path.join(model, "config.json"),
                            lambda config: config["text_config"].update(novelty=1))
        files = json.loads(self.succeed("inspect", model, "--json").stdout)
        self.assertEqual(files["files"]["missing"], [name])
        self.assertEqual(files["files"]["unexpected"], ["language_model.model.stranger"])
        self.assertEqual(files["config"]["unknown_fields"], ["text_config.novelty"])
        text = self.succeed("inspect", model).stdout.decode()
        for word in (name, "stranger", "novelty"):
            self.assertIn(word, text)

    def test_vision_is_listed_and_not_read(self):
        model = self.copy_model(TINY)
        name = "vision_tower.patch_embed.proj.weight"
        shard = k3_binary.shard_of(model, "language_model.model.norm.weight")
        header, data = k3_binary.read_shard(shard)
        header[name] = {"dtype": "BF16", "shape": [3, 4], "data_offsets": [len(data), len(data) + 24]}
        k3_binary.write_shard(shard, header, data + bytes(24))
        k3_binary.edit_json(
            os.path.join(model, k3_binary.INDEX),
            lambda index: index["weight_map"].update({name: os.path.basename(shard)}))
        report = json.loads(self.succeed("inspect", model, "--json").stdout)
        self.assertEqual(report["components"]["vision (not read)"]["parameters"], 12)
        self.assertEqual(report["files"]["unexpected"], [])
        self.assertEqual(report["files"]["vision_tensors"], 1)
        without = json.loads(self.succeed("inspect", TINY, "--json").stdout)
        self.assertEqual(report["memory"]["weight_bytes"], without["memory"]["weight_bytes"])
        same = [self.succeed("logits", directory, "--tokens", "5,6", "--out", "-").stdout
                for directory in (TINY, model)]
        self.assertEqual(same[0], same[1])

    def test_only_a_configuration(self):
        model = self.path("empty")
        os.makedirs(model)
        os.symlink(os.path.join(TINY, "config.json"), os.path.join(model, "config.json"))
        self.refuse("inspect", model, says=("NotFound", "download the weights",
                                            f"k3 inspect {model}/config.json"))


class InitTest(k3_binary.BinaryTest):

    def init(self, name, *words):
        out = self.path(name)
        self.succeed("init", "--config", os.path.join(TINY, "config.json"), "--out", out, *words)
        return out

    def read_all(self, model):
        content = {}
        for name in os.listdir(model):
            with open(os.path.join(model, name), "rb") as stream:
                content[name] = stream.read()
        return content

    def test_a_random_checkpoint_works_everywhere(self):
        model = self.init("model", "--seed", "3")
        report = json.loads(self.succeed("inspect", model, "--json").stdout)
        self.assertEqual(report["files"]["missing"] + report["files"]["unexpected"], [])
        expected = json.loads(self.succeed("inspect", TINY, "--json").stdout)
        self.assertEqual(report["components"].keys(), expected["components"].keys())
        for name, row in expected["components"].items():
            # The oracle pads A_log to the head dimension, the release to 128.
            if name != "KDA attention":
                self.assertEqual(report["components"][name], row)
        every_id = ",".join(map(str, range(512)))
        pieces = self.succeed("tokenize", model, "--decode", every_id).stdout
        self.assertTrue(pieces.startswith(bytes(range(256))))
        self.succeed("run", model, "hello", "--max-tokens", "3")
        self.succeed("logits", model, "--tokens", "0,511", "--out", self.path("logits"))
        text = self.path("text")
        with open(text, "w", encoding="utf-8") as stream:
            stream.write("some words")
        self.succeed("eval", model, "--text", text)

    def test_made_up_words_fill_a_large_vocabulary(self):
        config = read_json(TINY, "config.json")
        config["text_config"]["vocab_size"] = 2000
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            del config["text_config"][key]
        with open(self.path("config.json"), "w", encoding="utf-8") as stream:
            json.dump(config, stream)
        model = self.path("model")
        self.succeed("init", "--config", self.path("config.json"), "--out", model)
        decode = lambda ids: self.succeed("tokenize", model, "--decode", ids).stdout
        self.assertEqual(decode("256,257,931,932,1743"), b"aaabzzaaabff")
        self.assertEqual(decode("1744,1745,1746,1747,1999"),
                         b"[BOS][EOS]<|end_of_msg|><|open|>[PAD]")
        self.succeed("run", model, "hello", "--max-tokens", "3", "--ids")

    def test_the_seed_makes_the_bytes(self):
        first = self.read_all(self.init("first", "--seed", "1", "--threads", "1"))
        self.assertEqual(self.read_all(self.init("again", "--seed", "1", "--threads", "2")), first)
        other = self.read_all(self.init("other", "--seed", "2"))
        shards = [name for name in first if name.endswith(".safetensors")]
        self.assertEqual(len(shards), 10)
        self.assertTrue(all(first[name] != other[name] for name in shards))
        self.assertNotIn(".incomplete", first)

    def test_two_at_once_into_one_directory(self):
        out = self.path("shared")
        words = [self.binary, "init", "--config", os.path.join(KJV, "config.json"), "--out", out]
        both = [subprocess.Popen([*words, "--seed", str(seed)], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE) for seed in (1, 2)]
        for process in both:
            process.communicate(timeout=k3_binary.TIMEOUT_S)
        self.assertEqual(sorted(process.returncode for process in both), [0, 1])
        self.succeed("run", out, "a", "--max-tokens", "1")

    def test_a_tokenizer_that_is_there_is_kept(self):
        out = self.path("kept")
        os.mkdir(out)
        with open(os.path.join(out, "tiktoken.model"), "w", encoding="utf-8") as stream:
            stream.write("mine")
        self.refuse("init", "--config", os.path.join(KJV, "config.json"), "--out", out,
                    says=("tiktoken.model",))
        self.assertEqual(os.listdir(out), ["tiktoken.model"])

    def test_a_slice_of_layers(self):
        model = self.init("slice", "--layers", "3-4", "--shard-size", "200000")
        report = json.loads(self.succeed("inspect", model, "--json").stdout)
        self.assertEqual(report["files"]["partial_layers"], [3, 4])
        self.assertEqual(report["files"]["missing"], [])
        self.assertGreater(len(report["files"]["shards"]), 2)
        self.assertNotIn("embedding", report["components"])
        self.assertIn("layers 3 to 4", self.succeed("inspect", model).stdout.decode())
        self.refuse("logits", model, "--tokens", "1", "--out", self.path("x"),
                    says=("layers 3 to 4", "cannot be run alone"))

    def test_bad_requests(self):
        config = os.path.join(TINY, "config.json")
        for layers in ("7-9", "3-2", "x", "1-", "-1"):
            self.refuse("init", "--config", config, "--out", self.path("out"), "--layers=" + layers,
                        says=("layers", "range"))
        self.refuse("init", "--config", config, "--out", TINY,
                    says=("InvalidArgument", "tiny-a", "without a checkpoint"))
        self.refuse("init", "--config", self.path("absent"), "--out", self.path("out"),
                    says=("NotFound", "absent"))
        self.refuse("init", "--config", config, "--out", "/proc/k3-nowhere/model", says=("/proc",))


class EndingTest(k3_binary.BinaryTest):

    def test_version(self):
        text = self.succeed("--version").stdout.decode()
        self.assertRegex(text, r"^k3 \d+\.\d+\.\d+\ncommit: [\w-]+\ncompiler: \w+")
        self.assertIn("SIMD target in use: scalar",
                      self.succeed("--version", target="scalar").stdout.decode())

    def test_help_teaches(self):
        self.assertIn(b"Examples:", self.succeed("--help").stdout)
        names = ("run", "inspect", "eval", "logits", "tokenize", "init", "bench")
        for name in names:
            text = self.succeed(name, "--help").stdout.decode()
            self.assertRegex(text, rf"Usage: k3 {name}", name)

    def test_token_ids_are_taken_strictly(self):
        for ids in ("1,,2", "1,", ",1", "1;2", "-1", "1.5", ""):
            with self.subTest(ids):
                self.refuse("logits", KJV, "--tokens", ids, "--out", self.path("out"), says=("--tokens",))

    def test_usage_errors_exit_with_two(self):
        self.refuse("dance", code=2, says=("no command", "dance"))
        for words in ((), ("run",), ("run", KJV, "a", "--threads", "-1"),
                      ("run", KJV, "a", "--threads", "many"), ("run", KJV, "a", "--no-such"),
                      ("logits", KJV), ("tokenize", KJV, "a", "--decode", "1")):
            result = self.refuse(*words, code=2, says=("k3: Usage: ", "--help"))
            self.assertEqual(result.stdout, b"")

    def test_the_target_is_checked_and_said(self):
        self.refuse("run", KJV, "a", target="sse9", says=("K3_TARGET", "avx512", "sse9"))
        self.refuse("run", KJV, "a", target="", says=("K3_TARGET",))
        result = self.succeed("run", KJV, "a", "--max-tokens", "1", target="scalar")
        self.assertIn(b"K3_TARGET forces the SIMD target scalar", result.stderr)

    def test_a_closed_pipe_ends_quietly(self):
        for words in (("run", KJV, "And", "--max-tokens", "100000", "--ignore-eos"),
                      ("inspect", TINY, "--tensors")):
            with subprocess.Popen([self.binary, *words], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) as process:
                process.stdout.read(10)
                process.stdout.close()
                error = process.stderr.read()
                self.assertEqual(process.wait(k3_binary.TIMEOUT_S), 0)
                self.assertEqual(error, b"")

    def test_a_full_disk_under_the_output_is_reported(self):
        for words in (("run", KJV, "And", "--max-tokens", "1"), ("tokenize", KJV, "And"),
                      ("inspect", KJV), ("inspect", KJV, "--tensors"), ("--version",), ("--help",),
                      ("logits", KJV, "--tokens", "1", "--out", "-")):
            with open("/dev/full", "wb") as full:
                self.refuse(*words, stdout=full, says=("ResourceExhausted", "standard output"))
        self.refuse("logits", KJV, "--tokens", "1", "--out", "/dev/full",
                    says=("ResourceExhausted", "/dev/full"))

    def test_ctrl_c_ends_the_text_and_says_so(self):
        words = ("run", KJV, "And", "--max-tokens", "100000", "--ignore-eos", "--ids")
        with subprocess.Popen([self.binary, *words], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            begin = process.stdout.read(10)
            process.send_signal(signal.SIGINT)
            rest, error = process.communicate(timeout=k3_binary.TIMEOUT_S)
        self.assertEqual(process.returncode, 130, error)
        self.assertTrue(re.fullmatch(rb"\d+(,\d+)*\n", begin + rest), (begin + rest)[-40:])


class BalanceSimTest(k3_binary.BinaryTest):
    """`k3 balance-sim` at the size of the released model's router."""

    def test_quantile_balancing_meets_its_bars(self):
        curves = json.loads(self.succeed("balance-sim", "--steps", "5", "--json").stdout)
        self.assertEqual(list(curves), ["none", "sign_0.001", "sign_0.01", "sign_0.05", "qb_exact",
                                        "qb_histogram"])
        for method in ("qb_exact", "qb_histogram"):
            curve = curves[method]
            self.assertGreater(curve[0], 15)
            for step, most in ((1, 2.6), (2, 0.6), (4, 0.4)):
                self.assertLess(curve[step], most, f"{method}, {step} updates")
        self.assertGreater(curves["none"][4], 15)

    def test_refusals(self):
        self.refuse("balance-sim", "--active", "896", says=["active: expected 1 to 895"])
        self.refuse("balance-sim", "--steps", "0", says=["steps: expected 1 to"])
        self.refuse("balance-sim", "--tokens", "-1", code=2)


if __name__ == "__main__":
    k3_binary.main()
