"""What bench/compare makes of its runs: medians, ratios, the agreement, as JSON or as a table.

A run is what one process of one engine measured of one case, as a dictionary: `round`, `case`,
`engine` ("ours" or "theirs") and the figures that the case is there for.
"""

import math
import statistics
import struct
from dataclasses import dataclass
from typing import Any, Iterable

OURS, THEIRS = "ours", "theirs"
Run = dict[str, Any]


class CompareError(Exception):
    """What a user can read and mend."""


class InputError(CompareError):
    """What is wrong with what the user gave."""


@dataclass(frozen=True)
class Case:
    """One process of each engine a round: a prompt, then generated tokens, at a depth."""
    name: str
    prompt: int
    gen: int
    depth: int = 0

    @property
    def tokens(self) -> int:
        return self.depth + self.prompt + self.gen


@dataclass(frozen=True)
class Figure:
    """A number of the report: the field of one case's runs, and how it is shown."""
    name: str
    case: str
    field: str
    title: str
    unit: str
    scale: float = 1.0


SHORT = Case("short", prompt=512, gen=64)
# As SHORT, with llama.cpp's settings chosen for the first token: the faster ones load slower.
START = Case("start", prompt=512, gen=64)
LONG = Case("long", prompt=2048, gen=1)
DEPTHS = (Case("depth-4096", prompt=1, gen=32, depth=4096),
          Case("depth-16384", prompt=1, gen=32, depth=16384))
CASES = (SHORT, START, LONG, *DEPTHS)

FIGURES = (
    Figure("prefill_512", "short", "prefill_tok_s", "prefill, 512 tokens", "tokens/s"),
    Figure("prefill_2048", "long", "prefill_tok_s", "prefill, 2048 tokens", "tokens/s"),
    Figure("decode", "short", "decode_tok_s", "decode", "tokens/s"),
    Figure("decode_4096", "depth-4096", "decode_tok_s", "decode at depth 4096", "tokens/s"),
    Figure("decode_16384", "depth-16384", "decode_tok_s", "decode at depth 16384", "tokens/s"),
    Figure("first_token", "start", "first_token_ms", "first token", "ms"),
    Figure("memory", "start", "peak_rss_bytes", "memory at the peak", "MB", 1e-6),
)


def values_of(runs: Iterable[Run], figure: Figure, engine: str) -> dict[int, float]:
    """The figure's value in each round."""
    return {run["round"]: run[figure.field] for run in runs
            if run["case"] == figure.case and run["engine"] == engine}


def summarize(runs: list[Run], figure: Figure) -> dict[str, Any] | None:
    """Both medians, ours over theirs, and how far the rounds' own ratios lie apart."""
    ours, theirs = (values_of(runs, figure, engine) for engine in (OURS, THEIRS))
    if not ours and not theirs:
        return None
    if ours.keys() != theirs.keys():
        raise CompareError(f"{figure.name}: expected both engines in every round, found ours in "
                           f"{sorted(ours)} and theirs in {sorted(theirs)}")
    for value in (*ours.values(), *theirs.values()):
        if not (math.isfinite(value) and value > 0):
            raise CompareError(f"{figure.name}: expected a number above 0, found {value}")
    medians = statistics.median(ours.values()), statistics.median(theirs.values())
    ratios = [ours[i] / theirs[i] for i in ours]
    return {OURS: medians[0], THEIRS: medians[1], "ratio": medians[0] / medians[1],
            "ratio_min": min(ratios), "ratio_max": max(ratios)}


def build(facts: dict[str, Any], agreement: dict[str, float | None],
          runs: list[Run]) -> dict[str, Any]:
    """The JSON report: ratios first, null for what was left out, then medians and every run."""
    summaries = {figure.name: summarize(runs, figure) for figure in FIGURES}
    report: dict[str, Any] = {f"ratio_{name}": found["ratio"] if found else None
                              for name, found in summaries.items()}
    return {**report, **agreement, **facts, "figures": summaries, "runs": runs}


def relative_error(ours: bytes, theirs: bytes) -> float:
    """|ours - theirs| / |theirs| in the Euclidean norm, of two float32 arrays."""
    if len(ours) != len(theirs) or not theirs or len(theirs) % 4:
        raise CompareError(f"logits: expected two float32 arrays of one size, found {len(ours)} "
                           f"bytes of ours and {len(theirs)} of theirs")
    x, y = (struct.unpack(f"<{len(data) // 4}f", data) for data in (ours, theirs))
    error = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(x, y)))
    norm = math.sqrt(math.fsum(b * b for b in y))
    if not (math.isfinite(error) and math.isfinite(norm) and norm > 0):
        raise CompareError("logits: expected finite numbers that are not all 0")
    return error / norm


def format_number(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def format_table(report: dict[str, Any]) -> str:
    lines = [f"{'':34}{'k3':>10}{'llama.cpp':>12}{'k3 / llama.cpp':>17}  (lowest, highest round)"]
    for figure in FIGURES:
        found, title = report["figures"][figure.name], f"{figure.title} [{figure.unit}]"
        if found is None:
            lines.append(f"{title:34}{'left out':>10}")
            continue
        ours, theirs = (format_number(found[engine] * figure.scale) for engine in (OURS, THEIRS))
        lines.append(f"{title:34}{ours:>10}{theirs:>12}{found['ratio']:>17.2f}"
                     f"  ({found['ratio_min']:.2f}, {found['ratio_max']:.2f})")
    for name, title in (("logits_rel_err", "logits differ by, as measured"),
                        ("logits_rel_err_f32", "logits differ by, all in float32")):
        value = report[name]
        lines.append(f"{title:34}" + (f"{'left out':>10}" if value is None else f"{value:>10.1e}"))
    return "\n".join(lines) + "\n"
