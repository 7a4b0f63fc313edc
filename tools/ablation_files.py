"""The files that the runs of tools/ablations.py and tools/long_context.py leave, read back with their
form checked: people edit, cut and copy them. Python's standard library only.
"""

import json
import os
from typing import Any

from ablation_rows import AblationError

Line = dict[str, Any]
STATES = ("running", "interrupted", "failed", "finished")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_object(path: str, advice: str) -> dict[str, Any] | None:
    """The parsed JSON object, or None when the file is not there."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AblationError(f"{path}: {error.strerror}; {advice}") from error
    except (ValueError, RecursionError) as error:
        raise AblationError(f"{path}: expected JSON ({error}); {advice}") from error
    if not isinstance(found, dict):
        raise AblationError(f"{path}: expected a JSON object, found {json.dumps(found)[:40]};"
                            f" {advice}")
    return found


def read_state(path: str, trained: bool = True) -> dict[str, Any]:
    """A run's state, empty when it never began. What was `trained` has a number of steps."""
    advice = "remove it, and the run goes on from its checkpoint"
    found = read_object(path, advice)
    if found is None:
        return {}
    wanted = {"state": (True, lambda value: value in STATES, "one of " + ", ".join(STATES)),
              "message": (False, lambda value: isinstance(value, str), "a text"),
              "steps": (trained, is_count, "a whole number"),
              "tokens": (False, is_count, "a whole number"),
              "q": (False, is_number, "a number"),
              "parameters": (False, is_count, "a whole number")}
    for name, (needed, fits, what) in wanted.items():
        if (name in found or needed) and not fits(found.get(name)):
            raise AblationError(f"{path}: {name}: expected {what}, found"
                                f" {json.dumps(found.get(name))[:40]}; {advice}")
    return found


def is_line(value: Any) -> bool:
    """Whether it is a step of metrics.jsonl, with a list of layers in each of its sections."""
    if not isinstance(value, dict) or not is_count(value.get("step")):
        return False
    sections = [value.get(name) or [] for name in ("health", "balance")]
    return all(isinstance(section, list) and all(isinstance(layer, dict) for layer in section)
               for section in sections)


def read_metrics(path: str) -> list[Line]:
    """One object a step. A last line that was cut off is left out."""
    lines: list[Line] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for text in stream:
                try:
                    line = json.loads(text)
                except ValueError:
                    break
                if not is_line(line):
                    raise AblationError(f"{path}: line {len(lines) + 1}: expected an object with a"
                                        f" step, found {text.strip()[:40]}; remove the run's"
                                        " directory and its state.json, and it is made again")
                lines.append(line)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise AblationError(f"{path}: {error.strerror}; make it a file that can be read") from error
    return lines


def last_step(path: str) -> int:
    lines = read_metrics(path)
    return lines[-1]["step"] if lines else 0


def check_directory(path: str, option: str) -> None:
    """Refuses what is there and is no directory, and a name that means none."""
    if not path:
        raise AblationError(f"{option}: expected a directory, found an empty name")
    if os.path.lexists(path) and not os.path.isdir(path):
        raise AblationError(f"{path}: expected a directory, found something else; name another with"
                            f" {option}")


def make_directory(path: str, option: str) -> None:
    check_directory(path, option)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise AblationError(f"{path}: cannot be made ({error.strerror}); name another with"
                            f" {option}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise AblationError(f"{path}: cannot be written; change its mode or name another with"
                            f" {option}")


def write_text(path: str, content: str) -> None:
    with open(path + ".partial", "w", encoding="utf-8") as stream:
        stream.write(content)
    os.replace(path + ".partial", path)


def write_json(path: str, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")
