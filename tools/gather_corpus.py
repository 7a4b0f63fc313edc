#!/usr/bin/env python3
"""Gathers English text to train on from packages that Debian ships: gather_corpus.py OUTDIR

Each source becomes one UTF-8 file in OUTDIR. Where a file holds several documents, a line `%` stands
between them. OUTDIR/SOURCES.md records for every file the package and its version, the licence with
the words of the package's copyright file that say so, sizes and the SHA-256; the whole copyright
files are copied to OUTDIR/licences. Texts under a copyleft or attribution licence keep it: whoever
passes them on passes the licence on too.

    tools/gather_corpus.py build/corpus                    # everything; names what is missing
    tools/gather_corpus.py --install build/corpus          # installs that first, needs root
    tools/gather_corpus.py --only kjv build/corpus         # one source
    tools/gather_corpus.py --list                          # the sources

Nothing is written unless every chosen source can be read. Ends with 0, or with 2 and a line that says
why not. Python's standard library only.
"""

import argparse
import gzip
import hashlib
import html.parser
import os
import re
import shlex
import subprocess
import sys
import zlib
from dataclasses import dataclass
from typing import Callable

SEPARATOR = "%"
LINE_LABEL = re.compile(r"^\w+:\d+ ")
# Of gcide: where a definition is from, in nearly every entry.
ORIGIN_LINE = re.compile(r"^ *\[[^\[\]\n]*\b(?:Webster|PJC|WordNet)\b[^\[\]\n]*\]\n", re.MULTILINE)
KJV_CHARACTERS = 4_137_849
KJV_LINES = 31_102
# What is written in verse, ASCII art or other languages, and jokes about groups of people, is left.
FORTUNES = ("computers definitions education food humorists kids law linux literature medicine"
            " miscellaneous news people pets platitudes science sports wisdom work").split()


class GatherError(Exception):
    """What stops the program, in words for its user."""


@dataclass
class Source:
    name: str
    package: str
    licence: str
    statement: str  # words that the package's copyright file must have, spaces aside
    read: Callable[[], list]  # the documents
    about: str


# Reading.


def read_bytes(path):
    try:
        with open(path, "rb") as stream:
            content = stream.read()
    except OSError as error:
        raise GatherError(f"{path}: {error.strerror}; reinstall the package that owns it") from error
    try:
        return gzip.decompress(content) if path.endswith((".gz", ".dz")) else content
    except (OSError, EOFError, zlib.error) as error:
        raise GatherError(f"{path}: expected gzip ({error}); reinstall the package that owns"
                          " it") from error


def read_text(path):
    """Bytes that are not UTF-8, which a few old files have, become U+FFFD."""
    return read_bytes(path).decode("utf-8", errors="replace")


def tidy(text):
    """No control characters, no spaces at ends of lines, at most one blank line in a row."""
    text = text.replace("\r\n", "\n")
    text = re.sub(r"[^\S\n]*\f|[\x00-\x08\x0b-\x1f\x7f]", "", text)
    text = re.sub(r"[^\S\n]+\n", "\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text)
    return text.strip("\n")


def kjv():
    """One verse a line, without labels and without the brackets around words that were added."""
    try:
        found = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise GatherError(f"bible: {error}; reinstall bible-kjv") from error
    lines = [LINE_LABEL.sub("", line) for line in found.stdout.decode("utf-8").splitlines()]
    text = re.sub(r"[\[\]]", "", "\n".join(lines))
    if (len(lines), len(text)) != (KJV_LINES, KJV_CHARACTERS):
        raise GatherError(f"bible: expected {KJV_LINES} verses with {KJV_CHARACTERS} characters, found"
                          f" {len(lines)} with {len(text)}; use bible-kjv 4.38")
    return [text]


def dictionary(name, first_line):
    """A dictd database from the line that `first_line` matches, {references} without their braces."""
    def read():
        text = read_text(f"/usr/share/dictd/{name}.dict.dz")
        start = re.search(first_line, text, re.MULTILINE)
        if start is None:
            raise GatherError(f"{name}.dict.dz: no line matches {first_line!r}; this is another"
                              " version than expected")
        text = text[start.start():].replace("%%%", ", ")  # between names of one entry
        text = re.sub(r"\{([^{}]*)\}", lambda match: " ".join(match[1].split()), text)
        return [tidy(ORIGIN_LINE.sub("", text))]
    return read


def plain(*paths):
    return lambda: [tidy(read_text(path)) for path in paths]


def fortunes():
    documents = []
    for name in FORTUNES:
        for text in re.split(r"^%\n", read_text(f"/usr/share/games/fortunes/{name}"),
                             flags=re.MULTILINE):
            documents.append(tidy(text))
    return documents


class PageText(html.parser.HTMLParser):
    """The text of a page, a paragraph a line."""

    BLOCKS = set("p div h1 h2 h3 h4 h5 h6 li ul ol dl dt dd br hr tr table blockquote pre".split())
    HIDDEN = {"head", "script", "style"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts = []
        self.hidden = 0

    def handle_starttag(self, tag, attrs):
        self.hidden += tag in self.HIDDEN
        if tag in self.BLOCKS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag):
        self.hidden -= tag in self.HIDDEN
        if tag in self.BLOCKS:
            self.parts.append("\n\n")

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(re.sub(r"\s+", " ", data))

    def text(self):
        joined = re.sub(r"[^\S\n]+", " ", "".join(self.parts))
        return tidy(re.sub(r"\n ", "\n", joined))


def pages(folder):
    def read():
        documents = []
        try:
            names = sorted(os.listdir(folder))
        except OSError as error:
            raise GatherError(f"{folder}: {error.strerror}; reinstall the package that owns"
                              " it") from error
        for name in names:
            if name.endswith(".html"):
                page = PageText()
                page.feed(read_text(os.path.join(folder, name)))
                page.close()
                documents.append(page.text())
        return documents
    return read


SOURCES = [
    Source("kjv", "bible-kjv", "public domain", "The copyright for the King James Version text of the"
           " Bible is expired", kjv, "the King James Bible, one verse a line"),
    Source("devils-dictionary", "dict-devil", "public domain",
           "The Devil's Dictionary is in the public domain, its copyright has expired",
           dictionary("devil", r"^ +PREFACE$"), "Ambrose Bierce, The Devil's Dictionary"),
    Source("us-founding-documents", "miscfiles", "public domain",
           "is considered public information and may be distributed or copied",
           plain("/usr/share/state/us-declaration.gz", "/usr/share/state/us-constitution.gz"),
           "the Declaration of Independence and the Constitution of the United States"),
    Source("jargon-file", "dict-jargon", "public domain",
           "This document (the Jargon File) is in the public domain",
           dictionary("jargon", r"^\(TM\)$"), "the Jargon File 4.4.7"),
    Source("fortunes", "fortunes", "BSD-3-clause for the collection; each quotation is its author's",
           "This program falls under the BSD copyright", fortunes, "short quotations"),
    Source("anarchist-faq", "anarchism", "GPL-2+", "License: GPL-2",
           pages("/usr/share/doc/anarchism/html"), "An Anarchist FAQ, long essays"),
    Source("debian-reference", "debian-reference-en", "GPL-2+", "License: GPL-2+",
           plain("/usr/share/debian-reference/debian-reference.en.txt.gz"), "a manual of Debian"),
    Source("debian-faq", "debian-faq", "verbatim and modified copies under the same terms",
           "Permission is granted to copy and distribute modified versions of this document",
           plain("/usr/share/doc/debian/FAQ/debian-faq.en.txt.gz"), "questions about Debian"),
    Source("foldoc", "dict-foldoc", "GFDL-1.1+ without invariant sections",
           "with no Invariant Sections", dictionary("foldoc", r"^Free On-line Dictionary of Computing"),
           "the Free On-line Dictionary of Computing"),
    Source("gcide", "dict-gcide", "GPL-2+", "either version 2, or (at your option) any later version",
           dictionary("gcide", r"^A \\A"), "the Collaborative International Dictionary of English"),
]


# Packages.


def installed_version(package):
    try:
        found = subprocess.run(["dpkg-query", "-W", "-f=${db:Status-Status} ${Version}", package],
                               capture_output=True, text=True, check=False)
    except OSError as error:
        raise GatherError(f"dpkg-query: {error.strerror}; the texts are those of Debian's packages,"
                          " gather them on a system that has it") from error
    state, _, version = found.stdout.partition(" ")
    return version if found.returncode == 0 and state == "installed" else None


def ensure_packages(sources, install):
    missing = sorted({source.package for source in sources
                      if installed_version(source.package) is None})
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if not install:
        raise GatherError(f"missing packages: {' '.join(missing)}. Run `{shlex.join(command)}` as"
                          " root, or this program with --install, or choose sources with --only")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    try:
        done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
    except OSError as error:
        raise GatherError(f"apt-get: {error.strerror}; install {' '.join(missing)} by hand") from error
    if done.returncode != 0:
        raise GatherError(f"`{shlex.join(command)}` failed; run `apt-get update` as root first")


def copyright_of(source):
    """The package's copyright file, which must still say what this script says of it."""
    path = f"/usr/share/doc/{source.package}/copyright"
    text = read_text(path)
    if " ".join(source.statement.split()) not in " ".join(text.split()):
        raise GatherError(f"{path}: expected the words {source.statement!r}; read the file and decide"
                          " whether the text may still be used")
    return text


# Writing.


def join_documents(documents):
    """One file of documents; a document that has a line `%` of its own loses that line."""
    separator_line = re.compile(rf"^{re.escape(SEPARATOR)}$\n?", re.MULTILINE)
    kept = [separator_line.sub("", text) for text in documents] if len(documents) > 1 else documents
    kept = [text for text in kept if text.strip()]
    return f"\n{SEPARATOR}\n".join(kept), len(kept)


def write_atomically(path, content):
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        if os.path.isfile(partial):
            os.remove(partial)


def check_out_dir(path):
    if not path:
        raise GatherError("OUTDIR: expected a directory, found an empty name")
    if os.path.lexists(path) and not os.path.isdir(path):
        raise GatherError(f"{path}: expected a directory, found something else; name another OUTDIR")


def gather(sources, out_dir):
    rows, outputs = [], {}
    for source in sources:
        licence_text = copyright_of(source)
        text, count = join_documents(source.read())
        content = text.encode("utf-8")
        outputs[f"{source.name}.txt"] = content
        outputs[f"licences/{source.package}.txt"] = licence_text.encode("utf-8")
        version = installed_version(source.package)
        rows.append(f"| `{source.name}.txt` | {source.about} | {source.package} {version} |"
                    f" {source.licence} | \"{source.statement}\" | {count} | {len(text):,} |"
                    f" {text.count(chr(10)) + 1:,} | `{hashlib.sha256(content).hexdigest()}` |")
        print(f"{source.name}.txt: {count} documents, {len(text):,} characters", file=sys.stderr)
    outputs["SOURCES.md"] = "\n".join([
        "# Sources", "",
        "Written by `tools/gather_corpus.py`. Between the documents of a file stands a line `%`. The",
        "licence is that of the text; `licences/` has the whole copyright file of each package.", "",
        "| file | what | package | licence | its copyright file says | documents | characters | lines"
        " | SHA-256 |",
        "|---|---|---|---|---|---|---|---|---|", *rows, ""]).encode("utf-8")
    try:
        os.makedirs(os.path.join(out_dir, "licences"), exist_ok=True)
        for name, content in outputs.items():
            write_atomically(os.path.join(out_dir, name), content)
    except OSError as error:
        raise GatherError(f"{error.filename or out_dir}: {error.strerror}; name an OUTDIR that can be"
                          " written") from error


def choose(names):
    if not names:
        return SOURCES
    known = {source.name: source for source in SOURCES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise GatherError(f"unknown sources: {', '.join(unknown)}; expected some of"
                          f" {', '.join(known)}")
    return [source for source in SOURCES if source.name in names]


def main():
    parser = argparse.ArgumentParser(description="Gathers English text from Debian packages.")
    parser.add_argument("out_dir", nargs="?", metavar="OUTDIR", help="where to write; made if needed")
    parser.add_argument("--only", action="append", metavar="NAME",
                        help="this source alone; may be given several times")
    parser.add_argument("--install", action="store_true", help="install missing packages (root)")
    parser.add_argument("--list", action="store_true", help="print the sources and stop")
    arguments = parser.parse_args()
    try:
        sources = choose(arguments.only)
        if arguments.list:
            for source in sources:
                print(f"{source.name}\t{source.package}\t{source.licence}\t{source.about}")
            return 0
        if arguments.out_dir is None:
            parser.error("expected OUTDIR")
        check_out_dir(arguments.out_dir)
        ensure_packages(sources, arguments.install)
        gather(sources, arguments.out_dir)
    except GatherError as error:
        print(f"gather_corpus: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
