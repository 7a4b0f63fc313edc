"""k3 train: what it writes, that it goes on to the same bytes after any end, and what it refuses."""

import copy
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

import numpy

import k3_binary
from k3_binary import INDEX, KJV

OPEN, SEP = 1955, 1957  # of models/kjv
STATE, METRICS = "training_state.safetensors", "metrics.jsonl"
TEXT_BYTES = 20000

MODEL = {
    "model_type": "kimi_k3", "bos_token_id": 1952, "eos_token_id": 1954, "pad_token_id": 2047,
    "text_config": {
        "model_type": "kimi_linear", "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
        "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 4096,
        "bos_token_id": 1952, "eos_token_id": 1954, "pad_token_id": 2047, "q_lora_rank": 32,
        "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 32,
        "mla_use_nope": True, "mla_use_output_gate": True, "num_experts": 8,
        "num_experts_per_token": 2, "num_shared_experts": 1, "moe_intermediate_size": 32,
        "routed_expert_hidden_size": 32, "latent_moe_use_norm": True, "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_expert_group": 1, "topk_group": 1,
        "attn_res_block_size": 2, "num_nextn_predict_layers": 0,
        "linear_attn_config": {
            "head_dim": 32, "num_heads": 2, "short_conv_kernel_size": 4, "kda_layers": [1, 2, 3],
            "full_attn_layers": [4], "use_full_rank_gate": True, "gate_lower_bound": -5.0}}}


def read(*names):
    with open(os.path.join(*names), "rb") as stream:
        return stream.read()


def metrics(run):
    return [json.loads(line) for line in read(run, METRICS).splitlines()]


def curve(run):
    """What of the metrics depends on neither time nor where a run was stopped."""
    return [(m["step"], m["loss"], m["gradient_norm"], m["balance"], m["update_rms"],
             m["head_update_spread"], m["head_update_ratio"], m["quantised"])
            for m in metrics(run)]


def shard(run):
    with open(os.path.join(run, INDEX), encoding="utf-8") as stream:
        names = set(json.load(stream)["weight_map"].values())
    assert len(names) == 1, names
    return read(run, names.pop())


def everything(run):
    return {name: read(run, name) for name in sorted(os.listdir(run))}


class TrainTest(k3_binary.BinaryTest):

    def setUp(self):
        super().setUp()
        with open(self.path("text.txt"), "wb") as stream:
            stream.write(read(KJV, "heldout.txt")[:TEXT_BYTES])

    def config(self, name="run.json", model=None, **fields):
        value = {"model": MODEL if model is None else model, "tokenizer": KJV, "text": "text.txt",
                 "sequence_length": 64, "batch_sequences": 4, "micro_batch_sequences": 2,
                 "steps": 12, "checkpoint_every": 2, "validation": {"every": 4, "tokens": 512},
                 "qat": {"from_step": 7}, "optimizer": {"learning_rate": 0.01}}
        value.update(fields)
        value = {key: field for key, field in value.items() if field is not None}
        with open(self.path(name), "w", encoding="utf-8") as stream:
            json.dump(value, stream)
        return self.path(name)

    def words(self, config, out, *more, threads=1):
        return ("train", config, "--out", self.path(out), "--threads", str(threads), *more)

    def train(self, config, out, *more, **options):
        self.succeed(*self.words(config, out, *more, **options))
        return self.path(out)

    def expect_same(self, run, whole):
        self.assertEqual(curve(run), curve(whole))
        self.assertEqual(shard(run), shard(whole))
        self.assertEqual(read(run, STATE), read(whole, STATE))
        self.assertEqual(read(run, "config.json"), read(whole, "config.json"))
        names = os.listdir(run)
        self.assertFalse([name for name in names if "partial" in name], names)
        self.assertEqual(len([name for name in names if name.startswith("model-")]), 1, names)

    def test_a_run_is_a_checkpoint(self):
        run = self.train(self.config(), "run")
        lines = metrics(run)
        self.assertEqual([m["step"] for m in lines], list(range(1, 13)))
        # Twelve steps from log(2048) = 7.62 on a text of 5,600 tokens.
        self.assertLess(lines[-1]["loss"], lines[0]["loss"] - 0.4)
        self.assertEqual([m["step"] for m in lines if m["val_loss"] is not None], [4, 8, 12])
        found = json.loads(self.succeed("eval", run, "--text", os.path.join(run, "validation.txt"),
                                        "--context", "64", "--json").stdout)
        # Both add the same float32 log-probabilities, in another order: within 1e-8.
        self.assertAlmostEqual(found["nats_per_token"], lines[-1]["val_loss"], delta=1e-7)
        self.assertIn(b"8, 2 a token", self.succeed("inspect", run).stdout)
        self.succeed("run", run, "In the beginning", "--max-tokens", "4")
        header = k3_binary.read_shard(os.path.join(run, "model-000012.safetensors"))[0]
        packed = [name for name in header if name.endswith("weight_packed")]
        self.assertEqual(len(packed), 3 * 8 * 3)
        self.assertTrue(all(header[name]["dtype"] == "U8" for name in packed))
        before = self.train(self.config(), "before", "--stop-at", "6")
        header = k3_binary.read_shard(os.path.join(before, "model-000006.safetensors"))[0]
        experts = [name for name in header if ".experts." in name]
        self.assertEqual({header[name]["dtype"] for name in experts}, {"BF16"})
        self.assertNotIn(b"quantization_config", read(before, "config.json"))

    def test_threads_recompute_and_a_stop_do_not_matter(self):
        config = self.config()
        whole = self.train(config, "whole")
        self.expect_same(self.train(config, "two", threads=2), whole)
        stopped = self.train(config, "stopped", "--stop-at", "5", threads=2)
        self.assertEqual(len(metrics(stopped)), 5)
        self.expect_same(self.train(config, "stopped", "--resume"), whole)
        again = everything(stopped)
        self.assertEqual(everything(self.train(config, "stopped", "--resume")), again)
        for kinds in ("kda", ["normed", "kda", "mla", "mlp", "experts"]):
            run = self.train(self.config("other.json", recompute=kinds), "recompute")
            self.expect_same(run, whole)
            shutil.rmtree(run)

    def start(self, words):
        return subprocess.Popen([self.binary, *words], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def test_a_kill_at_any_moment(self):
        config = self.config(steps=24, checkpoint_every=1)
        whole = self.train(config, "whole")
        chance = random.Random(1)
        run = self.path("run")
        for _ in range(6):
            threads = chance.choice((1, 2))
            process = self.start(self.words(config, "run", "--resume", threads=threads))
            end = time.monotonic() + 30
            while not os.path.exists(os.path.join(run, METRICS)) and time.monotonic() < end:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.5))
            process.kill()
            process.communicate()
            if os.path.exists(os.path.join(run, INDEX)):
                self.succeed("run", run, "In", "--max-tokens", "1")
        self.expect_same(self.train(config, "run", "--resume"), whole)

    def test_a_kill_between_state_and_checkpoint(self):
        config = self.config(steps=4)
        whole = self.train(config, "whole")
        run = self.train(config, "run", "--stop-at", "2")
        # The state of the last step stands, the checkpoint is the one before or none.
        shutil.copyfile(os.path.join(whole, STATE), os.path.join(run, STATE))
        shutil.copyfile(os.path.join(whole, METRICS), os.path.join(run, METRICS))
        with open(os.path.join(run, STATE + ".1.partial"), "wb") as stream:
            stream.write(b"half")
        self.expect_same(self.train(config, "run", "--resume"), whole)
        for name in (INDEX, "config.json"):
            os.remove(os.path.join(run, name))
        self.expect_same(self.train(config, "run", "--resume"), whole)

    def test_signals_finish_the_step(self):
        config = self.config(steps=40, checkpoint_every=1000)
        whole = self.train(config, "whole")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            name = f"run{int(number)}"
            process = self.start(self.words(config, name))
            end = time.monotonic() + 60
            log = self.path(name, METRICS)
            while (not os.path.exists(log) or not os.path.getsize(log)) and time.monotonic() < end:
                time.sleep(0.002)
            process.send_signal(number)
            self.assertIn(b"--resume goes on", process.communicate()[0])
            self.assertEqual(process.returncode, 0)
            self.assertLess(len(metrics(self.path(name))), 40)
            self.succeed("run", self.path(name), "In", "--max-tokens", "1")
            self.expect_same(self.train(config, name, "--resume"), whole)

    def test_an_ignored_signal_stays_ignored(self):
        for number in (signal.SIGHUP, signal.SIGINT):
            name = f"ignored{int(number)}"
            process = subprocess.Popen(
                [self.binary, *self.words(self.config(steps=30, checkpoint_every=1000), name)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                preexec_fn=lambda number=number: signal.signal(number, signal.SIG_IGN))
            end = time.monotonic() + 60
            log = self.path(name, METRICS)
            while (not os.path.exists(log) or not os.path.getsize(log)) and time.monotonic() < end:
                time.sleep(0.002)
            process.send_signal(number)
            self.assertIn(b"step 30 of 30", process.communicate()[0])

    def test_a_loss_that_is_not_finite(self):
        config = self.config(steps=8)
        run = self.train(config, "run", "--stop-at", "4")
        header, data = k3_binary.read_shard(os.path.join(run, f"model-{4:06}.safetensors"))
        # A checkpoint whose head holds an infinite weight, as a start.
        bad = self.copy_model(run, "bad")
        head = next(n for n in header if n.endswith("lm_head.weight"))
        begin = header[head]["data_offsets"][0]
        data = data[:begin] + b"\x80\x7f" + data[begin + 2:]
        k3_binary.write_shard(os.path.join(bad, "model-000004.safetensors"), header, data)
        self.refuse(*self.words(config, "out", "--from", bad), says=("step 1", "finite"))
        self.assertFalse(os.path.exists(self.path("out", INDEX)))
        wild = self.config("wild.json", steps=400, checkpoint_every=1, qat=None,
                           validation={"fraction": 0},
                           optimizer={"kind": "adamw", "learning_rate": 10, "adamw_scale": 1000,
                                      "clip_norm": 0, "weight_decay": 1})
        result = self.k3(*self.words(wild, "wild"))
        error = result.stderr.decode()
        self.assertEqual(result.returncode, 1, error)
        self.assertRegex(error, r"step \d+: expected a finite loss")
        step = metrics(self.path("wild"))[-1]["step"] if metrics(self.path("wild")) else 0
        if step:
            self.assertIn(f"step {step + 1}: ", error)
            self.assertIn(f"the checkpoint of step {step}", error)

    def test_a_full_disk(self):
        config = self.config(steps=8, qat=None)
        whole = self.train(config, "whole")
        state = os.path.getsize(os.path.join(whole, STATE))
        model = os.path.getsize(os.path.join(whole, "model-000008.safetensors"))
        run = self.train(config, "run", "--stop-at", "3")
        before = everything(run)
        for limit in (state // 2, model // 2):

            def narrow(limit=limit):
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            self.refuse(*self.words(config, "run", "--resume"), preexec_fn=narrow,
                        says=("step 4", "the checkpoint of step 3", STATE))
            after = everything(run)
            del before[METRICS], after[METRICS]
            self.assertEqual(after, before)
            before = everything(run)
        self.expect_same(self.train(config, "run", "--resume"), whole)

    def test_wrong_models(self):
        def refuse(change, *says, **fields):
            model = copy.deepcopy(MODEL)
            change(model["text_config"])
            with self.subTest(says):
                self.refuse(*self.words(self.config(model=model, **fields), "out"), says=says)
                self.assertFalse(os.path.exists(self.path("out")))

        def setting(**values):
            return lambda config: config.update(values)
        refuse(setting(num_key_value_heads=3), "num_key_value_heads")
        refuse(setting(num_attention_heads=0), "num_attention_heads")
        refuse(setting(num_experts_per_token=9), "num_experts_per_token")
        refuse(setting(num_experts_per_token=8), "balancing")
        refuse(setting(qk_nope_head_dim=0), "qk_nope_head_dim")
        refuse(setting(moe_intermediate_size=40), "moe_intermediate_size")
        refuse(setting(routed_expert_hidden_size=48), "routed_expert_hidden_size")
        refuse(setting(hidden_size=0), "hidden_size")
        refuse(setting(vocab_size=1000), "bos_token_id")
        refuse(setting(max_position_embeddings=63), "sequence_length", "63")
        refuse(lambda c: c["linear_attn_config"].update(num_heads=0), "num_heads")

    def test_wrong_settings(self):
        def refuse(*says, more=(), **fields):
            with self.subTest(fields=fields, more=more):
                words = self.words(self.config(**fields), "out", *more)
                self.refuse(*words, says=says)
                self.assertFalse(os.path.exists(self.path("out")))
        refuse("stepz", stepz=1)
        refuse("optimizer.rate", optimizer={"rate": 1})
        refuse("qat.step", qat={"step": 1})
        refuse("from_share", qat={"from_step": 1, "from_share": 0.5})
        for value in (-1, 0, "ten", 1.5, [], 2**63):
            refuse("steps", steps=value)
        for value in (-1, 0, "fast", float("nan"), 11, True):
            refuse("run.json", optimizer={"learning_rate": value})
        refuse("optimizer.learning_rate", optimizer={"learning_rate": -1})
        refuse("optimizer.beta2", optimizer={"beta2": 1})
        refuse("optimizer.kind", optimizer={"kind": "sgd"})
        refuse("optimizer", optimizer=[])
        refuse("balancing.rule", balancing={"rule": "luck"})
        refuse("recompute", recompute="all")
        refuse("micro_batch_sequences", micro_batch_sequences=3)
        refuse("batch_sequences", batch_sequences=0)
        refuse("sequence_length", sequence_length=1)
        refuse("validation.fraction", validation={"fraction": 1})
        refuse("validation.context", validation={"context": 5000})
        refuse("nowhere.json", model="nowhere.json")
        refuse("model", model=7)
        refuse("ResourceExhausted", "bytes of memory",
               model=os.path.join(k3_binary.ROOT, "tests", "data", "kimi_k3_config.json"))
        refuse("no tokenizer", tokenizer=None)
        refuse("tokenizer", tokenizer=[KJV, KJV])
        refuse("nowhere", tokenizer="nowhere")
        refuse("nothing to train on", text=None)
        refuse("nowhere.txt", text=["text.txt", "nowhere.txt"])
        refuse("nowhere.jsonl", chat="nowhere.jsonl")
        refuse("tasks.kinds", tasks={"count": 1, "kinds": "chess"})
        refuse("tasks.turns", tasks={"count": 1, "turns": 0})
        refuse("tasks.distractors", tasks={"count": 1, "distractors": -1})
        refuse("tasks.words", tasks={"count": 1, "words": 7})
        refuse("tasks.made_up_names", tasks={"count": 1, "made_up_names": 1})
        refuse("primer_steps", primer_steps=-1)
        refuse("primer_steps", "at most", primer_steps=7, steps=6)
        refuse("ResourceExhausted", "tasks.count", tasks={"count": 10**8})
        refuse("ResourceExhausted", "primer_steps", primer_steps=10**5, steps=10**5,
               batch_sequences=16384, sequence_length=1024)
        refuse("regular file", more=("--text", self.scratch))
        refuse("steps", more=("--steps", "0"))
        refuse("steps", more=("--steps", str(2**62)))
        refuse("nowhere", more=("--from", "nowhere"))
        for content, says in ((b"", "empty"), (b"God", "training data"), (b"\xff" * 900, "UTF-8")):
            with open(self.path("odd.txt"), "wb") as stream:
                stream.write(content)
            refuse(says, text="odd.txt")

    def test_directories_that_are_taken_and_settings_that_changed(self):
        config = self.config(steps=4)
        run = self.train(config, "run", "--stop-at", "2")
        before = everything(run)
        self.refuse(*self.words(config, "run"), says=("--resume",))
        self.copy_model(KJV, "model")
        self.refuse(*self.words(config, "model"), says=("without files of a model",))
        self.refuse(*self.words(config, "model", "--resume"), says=("without files of a model",))
        os.makedirs(self.path("tok"))
        with open(self.path("tok", "tiktoken.model"), "wb") as stream:
            stream.write(b"mine")
        self.refuse(*self.words(config, "tok"), says=("tiktoken.model", "not overwritten"))
        self.assertEqual(read(self.path("tok", "tiktoken.model")), b"mine")
        model = copy.deepcopy(MODEL)
        model["text_config"]["rms_norm_eps"] = 1e-6
        for says, fields in (
                ("steps", {"steps": 5}), ("seed", {"seed": 2}), ("config.json", {"model": model}),
                ("optimizer.learning_rate", {"optimizer": {"learning_rate": 0.02}}),
                ("sequence_length", {"sequence_length": 32}), ("qat.from_step", {"qat": None}),
                ("micro_batch_sequences", {"micro_batch_sequences": 1}),
                ("balancing.rule", {"balancing": {"rule": "none"}}),
                ("primer_steps", {"primer_steps": 3}),
                ("training data", {"tasks": {"count": 3}})):
            with self.subTest(says):
                other = self.config("other.json", **{"steps": 4, **fields})
                self.refuse(*self.words(other, "run", "--resume"), says=(says,))
        with open(self.path("text.txt"), "wb") as stream:
            stream.write(b"more of it\n" + read(KJV, "heldout.txt")[:TEXT_BYTES])
        self.refuse(*self.words(config, "run", "--resume"), says=("training data are others",))
        self.assertEqual(everything(run), before)

    def test_another_primer_is_another_run(self):
        def primed(name, **tasks):
            return self.config(name, steps=4, primer_steps=3, tasks={"count": 0, **tasks})
        run = self.train(primed("one.json", kinds=["sum"]), "run", "--stop-at", "2")
        for says, tasks in (("primer.kinds", {"kinds": ["copy", "sort"]}),
                            ("primer.made_up_names", {"kinds": ["sum"], "made_up_names": True}),
                            ("primer.words", {"kinds": ["sum"], "words": 20}),
                            ("primer.turns", {"kinds": ["sum"], "turns": 2}),
                            ("primer.distractors", {"kinds": ["sum"], "distractors": 2})):
            with self.subTest(says):
                self.refuse(*self.words(primed("other.json", **tasks), run, "--resume"),
                            says=(says,))
        self.train(primed("one.json", kinds=["sum"]), run, "--resume")

    def test_damaged_files_of_a_run(self):
        config = self.config(steps=4)
        whole = self.train(config, "whole")
        run = self.train(config, "run", "--stop-at", "2")
        state = read(run, STATE)
        flipped = bytearray(state)
        flipped[-100] ^= 1
        version = state.replace(b'"version":"1"', b'"version":"2"')
        self.assertNotEqual(version, state)
        for content, says in ((state[:-1], STATE), (state[:5], STATE), (b"", STATE),
                              (bytes(flipped), "checksum"), (version, "version")):
            with self.subTest(says), open(os.path.join(run, STATE), "wb") as stream:
                stream.write(content)
                stream.flush()
                self.refuse(*self.words(config, "run", "--resume"), says=(says,))
        with open(os.path.join(run, STATE), "wb") as stream:
            stream.write(state)
        lines = read(run, METRICS)
        with open(os.path.join(run, METRICS), "wb") as stream:
            stream.write(lines + b'\n\xff{"step":"x"}\n[]\n{"step":3}\n{"step":2,"lo')
        self.expect_same(self.train(config, "run", "--resume"), whole)
        os.remove(os.path.join(run, METRICS))
        os.makedirs(os.path.join(run, METRICS))
        self.refuse(*self.words(config, "run", "--resume"), says=(METRICS,))
        self.assertFalse([name for name in os.listdir(run) if "partial" in name])

    def test_fine_tuning_counts_assistants_tokens(self):
        line = json.dumps({"messages": [{"role": "user", "content": "Who made the heaven?"},
                                        {"role": "assistant", "content": "In the beginning God "
                                         "created the heaven and the earth."}]})
        with open(self.path("chat.jsonl"), "w", encoding="utf-8") as stream:
            stream.write((line + "\n") * 40)
        fields = {"model": None, "text": None, "chat": "chat.jsonl", "steps": 2, "qat": None,
                  "tokenizer": None, "checkpoint_every": 10,
                  "validation": {"chat": "chat.jsonl", "every": 1, "context": 512},
                  "balancing": {"rule": "none"},
                  "optimizer": {"learning_rate": 1e-9, "qk_clip": 0}}
        value = json.load(open(self.config(**fields), encoding="utf-8"))
        del value["model"]
        with open(self.path("run.json"), "w", encoding="utf-8") as stream:
            json.dump(value, stream)
        run = self.train(self.path("run.json"), "run", "--from", KJV, threads=2)
        first = metrics(run)[0]
        # What an assistant wrote begins behind the marker that is followed by its first channel.
        request = dict(json.loads(line), add_generation_prompt=False)
        with open(self.path("request.json"), "w", encoding="utf-8") as stream:
            json.dump(request, stream)
        ids = [int(word) for word in self.succeed(
            "render", KJV, self.path("request.json"), "--ids").stdout.split(b",")]
        begin = next(i for i in range(len(ids)) if ids[i:i + 2] == [SEP, OPEN]) + 1
        logits = numpy.frombuffer(self.succeed(
            "logits", KJV, "--tokens", ",".join(map(str, ids)), "--out", "-").stdout,
            dtype="<f4").reshape(len(ids), -1).astype(numpy.float64)
        logits -= logits.max(axis=1, keepdims=True)
        log_p = logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))
        expected = -numpy.mean([log_p[t - 1, ids[t]] for t in range(begin, len(ids))])
        # The step is below what bfloat16 holds; logits are float32.
        self.assertAlmostEqual(first["val_loss"], expected, delta=1e-5)
        # Conversations in which nobody answers hold nothing to learn.
        with open(self.path("chat.jsonl"), "w", encoding="utf-8") as stream:
            stream.write(json.dumps({"messages": [{"role": "user", "content": "Who? " * 99}]}))
        self.refuse(*self.words(self.path("run.json"), "mute", "--from", KJV), says=("learn",))
        self.succeed("run", run, "In", "--max-tokens", "1")
        self.refuse(*self.words(self.config(), "out", "--from", KJV), says=(KJV, "layers"))

    def test_a_checkpoint_is_where_from_begins(self):
        text = os.path.join(KJV, "heldout.txt")
        value = {"tokenizer": KJV, "text": text, "sequence_length": 128, "batch_sequences": 1,
                 "steps": 1, "validation": {"text": text, "tokens": 1024},
                 "balancing": {"rule": "none"},
                 "optimizer": {"learning_rate": 1e-12},
                 "qat": {"from_step": 0, "scale_rule": "floor"}}
        with open(self.path("run.json"), "w", encoding="utf-8") as stream:
            json.dump(value, stream)
        run = self.train(self.path("run.json"), "run", "--from", KJV, threads=2)
        found = json.loads(self.succeed("eval", KJV, "--text", text, "--context", "128",
                                        "--max-tokens", "1024", "--json").stdout)
        # The step is below what bfloat16 holds, and the floor rule gives back the stored codes.
        self.assertAlmostEqual(metrics(run)[0]["val_loss"], found["nats_per_token"], delta=1e-5)

    def test_one_run_at_a_time(self):
        config = self.config(steps=10000, validation={"fraction": 0})
        first = self.start(self.words(config, "run"))
        try:
            end = time.monotonic() + 60
            while not os.path.exists(self.path("run", STATE)) and time.monotonic() < end:
                time.sleep(0.002)
            for more in ((), ("--resume",)):
                says = ("another",) if more else ("--resume",)
                self.refuse(*self.words(config, "run", *more), says=says)
        finally:
            first.kill()
            first.communicate()
        self.succeed(*self.words(config, "run", "--resume", "--stop-at",
                                 str(metrics(self.path("run"))[-1]["step"] + 3)))

    def test_files_of_others_stay(self):
        config = self.config(steps=4)
        for name in ("validation.txt", METRICS, "config.json"):
            os.makedirs(self.path(name + ".dir"))
            with open(self.path(name + ".dir", name), "w", encoding="utf-8") as stream:
                stream.write("mine")
            self.refuse(*self.words(config, name + ".dir"), says=(name, "not overwritten"))
            self.assertEqual(everything(self.path(name + ".dir")), {name: b"mine"})
        run = self.train(config, "run", "--stop-at", "2")
        with open(os.path.join(run, "model-2024.safetensors"), "wb") as stream:
            stream.write(b"mine")
        self.train(config, "run", "--resume")
        self.assertEqual(read(run, "model-2024.safetensors"), b"mine")

    def test_a_damaged_checkpoint_is_written_again_from_the_state(self):
        config = self.config(steps=4)
        whole = everything(self.train(config, "whole"))
        name = next(name for name in whole if name.startswith("model-"))
        for damaged, content in ((name, None), (name, b"junk"), (INDEX, None), (INDEX, b"{"),
                                 ("config.json", None)):
            run = self.copy_model(self.path("whole"), "run")
            os.remove(os.path.join(run, damaged))
            if content is not None:
                with open(os.path.join(run, damaged), "wb") as stream:
                    stream.write(content)
            self.train(config, "run", "--resume")
            self.assertEqual(everything(run), whole, damaged)
            shutil.rmtree(run)
        # The state's own fields are under its checksum.
        run = self.copy_model(self.path("whole"), "run")
        state = read(run, STATE)
        with open(os.path.join(run, STATE), "wb") as stream:
            stream.write(state.replace(b'"step":"4"', b'"step":"3"', 1))
        self.refuse(*self.words(config, "run", "--resume"), says=(STATE, "checksum"))

    def test_what_training_decides_in_the_config(self):
        model = copy.deepcopy(MODEL)
        model["quantization_config"] = {"quant_method": "compressed-tensors",
                                        "format": "mxfp4-pack-quantized"}
        model["eos_token_id"] = model["text_config"]["eos_token_id"] = 7
        config = self.config(model=model, qat=None, steps=10)  # MXFP4 from step 6 on
        early = self.train(config, "early", "--stop-at", "5")
        late = self.train(config, "late")
        for run, quantised in ((early, False), (late, True)):
            written = json.loads(read(run, "config.json"))
            self.assertEqual("quantization_config" in written, quantised)
            self.assertEqual(written["eos_token_id"], 1954)  # <|end_of_msg|> of models/kjv
            self.assertEqual(written["text_config"]["eos_token_id"], 1954)
            header, _ = k3_binary.read_shard(os.path.join(run, json.loads(
                read(run, INDEX))["weight_map"]["language_model.lm_head.weight"]))
            self.assertEqual(any("packed" in name for name in header), quantised)
        # What is MXFP4 is trained as that, and a directory stands for its config.json.
        tuned = self.train(late, "tuned", "--from", late, "--text", self.path("text.txt"),
                           "--tokenizer", KJV, "--steps", "1")
        self.assertTrue(metrics(tuned)[0]["quantised"])

    def test_the_primer_comes_first(self):
        config = self.config(steps=10, primer_steps=5)
        whole = self.train(config, "whole")
        # Stopped among the first steps, at their end and behind it.
        for stop in (2, 5, 6):
            name = f"stopped-{stop}"
            self.train(config, name, "--stop-at", str(stop))
            self.expect_same(self.train(config, name, "--resume"), whole)
        # Behind them the data are those of a run without them, from their start.
        plain = self.train(self.config("plain.json", steps=10, qat={}, optimizer={}), "plain")
        copied = self.train(self.config("copied.json", steps=10, qat={}, optimizer={},
                                        primer_steps=1), "copied")
        self.assertNotEqual(curve(plain)[0][1], curve(copied)[0][1])
        # The first loss of repeated words is another; both are near that of guessing.
        for run in (plain, copied):
            self.assertAlmostEqual(metrics(run)[0]["loss"], 7.7, delta=0.6)

    def test_validation_of_text_and_of_conversations(self):
        run = self.train(self.config(tasks={"count": 60, "turns": 2, "distractors": 3, "words": 20},
                                     validation={"every": 12, "tokens": 512, "context": 64}), "run")
        last = metrics(run)[-1]
        found = json.loads(self.succeed("eval", run, "--text", run + "/validation.txt", "--context",
                                        "64", "--max-tokens", "256", "--json").stdout)
        self.assertAlmostEqual(found["nats_per_token"], last["val_text_loss"], delta=1e-5)
        low, high = sorted((last["val_text_loss"], last["val_chat_loss"]))
        self.assertTrue(low < last["val_loss"] < high)

    def test_tasks(self):
        run = self.train(self.config(text=None, tasks={"count": 60, "kinds": ["copy", "sum"]},
                                     steps=3), "run")
        self.assertIsNotNone(metrics(run)[-1]["val_loss"])
        self.assertFalse(os.path.exists(os.path.join(run, "validation.txt")))


if __name__ == "__main__":
    k3_binary.main()
