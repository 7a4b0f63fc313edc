"""Damaged models, bad requests and full disks: each ends with one message that says what and where."""

import json
import os
import resource
import signal
import subprocess
import struct

import k3_binary
from k3_binary import INDEX, KJV, NANO, TINY

PREFIX = "language_model.model."
NORM = PREFIX + "layers.2.input_layernorm.weight"
QUERY = PREFIX + "layers.0.self_attn.q_proj.weight"
A_LOG = PREFIX + "layers.1.self_attn.A_log"
EXPERT = PREFIX + "layers.5.block_sparse_moe.experts.7.w2"


class BadModelTest(k3_binary.BinaryTest):
    """Every case damages a copy of the golden checkpoint in one place."""

    def setUp(self):
        super().setUp()
        self.model = self.copy_model(TINY)

    def refuse_model(self, code, *says):
        """The model must be refused by a run and, when it opens at all, by nothing worse."""
        self.refuse("logits", self.model, "--tokens", "1,2", "--out", self.path("out"),
                    says=(code, *says))
        self.assertEqual([name for name in os.listdir(self.scratch) if name.startswith("out")], [])
        self.assertIn(self.k3("inspect", self.model).returncode, (0, 1))

    def edit_header(self, tensor, edit):
        """Lets `edit` change the header that holds `tensor`; the data stays."""
        shard = k3_binary.shard_of(self.model, tensor)
        header, data = k3_binary.read_shard(shard)
        changed = edit(header)
        k3_binary.write_shard(shard, header if changed is None else changed, data)
        return os.path.basename(shard)

    def edit_bytes(self, tensor, offset, value):
        """Puts one byte at `offset` of a tensor."""
        shard = k3_binary.shard_of(self.model, tensor)
        header, data = k3_binary.read_shard(shard)
        data = bytearray(data)
        data[header[tensor]["data_offsets"][0] + offset] = value
        k3_binary.write_shard(shard, header, bytes(data))

    def test_bench_lengths_that_no_context_holds(self):
        for words in (("--depth", str(2**63 - 1)), ("--depth", "9" * 20), ("--gen", str(2**63 - 1)),
                      ("--prompt", str(2**63 - 1)), ("--depth", "1048576"),
                      ("--depth", str(2**63 - 1), "--depth-fill", "prefill")):
            with self.subTest(words):
                self.refuse("bench", NANO, "--no-yardsticks", *words, says=("context", "1048576"))

    def test_a_closed_standard_output_is_an_error(self):
        for words in (("tasks", "--count", "3"), ("tokenize", NANO, "a b")):
            with self.subTest(words):
                result = self.k3(*words, preexec_fn=lambda: os.close(1), stdout=None)
                self.assertEqual(result.returncode, 1)
                self.assertIn(b"standard output", result.stderr)

    def test_a_truncated_shard(self):
        name = "model-00002-of-00003.safetensors"
        path = os.path.join(self.model, name)
        whole = os.path.getsize(path)
        for size in (whole - 1, whole // 2, 1000, 8, 5, 0):
            with self.subTest(size):
                os.truncate(path, size)
                self.refuse_model("Corruption", name, "expected", "found")

    def test_a_missing_shard(self):
        name = "model-00003-of-00003.safetensors"
        os.remove(os.path.join(self.model, name))
        self.refuse_model("NotFound", name, "download")

    def test_an_index_that_names_an_absent_tensor(self):
        k3_binary.edit_json(
            os.path.join(self.model, INDEX), lambda index: index["weight_map"].update(
                {PREFIX + "ghost": "model-00001-of-00003.safetensors"}))
        self.refuse_model("Corruption", INDEX, "ghost", "model-00001-of-00003", "expected", "found")

    def test_an_index_that_names_another_shard_or_leaves_its_directory(self):
        path = os.path.join(self.model, INDEX)
        other = "model-00003-of-00003.safetensors"
        k3_binary.edit_json(path, lambda index: index["weight_map"].update({NORM: other}))
        self.refuse_model("Corruption", NORM, other)
        k3_binary.edit_json(path, lambda index: index["weight_map"].update({NORM: "../x.safetensors"}))
        self.refuse_model("Corruption", INDEX)

    def test_an_index_that_is_no_index(self):
        path = os.path.join(self.model, INDEX)
        for text in ("", "{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "\xff"):
            with self.subTest(text):
                with open(path, "w", encoding="latin-1") as stream:
                    stream.write(text)
                self.refuse_model("Corruption", INDEX)

    def test_a_tensor_that_the_model_needs_is_missing(self):
        other = NORM.replace("input_layernorm", "other")
        shard = self.edit_header(NORM, lambda header: {
            (other if key == NORM else key): value for key, value in header.items()})
        index_path = os.path.join(self.model, INDEX)
        k3_binary.edit_json(index_path, lambda index: index["weight_map"].pop(NORM))
        self.refuse_model("Corruption", INDEX, other, shard)
        k3_binary.edit_json(index_path, lambda index: index["weight_map"].update({other: shard}))
        self.refuse_model("NotFound", NORM)

    def test_a_header_length_out_of_range(self):
        name = "model-00001-of-00003.safetensors"
        path = os.path.join(self.model, name)
        for length in (0, 1, 1 << 20, 1 << 40, (1 << 64) - 1):
            with self.subTest(length):
                with open(path, "r+b") as stream:
                    stream.write(struct.pack("<Q", length))
                self.refuse_model("Corruption", name)

    def test_offsets_out_of_range_or_overlapping(self):
        begin, end = k3_binary.read_shard(k3_binary.shard_of(self.model, NORM))[0][NORM]["data_offsets"]
        size = end - begin
        for offsets in ([begin + (1 << 40), end + (1 << 40)], [begin - 2, end - 2],
                        [begin + 2, end + 2], [end, begin], [begin, end - 2],
                        [-size, 0], [begin], [begin, 1 << 70], [begin, "end"], [begin + 0.5, end]):
            with self.subTest(offsets):
                self.edit_header(NORM, lambda header, o=offsets: header[NORM].update(data_offsets=o))
                self.refuse_model("Corruption", "model-00001-of-00003", "layers.2.input_layernorm")
        self.edit_header(NORM, lambda header: header[NORM].update(data_offsets=[0, size]))
        self.refuse_model("Corruption", "model-00001-of-00003", "overlaps")

    def test_duplicate_keys(self):
        def twice(header):
            entry = json.dumps(header[NORM])
            return json.dumps(header)[:-1] + f', "{NORM}": {entry}}}'
        name = self.edit_header(NORM, twice)
        self.refuse_model("Corruption", name, NORM)

        model = self.copy_model(TINY, "duplicate-field")
        path = os.path.join(model, "config.json")
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text.replace('"hidden_size"', '"hidden_size": 96, "hidden_size"', 1))
        self.model = model
        self.refuse_model("InvalidArgument", "config.json", "hidden_size")

    def test_a_wrong_type(self):
        name = self.edit_header(NORM, lambda header: header[NORM].update(dtype="I16"))
        self.refuse_model("InvalidArgument", NORM, "I16", "expected", "found")
        self.edit_header(NORM, lambda header: header[NORM].update(dtype="F7"))
        self.refuse_model("Corruption", name, NORM, "F7")
        self.edit_header(NORM, lambda header: header[NORM].update(dtype="F32"))
        self.refuse_model("Corruption", name, NORM)

    def test_a_wrong_shape(self):
        self.edit_header(NORM, lambda header: header[NORM].update(shape=[2, 48]))
        self.refuse_model("InvalidArgument", NORM, "[2, 48]", "expected", "96")
        model = self.copy_model(TINY, "transposed")
        self.model = model
        packed = EXPERT + ".weight_packed"
        self.edit_header(packed, lambda header: header[packed]["shape"].reverse())
        self.refuse_model("InvalidArgument", packed, "[32, 64]", "expected", "[64, 32]")

    def test_shapes_that_are_none(self):
        for shape in ([-96], [96.0], "96", [1 << 62, 4], [1, 1, 1, 1, 1, 96], None):
            with self.subTest(shape):
                self.edit_header(NORM, lambda header, s=shape: header[NORM].update(shape=s))
                self.refuse_model("Corruption", "model-00001-of-00003", "layers.2.input_layernorm")

    def test_a_scale_byte_that_is_no_number(self):
        self.edit_bytes(EXPERT + ".weight_scale", 3, 255)
        self.refuse_model("Corruption", ".safetensors", EXPERT + ".weight_scale", "expected", "255")

    def test_a_log_padding_that_is_not_zero(self):
        self.edit_bytes(A_LOG, 4 * 5 + 3, 0x3F)
        self.refuse_model("Corruption", ".safetensors", A_LOG, "expected", "found")

    def test_a_half_written_checkpoint(self):
        with open(os.path.join(self.model, ".incomplete"), "w", encoding="utf-8"):
            pass
        self.refuse_model("Corruption", ".incomplete")

    def test_numbers_that_leave_float32(self):
        shard = k3_binary.shard_of(self.model, PREFIX + "norm.weight")
        header, data = k3_binary.read_shard(shard)
        begin, end = header[PREFIX + "norm.weight"]["data_offsets"]
        nan = b"\xC0\x7F" * ((end - begin) // 2)
        k3_binary.write_shard(shard, header, data[:begin] + nan + data[end:])
        self.refuse_model("Corruption", "token 0", "finite", "nan")

    def test_an_output_that_is_a_file_of_the_model(self):
        for name in ("config.json", "model-00001-of-00003.safetensors"):
            out = os.path.join(self.model, name)
            before = os.stat(out).st_size
            self.refuse("logits", self.model, "--tokens", "1", "--out", out,
                        says=("InvalidArgument", name, "file of the model"))
            self.assertEqual(os.stat(out).st_size, before)

    def test_more_threads_than_the_system_gives(self):
        def few_addresses():
            resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
        result = self.k3("logits", self.model, "--tokens", "1", "--out", self.path("out"),
                         "--threads", "1000", preexec_fn=few_addresses)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, b"threads|memory")

    def test_a_shard_that_is_cut_while_it_is_read(self):
        model = self.copy_model(KJV, "live")
        words = [self.binary, "run", model, "In", "--ignore-eos", "--max-tokens", "1000000"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            self.assertNotEqual(process.stdout.read(1), b"")
            os.truncate(os.path.join(model, "model-00001-of-00001.safetensors"), 200000)
            _, stderr = process.communicate(timeout=k3_binary.TIMEOUT_S)
        self.assertEqual(process.returncode, 1)
        self.assertIn(b"cut while in use", stderr)


class BadConfigTest(k3_binary.BinaryTest):

    def refuse_config(self, field, *says, edit):
        with open(os.path.join(TINY, "config.json"), encoding="utf-8") as stream:
            config = json.load(stream)
        edit(config)
        path = self.path("config.json")
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(config, stream)
        for words in (("inspect", path), ("init", "--config", path, "--out", self.path("out"))):
            self.refuse(*words, says=("InvalidArgument", "config.json", field, *says))
        self.assertFalse(os.path.exists(self.path("out")))

    def test_missing_fields(self):
        for field in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                      "kv_lora_rank", "num_experts", "num_experts_per_token", "moe_intermediate_size",
                      "linear_attn_config", "rms_norm_eps", "intermediate_size"):
            with self.subTest(field):
                self.refuse_config(field, "expected", "found",
                                   edit=lambda config, f=field: config["text_config"].pop(f))
        for field in ("head_dim", "num_heads", "short_conv_kernel_size", "full_attn_layers"):
            with self.subTest(field):
                self.refuse_config(
                    field,
                    edit=lambda config, f=field: config["text_config"]["linear_attn_config"].pop(f))

    def test_negative_absurd_and_foreign_values(self):
        for field, value in (("vocab_size", -5), ("vocab_size", 10**18), ("hidden_size", 0),
                             ("hidden_size", 10**30), ("num_hidden_layers", 10**9),
                             ("num_experts_per_token", 25), ("num_experts_per_token", -1),
                             ("rms_norm_eps", -1e-5), ("rms_norm_eps", "small"),
                             ("vocab_size", "many"), ("num_attention_heads", 3.5),
                             ("kv_lora_rank", []), ("max_position_embeddings", -1),
                             ("hidden_act", "gelu"), ("mla_use_nope", False),
                             ("tie_word_embeddings", True), ("num_expert_group", 8)):
            with self.subTest(f"{field}={value}"):
                self.refuse_config(field, "expected", "found", edit=lambda config, f=field, v=value:
                                   config["text_config"].update({f: v}))
        for layers in ([4, 8, 10], [0], [4, 4], ["4"], [4, -8]):
            with self.subTest(layers):
                self.refuse_config("full_attn_layers", edit=lambda config, v=layers:
                                   config["text_config"]["linear_attn_config"].update(
                                       full_attn_layers=v))

    def test_what_is_no_configuration(self):
        path = self.path("config.json")
        for text in (b"", b"{", b"[]", b"3", b"\xff\xfe", b"{" * 5000, b'{"a":1e999}', b"null"):
            with self.subTest(text[:10]):
                with open(path, "wb") as stream:
                    stream.write(text)
                self.refuse("inspect", path, says=("InvalidArgument", "config.json"))


class BadTokenizerTest(k3_binary.BinaryTest):

    def setUp(self):
        super().setUp()
        self.model = self.copy_model(KJV)

    def refuse_tokenizer(self, code, *says):
        for words in (("tokenize", self.model, "a"), ("run", self.model, "a", "--max-tokens", "1")):
            self.refuse(*words, says=(code, *says))

    def edit_ranks(self, edit):
        path = os.path.join(self.model, "tiktoken.model")
        with open(os.path.join(KJV, "tiktoken.model"), "rb") as stream:
            lines = stream.read().splitlines(keepends=True)
        edit(lines)
        with open(path, "wb") as stream:
            stream.write(b"".join(lines))

    def test_ranks_with_a_gap_a_repetition_or_garbage(self):
        def swap(lines):
            lines[5], lines[6] = lines[6], lines[5]
        for edit in (lambda lines: lines.pop(300), lambda lines: lines.insert(9, lines[9]),
                     lambda lines: lines.__setitem__(7, b"??? 7\n"),
                     lambda lines: lines.__setitem__(7, lines[7].split()[0] + b"\n"),
                     lambda lines: lines.__setitem__(7, b"YQ== x\n"), lambda lines: lines.clear()):
            self.edit_ranks(edit)
            self.refuse_tokenizer("Corruption", "tiktoken.model")
        self.edit_ranks(lambda lines: lines.pop(300))
        self.refuse_tokenizer("Corruption", "tiktoken.model", "1951", "without gaps")
        self.edit_ranks(swap)
        self.assertIn(self.k3("tokenize", self.model, "a").returncode, (0, 1))

    def test_control_tokens_out_of_place(self):
        path = os.path.join(self.model, "tokenizer_config.json")
        k3_binary.edit_json(path, lambda config: config["added_tokens_decoder"].update(
            {"2048": {"content": "beyond", "special": True}}))
        self.refuse_tokenizer("InvalidArgument", "tokenizer_config.json", "beyond", "2048")

    def test_missing_files(self):
        for name in ("tokenizer_config.json", "tiktoken.model"):
            os.remove(os.path.join(self.model, name))
            self.refuse_tokenizer("NotFound", name)

    def test_a_generation_config_that_is_none(self):
        with open(os.path.join(self.model, "generation_config.json"), "w", encoding="utf-8") as stream:
            stream.write('{"temperature": -3}')
        self.refuse("run", self.model, "a", says=("InvalidArgument", "generation_config.json",
                                                  "temperature"))


class BadRequestTest(k3_binary.BinaryTest):

    def test_token_ids_that_are_none_or_out_of_range(self):
        for tokens, says in (("5,512", ("512", "[0, 512)")), ("-1", ("-1",)), ("5,x", ("entry 2", "x")),
                             ("5;6", ()), ("99999999999", ("99999999999",)), ("1.5", ()),
                             (",", ("entry 1", "token id")),
                             ("@" + self.path("absent"), ("NotFound", "absent"))):
            with self.subTest(tokens):
                self.refuse("logits", TINY, "--tokens=" + tokens, "--out", self.path("out"), says=says)
        self.refuse("logits", TINY, "--tokens", "", "--out", self.path("out"), says=("at least one",))
        self.refuse("tokenize", KJV, "--decode", "2048", says=("2048",))
        self.refuse("run", KJV, "a", "--stop-id", "x", code=2)
        self.assertEqual(os.listdir(self.scratch), [])

    def test_a_context_that_is_too_long(self):
        model = self.copy_model(TINY)
        k3_binary.edit_json(os.path.join(model, "config.json"), lambda config:
                            config["text_config"].update(max_position_embeddings=3))
        self.refuse("logits", model, "--tokens", "1,2,3,4", "--out", self.path("out"),
                    says=("at most 3", "found 4"))

    def test_an_empty_prompt(self):
        self.refuse("run", KJV, "", says=("InvalidArgument", "prompt is empty"))
        self.refuse("run", KJV, "-", stdin=b"", says=("InvalidArgument", "prompt is empty"))
        with open(self.path("empty"), "wb"):
            pass
        self.refuse("run", KJV, "--prompt-file", self.path("empty"), says=("prompt is empty",))
        self.refuse("run", KJV, says=("prompt is empty",))

    def test_a_prompt_that_is_not_utf8(self):
        self.refuse("run", KJV, b"caf\xe9", says=("InvalidArgument", "prompt", "UTF-8", "3"))
        self.refuse("run", KJV, "-", stdin=b"ab\xff", says=("prompt", "UTF-8", "2"))
        self.refuse("tokenize", KJV, b"\xc0\x80", says=("UTF-8",))

    def test_prefill_chunks_that_are_none(self):
        for value in ("0", "x"):
            with self.subTest(value):
                self.refuse("run", KJV, "a", f"--prefill-chunk={value}",
                            says=("InvalidArgument", "--prefill-chunk"))

    def test_directories_that_are_none(self):
        os.makedirs(self.path("bare"))
        commands = (("run", "%", "a"), ("logits", "%", "--tokens", "1", "--out", self.path("out")),
                    ("inspect", "%"), ("tokenize", "%", "a"),
                    ("eval", "%", "--text", os.path.join(KJV, "heldout.txt")))
        for words in commands:
            def refuse_in(directory, words=words, **options):
                self.refuse(*[directory if word == "%" else word for word in words], **options)
            refuse_in(self.path("absent"), says=("NotFound", "absent"))
            refuse_in(self.path("bare"), says=("NotFound", "bare", "config.json"))
            refuse_in(os.path.join(KJV, "heldout.txt"), says=("heldout.txt",))
            refuse_in("", code=2, says=("DIR", "empty name"))

    def test_a_directory_that_may_not_be_read(self):
        if os.geteuid() == 0:
            self.skipTest("root may read everything")
        model = self.copy_model(TINY)
        os.chmod(model, 0)
        self.addCleanup(os.chmod, model, 0o700)
        self.refuse("inspect", model, says=(model, "Permission denied"))
        os.chmod(model, 0o700)
        os.chmod(os.path.join(model, "model-00002-of-00003.safetensors"), 0)
        self.refuse("inspect", model, says=("model-00002-of-00003", "Permission denied"))

    def test_outputs_that_cannot_be_written(self):
        words = ("logits", TINY, "--tokens", "1", "--out")
        self.refuse(*words, self.path("no", "such", "directory"), says=("NotFound", "directory"))
        self.refuse(*words, TINY, says=("tiny-a",))
        self.refuse("logits", TINY, "--tokens", "1", "--hidden", os.path.join(TINY, "config.json"),
                    says=("config.json",))
        self.refuse("logits", TINY, "--tokens", "1", says=("--out", "--hidden"))


class FullDiskTest(k3_binary.BinaryTest):

    CONFIG = os.path.join(TINY, "config.json")

    def test_init_on_a_small_file_system(self):
        place = self.path("small")
        os.makedirs(place)
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place],
                               capture_output=True, check=False) if os.geteuid() == 0 else None
        if mount is None or mount.returncode != 0:
            self.skipTest("mounting a small tmpfs needs root and the permission to mount")
        self.addCleanup(subprocess.run, ["umount", place], check=True)
        out = os.path.join(place, "model")
        self.refuse("init", "--config", self.CONFIG, "--out", out,
                    says=("ResourceExhausted", out, "bytes"))
        self.assertNotIn("config.json", os.listdir(out))
        self.refuse("inspect", out)

    def limit_files(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        # As in a shell: the signal of the limit has its default, which is to kill.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

    def test_a_write_that_fails_in_the_middle_leaves_nothing(self):
        out = self.path("model")
        self.refuse("init", "--config", self.CONFIG, "--out", out, preexec_fn=self.limit_files,
                    says=(out, "bytes"))
        self.assertEqual(os.listdir(out), [])
        hidden = self.path("hidden")
        tokens = ",".join(["7"] * 600)
        self.refuse("logits", TINY, "--tokens", tokens, "--hidden", hidden,
                    preexec_fn=self.limit_files, says=(hidden, "cannot write"))
        self.assertEqual(os.listdir(hidden), [])


if __name__ == "__main__":
    k3_binary.main()
