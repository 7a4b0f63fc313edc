#!/usr/bin/env python3
"""Fails if clang-format would change a C++ file: format_check.py SOURCE_DIR

Exits with 77 (skipped) without clang-format-19: other releases lay out some code differently.
"""

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from style_check import CHECKED_FOLDERS, listed_files  # noqa: E402

SKIPPED = 77


def main(arguments):
    if len(arguments) != 1:
        print("usage: format_check.py SOURCE_DIR", file=sys.stderr)
        return 2
    formatter = shutil.which("clang-format-19")
    if formatter is None:
        print("format: clang-format-19 is not here (package clang-format-19); skipped")
        return SKIPPED
    root = arguments[0]
    files = [path for path in listed_files(root)
             if path.startswith(CHECKED_FOLDERS) and path.endswith((".cc", ".h"))
             and os.path.isfile(os.path.join(root, path))]
    if not files:
        print(f"format: no C++ file under {root}; give the source folder")
        return 1
    result = subprocess.run([formatter, "--dry-run", "-Werror", *files], cwd=root, check=False,
                            stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        unformatted = sorted({line.split(":")[0] for line in result.stderr.splitlines()
                              if "[-Wclang-format-violations]" in line})
        print("\n".join(unformatted) or result.stderr)
        print(f"format: {len(unformatted)} of {len(files)} files differ; run `make format`")
        return 1
    print(f"format: {len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
