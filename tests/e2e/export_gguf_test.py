#!/usr/bin/env python3
"""k3 export-gguf from outside: export_gguf_test.py K3_BINARY"""

import os
import resource
import signal
import struct

import k3_binary
from k3_binary import KJV


def limit_file_size():
    """Files of this process may not grow beyond 1 MiB; the write fails instead of killing it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def read_all(directory):
    found = {}
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), "rb") as stream:
            found[name] = stream.read()
    return found


class ExportGgufTest(k3_binary.BinaryTest):
    def export(self, model, *words):
        out = self.path("out.gguf")
        result = self.succeed("export-gguf", model, out, *words)
        with open(out, "rb") as stream:
            return stream.read(), result

    def test_the_header_and_the_sizes_of_all_types(self):
        sizes = {}
        for trunk in ("bf16", "f32", "q8_0"):
            for experts in ("mxfp4", "bf16", "f32"):
                content, _ = self.export(KJV, "--trunk", trunk, "--experts", experts)
                magic, version, tensors, keys = struct.unpack_from("<4sIQQ", content)
                self.assertEqual((magic, version, tensors), (b"GGUF", 3, 242))
                self.assertGreater(keys, 30)
                sizes[trunk, experts] = len(content)
        self.assertLess(sizes["q8_0", "mxfp4"], sizes["bf16", "mxfp4"])
        self.assertLess(sizes["bf16", "mxfp4"], sizes["bf16", "bf16"])
        self.assertLess(sizes["bf16", "bf16"], sizes["f32", "f32"])

    def test_the_same_bytes_each_time_and_an_old_file_is_replaced(self):
        first, result = self.export(KJV)
        self.assertIn(b"242 tensors", result.stdout)
        self.assertEqual(self.export(KJV)[0], first)
        self.assertEqual(os.listdir(self.scratch), ["out.gguf"])

    def test_a_model_without_a_tokenizer_gets_placeholders(self):
        model = self.copy_model(KJV)
        os.remove(os.path.join(model, "tiktoken.model"))
        os.remove(os.path.join(model, "tokenizer_config.json"))
        content, result = self.export(model)
        self.assertIn(b"placeholder", result.stderr)
        self.assertIn(b"<|placeholder_2047|>", content)

    def test_half_a_tokenizer_is_refused(self):
        model = self.copy_model(KJV)
        os.remove(os.path.join(model, "tiktoken.model"))
        self.refuse("export-gguf", model, self.path("out"), says=("NotFound", "tiktoken.model"))

    def test_what_cannot_be_expressed(self):
        model = self.copy_model(KJV)
        k3_binary.edit_json(
            os.path.join(model, "config.json"),
            lambda config: config["text_config"]["linear_attn_config"].update(
                {"use_full_rank_gate": False}))
        self.refuse("export-gguf", model, self.path("out"),
                    says=("Unimplemented", "use_full_rank_gate", "expected", "found"))
        self.assertFalse(os.path.exists(self.path("out")))

    def test_a_missing_tensor_and_a_bad_scale_leave_nothing(self):
        model = self.copy_model(KJV)
        scale = ("language_model.model.layers.5.block_sparse_moe.experts.7.w2.weight_scale")
        shard = k3_binary.shard_of(model, scale)
        header, data = k3_binary.read_shard(shard)
        damaged = bytearray(data)
        damaged[header[scale]["data_offsets"][0]] = 255
        k3_binary.write_shard(shard, header, bytes(damaged))
        self.refuse("export-gguf", model, self.path("out"), says=("Corruption", scale, "255"))
        k3_binary.edit_json(os.path.join(model, "config.json"),
                            lambda config: config["text_config"].update({"vocab_size": 2049}))
        self.refuse("export-gguf", model, self.path("out"), says=("embed_tokens", "2049"))
        self.assertEqual(os.listdir(self.scratch), ["model"])

    def test_bad_outputs(self):
        self.refuse("export-gguf", KJV, self.scratch, says=("InvalidArgument", "expected a file"))
        self.refuse("export-gguf", KJV, self.path("none", "out"), says=("NotFound", "none"))
        self.refuse("export-gguf", KJV, "/dev/null", says=("InvalidArgument",))
        self.refuse("export-gguf", KJV, self.path("out"), "--trunk", "q4", code=2, says=("q4",))
        self.refuse("export-gguf", self.path("none"), self.path("out"), says=("NotFound",))
        self.assertEqual(os.listdir(self.scratch), [])

    def test_only_an_older_export_is_replaced(self):
        model = self.copy_model(KJV)
        before = read_all(model)
        for name in os.listdir(model):
            self.refuse("export-gguf", model, os.path.join(model, name),
                        says=("InvalidArgument", name, "another kind"))
        self.assertEqual(read_all(model), before)
        os.symlink(os.path.join(model, "config.json"), self.path("link"))
        self.refuse("export-gguf", model, self.path("link"), says=("another kind",))
        out = self.path("out")
        self.succeed("export-gguf", model, out)
        self.succeed("export-gguf", model, out, "--trunk", "f32")
        self.refuse("export-gguf", model, "-", says=("InvalidArgument", "standard output"))
        self.refuse("export-gguf", model, "", says=("InvalidArgument", "found none"))

    def test_a_disk_that_fills_up_leaves_nothing(self):
        self.refuse("export-gguf", KJV, self.path("out"), says=(self.path("out"),),
                    preexec_fn=limit_file_size)
        self.assertEqual(os.listdir(self.scratch), [])


if __name__ == "__main__":
    k3_binary.main()
