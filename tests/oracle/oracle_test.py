"""k3 logits against the float64 oracle on random checkpoints of many shapes."""

import copy
import json
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

import k3_binary  # noqa: E402 pylint: disable=wrong-import-position

k3_binary.need_numpy()

import numpy as np  # noqa: E402 pylint: disable=wrong-import-position

import k3_oracle  # noqa: E402 pylint: disable=wrong-import-position
from arrays import largest_error, read_arrays, relative_error  # noqa: E402 pylint: disable=wrong-import-position

# Float32 through all layers, amplified by the attention residuals; about 5e-6 is measured.
TOLERANCE = 5e-5
# Where an expert wins by less than this, float32 may rightly choose another one.
ROUTE_MARGIN_MIN = 2e-5


def make_config(mla=(4, 8, 9), layers=9, kda=None, **text):
    """The golden configuration with other numbers; `mla` counts from 1."""
    with open(os.path.join(k3_binary.TINY, "config.json"), encoding="utf-8") as stream:
        config = json.load(stream)
    body = config["text_config"]
    body.update(text, num_hidden_layers=layers)
    linear = body["linear_attn_config"]
    linear.update(copy.deepcopy(kda or {}))
    linear["full_attn_layers"] = list(mla)
    linear["kda_layers"] = [layer for layer in range(1, layers + 1) if layer not in mla]
    if linear.get("gate_lower_bound", 0) is None:
        del linear["gate_lower_bound"]
    return config


class OracleTest(k3_binary.BinaryTest):

    def run_oracle(self, config, seed, tokens):
        """The checkpoint's directory, and how many tokens may be compared, with what."""
        model = self.path("model")
        k3_oracle.make(config, seed, model)
        oracle = k3_oracle.K3(model)
        logits = oracle.forward(tokens)
        margins = np.min(oracle.margin, 0) if oracle.margin else np.ones(len(tokens))
        close = np.flatnonzero(margins < ROUTE_MARGIN_MIN)
        return model, int(close[0]) if len(close) else len(tokens), {"logits": logits, **oracle.taps}

    def run_k3(self, model, tokens, name, *words):
        out = self.path(name)
        self.succeed("logits", model, "--tokens", ",".join(map(str, tokens)), "--hidden", out, *words)
        return read_arrays(out)[0]

    def check(self, name, config, tokens_count, seed=1):
        """Compares everything; returns the checkpoint, its tokens and what k3 gave."""
        tokens = random.Random(seed).choices(range(config["text_config"]["vocab_size"]), k=tokens_count)
        model, comparable, want = self.run_oracle(config, seed, tokens)
        self.assertGreater(comparable, tokens_count // 2, "choose another seed")
        got = self.run_k3(model, tokens, "got")
        self.assertEqual(set(got), set(want))
        worst = {}
        for key, array in want.items():
            if key.startswith("route."):
                self.assertTrue(np.array_equal(got[key][:comparable], array[:comparable]), key)
            else:
                worst[key] = relative_error(got[key][:comparable], array[:comparable])
        hidden = max(value for key, value in worst.items() if key != "logits")
        worst["a single logit"] = largest_error(got["logits"][:comparable],
                                                want["logits"][:comparable])
        print(f"{name}: {comparable} of {tokens_count} tokens, logits {worst['logits']:.2e}, "
              f"a single one {worst['a single logit']:.2e}, hidden {hidden:.2e}", flush=True)
        for key, error in worst.items():
            self.assertLessEqual(error, TOLERANCE, f"{name}: {key}")
        return model, tokens, got

    def check_decode(self, name, model, tokens, prefill, same_bits):
        decode = self.run_k3(model, tokens, "decode", "--decode")
        for key, array in prefill.items():
            if same_bits:
                self.assertEqual(decode[key].tobytes(), array.tobytes(), f"{name}: {key}")
            elif not key.startswith("route."):
                self.assertLessEqual(relative_error(decode[key], array), TOLERANCE, f"{name}: {key}")

    def test_one_token(self):
        model, tokens, got = self.check("one token", make_config(), 1)
        self.check_decode("one token", model, tokens, got, same_bits=False)

    def test_more_kda_heads_than_mla_heads(self):
        config = make_config(num_attention_heads=2, num_key_value_heads=2, qk_nope_head_dim=40,
                             v_head_dim=24, kda={"num_heads": 5, "head_dim": 24})
        model, tokens, got = self.check("KDA 5 x 24, MLA 2 x 40", config, 37)
        self.check_decode("KDA 5 x 24, MLA 2 x 40", model, tokens, got, same_bits=False)

    def test_more_mla_heads_than_kda_heads(self):
        config = make_config(num_attention_heads=7, num_key_value_heads=7, q_lora_rank=20,
                             kv_lora_rank=40, qk_nope_head_dim=24, qk_rope_head_dim=4, v_head_dim=40,
                             hidden_size=72, kda={"num_heads": 1, "head_dim": 40})
        self.check("KDA 1 x 40, MLA 7 x 24, width 72", config, 50)

    def test_several_dense_layers_and_blocks_that_do_not_divide(self):
        config = make_config(mla=(2, 7), layers=7, first_k_dense_replace=3, attn_res_block_size=3,
                             intermediate_size=100)
        self.check("3 dense of 7 layers, blocks of 3", config, 40)

    def test_blocks_of_one_layer(self):
        self.check("blocks of 1", make_config(mla=(3,), layers=4, attn_res_block_size=1), 20)

    def test_a_block_longer_than_the_model(self):
        self.check("blocks of 12 over 4 layers",
                   make_config(mla=(4,), layers=4, attn_res_block_size=12), 20)

    def test_896_experts(self):
        config = make_config(mla=(3,), layers=3, hidden_size=64, num_experts=896,
                             num_experts_per_token=16, moe_intermediate_size=32,
                             routed_expert_hidden_size=32, attn_res_block_size=2)
        self.check("896 experts, 16 a token", config, 24)

    def test_every_expert_active_unnormalised_and_scaled(self):
        config = make_config(mla=(2,), layers=3, num_experts=6, num_experts_per_token=6,
                             num_shared_experts=1, moe_renormalize=False, routed_scaling_factor=2.5)
        self.check("6 of 6 experts, scores as they are, scaled", config, 33)

    def test_an_unbounded_gate(self):
        model, tokens, got = self.check("no gate_lower_bound",
                                        make_config(kda={"gate_lower_bound": None}), 70)
        self.check_decode("no gate_lower_bound", model, tokens, got, same_bits=False)

    def test_another_convolution_and_a_weaker_gate(self):
        config = make_config(mla=(3,), layers=3, kda={"short_conv_kernel_size": 2,
                                                      "gate_lower_bound": -1.5})
        self.check("convolution of 2, gate bounded at -1.5", config, 45)

    def check_without_mla(self, bound):
        config = make_config(mla=(), layers=5, kda={"gate_lower_bound": bound})
        name = f"no MLA, gate {bound}"
        model, tokens, got = self.check(name, config, 83)
        self.check_decode(name, model, tokens, got, same_bits=True)

    def test_no_mla_layers(self):
        self.check_without_mla(-5.0)

    def test_no_mla_layers_and_an_unbounded_gate(self):
        self.check_without_mla(None)

    def test_only_mla_layers(self):
        self.check("only MLA", make_config(mla=(1, 2, 3), layers=3), 60)

    def test_long_enough_for_two_pages(self):
        config = make_config(mla=(2, 4), layers=4, num_experts=8, num_experts_per_token=2)
        model, tokens, got = self.check("300 tokens", config, 300)
        self.check_decode("300 tokens", model, tokens, got, same_bits=False)


if __name__ == "__main__":
    k3_binary.main()
