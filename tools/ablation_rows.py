"""What is compared: the rows of docs/ablations.md, each a change of configs/ablation.json, and the
configurations that come of them. Python's standard library only.
"""

import copy
import json
import os
from dataclasses import dataclass, field
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BASE_CONFIG = os.path.join(ROOT, "configs", "ablation.json")
SEEDS = (1, 2)

TEXT = "model.text_config."
KDA = TEXT + "linear_attn_config."
# Dotted paths that a row may add to the base; all others must stand there already.
ADDITIONS = ("balancing.sign_step", "qat.from_step", "qat.from_share")


class AblationError(Exception):
    """What stops the program, in words for its user."""


@dataclass(frozen=True)
class Row:
    """One run of each seed. `start` names the row whose weights of the same seed it starts from."""
    name: str
    label: str
    changes: dict[str, Any] = field(default_factory=dict)
    start: str | None = None
    evaluated: bool = False  # its exported weights are measured with k3 eval


def layers(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def sign_rule(step: float) -> dict[str, Any]:
    return {"balancing.rule": "sign", "balancing.sign_step": step}


# SiTU(g, u) = b1 tanh(g / b1) sigmoid(g) * b2 tanh(u / b2). A linear beta of 0 leaves u as it is.
# With b1 = 2^30 the division is exact and tanh(x) = x in float32 for |x| < 2^-12, so that the rest
# is g sigmoid(g) u, SwiGLU, to the last bit for every |g| below 2^18.
SWIGLU = {TEXT + "activation_situ_beta": float(2 ** 30),
          TEXT + "activation_situ_linear_beta": 0.0}

# An MLA layer has 73,840 parameters at these sizes, a KDA layer 92,324. The first layer's dense MLP
# (384 a channel) makes up for the difference: all attention layers stay as they are in the base.
ALL_MLA = {KDA + "kda_layers": [], KDA + "full_attn_layers": layers(1, 8),
           TEXT + "intermediate_size": 672}
ALL_KDA = {KDA + "kda_layers": layers(1, 8), KDA + "full_attn_layers": [],
           TEXT + "intermediate_size": 288}

# The trained weights are rounded when they are loaded. The one step at a rate that moves no weight
# by more than 1e-11, with routing biases left as they are, does nothing but export them.
ROUND_ONLY = {"steps": 1, "qat.from_step": 0, "optimizer.learning_rate": 1e-12,
              "optimizer.min_share": 1.0, "optimizer.qk_clip": 0, "balancing.rule": "none",
              "validation.every": 1, "checkpoint_every": 1}

ROWS = (
    Row("base", "base", evaluated=True),
    Row("balance-sign-0.001", "sign rule, step 0.001", sign_rule(0.001)),
    Row("balance-sign-0.01", "sign rule, step 0.01", sign_rule(0.01)),
    Row("balance-sign-0.1", "sign rule, step 0.1", sign_rule(0.1)),
    Row("balance-none", "no balancing", {"balancing.rule": "none"}),
    Row("swiglu", "SwiGLU", SWIGLU),
    Row("no-latent-norm", "no latent norm", {TEXT + "latent_moe_use_norm": False}),
    Row("plain-residuals", "plain residuals", {TEXT + "attn_res_block_size": None}),
    Row("unbounded-decay", "unbounded decay", {KDA + "gate_lower_bound": None}),
    Row("all-mla", "all MLA", ALL_MLA),
    Row("all-kda", "all KDA", ALL_KDA),
    Row("qat", "MXFP4 in training", {"qat.from_share": 0.6}, evaluated=True),
    Row("rounded-after", "MXFP4 after training", ROUND_ONLY, start="base", evaluated=True),
    Row("whole-matrix-muon", "whole-matrix Muon", {"optimizer.per_head": False}),
)


def row_named(name: str, rows: tuple[Row, ...] = ROWS) -> Row:
    for row in rows:
        if row.name == name:
            return row
    raise AblationError(f"there is no row {name}; expected one of"
                        f" {', '.join(row.name for row in rows)}, or all")


def load_base(path: str = BASE_CONFIG) -> dict[str, Any]:
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


def set_path(config: dict[str, Any], path: str, value: Any) -> None:
    """Changes the field at a dotted path, which must be one of the base or of ADDITIONS."""
    *parents, last = path.split(".")
    at = config
    for name in parents:
        if not isinstance(at.get(name), dict):
            raise AblationError(f"{path}: the base has no object {name}")
        at = at[name]
    if last not in at and path not in ADDITIONS:
        raise AblationError(f"{path}: the base has no such field")
    at[last] = value


def apply_changes(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(base)
    for path, value in changes.items():
        set_path(config, path, value)
    return config


def changed_config(base: dict[str, Any], row: Row, seed: int) -> dict[str, Any]:
    """What a row makes of a base from configs/, its tokenizer's path absolute."""
    config = apply_changes(base, row.changes)
    config["seed"] = seed
    folder = os.path.join(ROOT, "configs")
    config["tokenizer"] = os.path.normpath(os.path.join(folder, config["tokenizer"]))
    return config


def make_config(row: Row, seed: int, steps: int | None = None,
                corpus: str | None = None) -> dict[str, Any]:
    """A row's configuration with absolute paths, so that it may stand anywhere."""
    base = load_base()
    if steps is not None:
        base["steps"] = base["checkpoint_every"] = steps
    config = changed_config(base, row, seed)
    folder = os.path.dirname(BASE_CONFIG)
    texts = [os.path.normpath(os.path.join(folder, path)) for path in config["text"]]
    if corpus is not None:
        texts = [os.path.join(os.path.abspath(corpus), os.path.basename(path)) for path in texts]
    config["text"] = texts
    return config


def tokens_of(config: dict[str, Any]) -> int:
    return config["steps"] * config["sequence_length"] * config["batch_sequences"]


def target_load(config: dict[str, Any]) -> float:
    """q: how many tokens of a step an expert gets when all get as many."""
    text = config["model"]["text_config"]
    step_tokens = config["sequence_length"] * config["batch_sequences"]
    return step_tokens * text["num_experts_per_token"] / text["num_experts"]


def check_corpus(texts: list[str]) -> None:
    missing = [path for path in texts if not os.path.isfile(path)]
    if missing:
        only = " ".join(f"--only {os.path.splitext(os.path.basename(path))[0]}" for path in texts)
        raise AblationError(f"{', '.join(missing)}: not there; make the corpus with"
                            f" `tools/gather_corpus.py {only} {os.path.dirname(texts[0])}`")
