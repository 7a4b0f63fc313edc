"""What is trained and measured for "Long context without positions" of docs/ablations.md: the rows,
each a change of configs/long-context.json, the lengths, and the files that a measurement leaves.
Python's standard library only.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

import ablation_report
import ablation_rows
from ablation_rows import KDA, ROOT, TEXT, Row

BASE_CONFIG = os.path.join(ROOT, "configs", "long-context.json")
NANO_DIR = os.path.join(ROOT, "models", "nano")
KINDS = ("copy", "look-up")
SEEDS = (1,)


@dataclass(frozen=True)
class Length:
    """A context that prompts are filled to, and the cases of each kind that are asked there."""
    context: int
    cases: int


# 1, 4, 16 and 64 times the training length. Cases become fewer as each takes longer.
LENGTHS = (Length(512, 100), Length(2048, 50), Length(8192, 20), Length(32768, 10))

# A KDA layer has 67,584 parameters more than an MLA layer at these sizes. The first layer's dense
# MLP (384 parameters a channel) makes up for it to the last parameter: six layers are 1,056
# channels, two are 352. All attention layers stay as they are in the base.
ALL_MLA = {KDA + "kda_layers": [], KDA + "full_attn_layers": ablation_rows.layers(1, 8),
           TEXT + "intermediate_size": 384 + 1056}
ALL_KDA = {KDA + "kda_layers": ablation_rows.layers(1, 8), KDA + "full_attn_layers": [],
           TEXT + "intermediate_size": 384 - 352}

NANO = Row("nano", "models/nano")  # as it stands there: nothing is trained
ROWS = (
    Row("hybrid", "hybrid"),
    Row("all-mla", "all MLA", ALL_MLA),
    Row("all-kda", "all KDA", ALL_KDA),
    NANO,
)


def row_named(name: str) -> Row:
    return ablation_rows.row_named(name, ROWS)


def make_config(row: Row, seed: int) -> dict[str, Any]:
    """A row's configuration with an absolute path, so that it may stand anywhere."""
    return ablation_rows.changed_config(ablation_rows.load_base(BASE_CONFIG), row, seed)


def run_path(work: str, row: Row, seed: int) -> str:
    """Of a run's directory, and of its files once a dot and their kind follow."""
    name = row.name if row is NANO else ablation_report.run_name(row.name, seed)
    return os.path.join(work, name)


def seeds_of(work: str, row: Row) -> list[int]:
    """Those that were begun; where none was, the ones that a run takes by itself."""
    if row is NANO:
        return [0]
    pattern = re.compile(rf"{re.escape(row.name)}-seed(\d+)\.state\.json")
    names = os.listdir(work) if os.path.isdir(work) else []
    found = sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)
    return found or list(SEEDS)


def result_path(run: str, length: Length) -> str:
    return os.path.join(run, f"context-{length.context}.json")


def load_result(run: str, length: Length) -> dict[str, Any] | None:
    """What k3 eval found, or {"failed": message}; None when this measurement was not made."""
    found = ablation_report.read_json(result_path(run, length))
    if found is None or (found["context"], found["cases"]) != (length.context, length.cases):
        return None
    return found
