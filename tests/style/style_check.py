#!/usr/bin/env python3
"""Checks the rules of CONTRIBUTING.md that a script can count: style_check.py SOURCE_DIR

C++ rules apply to src, apps, tests and bench; no text file anywhere may name a machine's paths or a
package registry's host. Each finding says `file:line: what; what to do [rule]`. An exception stands
beside its line as a comment, `style-ok(rule): reason`.
"""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import rules  # noqa: E402

CHECKED_FOLDERS = ("src/", "apps/", "tests/", "bench/")
SKIPPED_FOLDERS = {".git", "build", "node_modules", "__pycache__"}
TEXT_BYTES_MAX = 4 << 20


def listed_files(root):
    """Every file that git tracks or would track; every file outside build/ where git cannot say."""
    try:
        listing = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True, check=True).stdout.decode()
        if listing:
            return sorted(set(listing.rstrip("\0").split("\0")))
    except (OSError, subprocess.CalledProcessError):
        pass
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        paths += [os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
                  for name in names]
    return sorted(paths)


def read_text(path):
    """The file's text; None for what is missing, binary or too large to be written by hand."""
    if not os.path.isfile(path) or os.path.getsize(path) > TEXT_BYTES_MAX:
        return None
    with open(path, "rb") as stream:
        content = stream.read()
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def check_tree(root):
    """(number of files read, lines of findings) for a source tree."""
    count, messages = 0, []
    for path in listed_files(root):
        text = read_text(os.path.join(root, path))
        if text is None:
            continue
        count += 1
        file = rules.File(path, text)
        for finding in rules.check(file, text_only=not path.startswith(CHECKED_FOLDERS)):
            messages.append(f"{path}:{finding.line}: {finding.message} [{finding.rule}]")
    return count, messages


def main(arguments):
    if len(arguments) != 1 or not os.path.isdir(arguments[0]):
        print("usage: style_check.py SOURCE_DIR", file=sys.stderr)
        return 2
    count, messages = check_tree(arguments[0])
    for message in messages:
        print(message)
    print(f"style: {count} files, {len(messages)} findings")
    return 1 if messages or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
