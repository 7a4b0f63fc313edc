"""What is trained and measured for "Long context without positions" of docs/ablations.md: the rows,
each a change of configs/long-context.json, the lengths, and the files that a measurement leaves.
Python's standard library only.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

import ablation_files
import ablation_report
import ablation_rows
from ablation_rows import KDA, ROOT, TEXT, AblationError, Row

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
    """Those that were begun; a row that has none is seed 0."""
    if row is NANO:
        return [0]
    pattern = re.compile(rf"{re.escape(row.name)}-seed(\d+)\.state\.json")
    names = os.listdir(work) if os.path.isdir(work) else []
    return sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)


def result_path(run: str, length: Length) -> str:
    return os.path.join(run, f"context-{length.context}.json")


def has_scores(found: dict[str, Any]) -> bool:
    """Whether every kind has its share right and the tokens of its prompts."""
    tasks = found.get("tasks")
    return isinstance(tasks, dict) and all(
        isinstance(tasks.get(kind), dict)
        and all(ablation_files.is_number(tasks[kind].get(name)) for name in ("right", "prompt_tokens"))
        for kind in KINDS)


def load_result(run: str, length: Length) -> dict[str, Any] | None:
    """What k3 eval found, or {"failed": message}; None when this measurement was not made."""
    path, advice = result_path(run, length), "remove it, and it is measured again"
    found = ablation_files.read_object(path, advice)
    if found is None or (found.get("context"), found.get("cases")) != (length.context, length.cases):
        return None
    if not isinstance(found.get("failed"), str) and not has_scores(found):
        raise AblationError(f"{path}: expected the shares of {', '.join(KINDS)}, or the message of a"
                            f" failure, found neither; {advice}")
    return found
