"""The style rules, one function each. A rule takes a File and yields Finding(line, rule, message)."""

import re
from dataclasses import dataclass

from cpp_text import Blocks, CppText

FUNCTION_LINES_MAX = 70
SOURCE_LINES_MAX = 500
TEST_LINES_MAX = 800
HEADER_LINES_MAX = 250
COLUMNS_MAX = 100

# Third-party headers and the only places that may include them (docs/architecture.md, section 1).
LIBRARY_PLACES = {
    "hwy/": ("Highway", ["src/kernels/", "src/sample/"]),
    "dnnl": ("oneDNN", ["src/kernels/"]),
    "oneapi/": ("oneDNN", ["src/kernels/"]),
    "unicode/": ("ICU", ["src/text/"]),
    "CLI/": ("CLI11", ["apps/"]),
    "histedit.h": ("libedit", ["src/terminal/"]),
    "boost/": ("Boost", ["src/server/"]),
    "mpi.h": ("MPI", ["src/parallel/"]),
    "liburing": ("liburing", ["src/sys/"]),
    "png.h": ("libpng", ["src/vision/"]),
    "jpeglib.h": ("libjpeg", ["src/vision/"]),
    "turbojpeg.h": ("libjpeg", ["src/vision/"]),
    "webp/": ("libwebp", ["src/vision/"]),
}
# Anywhere, but out of the headers that other rooms see.
PRIVATE_LIBRARIES = ("nlohmann/", "fmt/", "xxhash")
TEST_LIBRARIES = ("gtest/", "gmock/", "rapidcheck", "benchmark/")
SYSTEM_FOLDERS = ("sys/", "linux/", "net/", "netinet/", "arpa/")
SYSTEM_HEADERS = set(
    "dirent.h dlfcn.h errno.h fcntl.h fenv.h float.h limits.h math.h netdb.h poll.h pthread.h"
    " sched.h semaphore.h signal.h spawn.h stddef.h stdint.h stdio.h stdlib.h string.h termios.h"
    " time.h unistd.h cpuid.h cxxabi.h execinfo.h getopt.h malloc.h pwd.h wchar.h".split())
INTRINSIC_HEADERS = re.compile(r"^(?:\w*intrin|arm_neon|arm_sve)\.h$")
# Rooms that face the hardware, where #if may ask for the platform.
PLATFORM_PLACES = ("src/base/", "src/sys/", "src/kernels/")

FILE_NAME = re.compile(r"^[a-z0-9]+(?:_[a-z0-9]+)*(?:-inl|-internal)?\.(?:cc|h)$")
SCRIPT_NAME = re.compile(r"^[a-z0-9]+(?:_[a-z0-9]+)*\.(?:py|sh)$")
# Written in two parts so that this file passes its own check.
MACHINE_PATH = re.compile(r"(?<![\w.~$}\])%-])/(?:" + "work|home|root" + r")/")
REGISTRY_HOST = re.compile(
    r"\b(?:" + "|".join([r"deb\.debian" + r"\.org", r"(?:security|snapshot)\.debian" + r"\.org",
                         r"registry\.npm" + r"js\.org", r"pypi" + r"\.org",
                         r"files\.python" + r"hosted\.org", r"proxy\.golang" + r"\.org",
                         r"(?:static|index)\.crates" + r"\.io", r"repo1?\.maven" + r"\.\w+"]) + r")")
ALLOWANCE = re.compile(r"style-ok\(([\w, -]+)\): *\S")


@dataclass
class Finding:
    line: int
    rule: str
    message: str


class File:
    """One file to check: its path from the root of the tree, with slashes, and its text."""

    def __init__(self, path, text):
        self.path = path
        self.text = text
        self.name = path.rsplit("/", 1)[-1]
        self.is_header = path.endswith(".h")
        self.is_cpp = path.endswith((".cc", ".h"))
        self.is_inline_header = path.endswith("-inl.h")
        self.is_private_header = path.endswith(("-internal.h", "_internal.h", "-inl.h"))
        self.is_test = (path.startswith("tests/") or "/testing/" in path
                        or re.search(r"(_test|_fuzz|_bench|_test_util|_testing)\.(cc|h)$", path)
                        is not None)
        if self.is_cpp:
            self.cpp = CppText(text)
            self.blocks = Blocks(self.cpp)


# Size and shape.


def file_name(file):
    pattern = FILE_NAME if file.is_cpp else SCRIPT_NAME
    if (file.is_cpp or file.name.endswith((".py", ".sh"))) and not pattern.match(file.name):
        yield Finding(1, "file-name", f"{file.name} is not snake_case; rename it")


def file_length(file):
    # An -inl.h holds code that is compiled once a SIMD target: a source in all but name.
    limit = (HEADER_LINES_MAX if file.is_header and not file.is_inline_header else
             TEST_LINES_MAX if file.is_test else SOURCE_LINES_MAX)
    count = len(file.text.splitlines())
    if count > limit:
        yield Finding(limit + 1, "file-length",
                      f"{count} lines, at most {limit} here; split the file by what it does")


def function_length(file):
    for function in file.blocks.functions:
        count = function.last_line - function.first_line + 1
        if count > FUNCTION_LINES_MAX:
            yield Finding(function.first_line, "function-length",
                          f"{function.name} has {count} lines, at most {FUNCTION_LINES_MAX};"
                          " move steps into helpers with names")


def line_length(file):
    for number, line in enumerate(file.cpp.lines, 1):
        if len(line) <= COLUMNS_MAX or number in file.cpp.raw_lines:
            continue
        if re.match(r"\s*#\s*include\b", line) or re.match(r"\s*//\s*\S+$", line):
            continue  # a path or an address cannot be broken
        yield Finding(number, "line-length",
                      f"{len(line)} columns, at most {COLUMNS_MAX}; run `make format` or break it")


def header_opening(file):
    if not file.is_header:
        return
    lines = [(number, line.strip()) for number, line in enumerate(file.cpp.lines, 1)
             if line.strip()]
    per_target = file.is_inline_header and "HWY_TARGET_TOGGLE" in file.text
    if lines and lines[0][1] == "#pragma once":
        lines = lines[1:]
    elif not per_target:
        yield Finding(1, "pragma-once", "a header begins with #pragma once; put it on line 1")
        lines = [entry for entry in lines if entry[1] != "#pragma once"]
    if not lines or not lines[0][1].startswith(("//", "/*")):
        where = lines[0][0] if lines else 1
        yield Finding(where, "header-comment",
                      "a header opens with a comment after #pragma once: what this is, who owns the"
                      " memory, which thread may call, shapes, what fails, the source")


# What the code may say.


def using_namespace(file):
    if not file.is_header:
        return
    for number, line in enumerate(file.cpp.code_lines, 1):
        if re.search(r"\busing\s+namespace\b", line):
            yield Finding(number, "using-namespace",
                          "`using namespace` in a header reaches every includer; name what is used")


def todo_owner(file):
    for number, comment in sorted(file.cpp.comments.items()):
        if re.search(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\([\w. -]+\): *\S)", comment):
            yield Finding(number, "todo", "write `TODO(owner): reason`, or do it now")
        elif re.search(r"\b(?:FIXME|XXX|HACK)\b", comment):
            yield Finding(number, "todo", "the only marker is `TODO(owner): reason`")


def stream_endl(file):
    for number, line in enumerate(file.cpp.code_lines, 1):
        if re.search(r"\bstd::endl\b", line):
            yield Finding(number, "endl", "std::endl flushes; write '\\n'")


def shared_pointer(file):
    for number, line in enumerate(file.cpp.code_lines, 1):
        if not re.search(r"\bstd::(?:shared_ptr|make_shared)\b", line):
            continue
        if number not in file.cpp.comments and number - 1 not in file.cpp.comments:
            yield Finding(number, "shared-ptr",
                          "shared ownership needs its reason in a comment here or on the line"
                          " above; prefer a value, a unique_ptr or a view")


def _included(directive):
    match = re.match(r"\s*#\s*include\s*([<\"])([^>\"]+)[>\"]", directive)
    return match.groups() if match else (None, None)


def third_party_includes(file):
    for number, directive in sorted(file.cpp.directives.items()):
        bracket, header = _included(directive)
        if header is None:
            continue
        message = _include_problem(file, bracket, header)
        if message:
            yield Finding(number, "include", message)


def _include_problem(file, bracket, header):
    for prefix, (library, places) in LIBRARY_PLACES.items():
        if header.startswith(prefix):
            if file.path.startswith(tuple(places)):
                return None
            return (f"{library} belongs to {', '.join(places)} alone; call that room's interface"
                    " instead")
    if header.startswith(PRIVATE_LIBRARIES):
        if file.is_header and not file.is_private_header and not file.is_test:
            return f"<{header}> in a public header; use it in the .cc or in an -internal.h"
        return None
    if header.startswith(TEST_LIBRARIES):
        if file.is_test or file.path.startswith("bench/"):
            return None
        return f"<{header}> outside a test; tests are *_test.cc or stand under tests/"
    if bracket == '"':
        if ".." in header.split("/"):
            return f'"{header}" steps around the rooms; write it as "room/file.h"'
        if "/" not in header and file.path.startswith("src/"):
            return f'"{header}" does not say its room; write it as "room/file.h"'
        return None
    if INTRINSIC_HEADERS.match(header):
        if file.path.startswith(PLATFORM_PLACES):
            return None
        return f"<{header}> outside {', '.join(PLATFORM_PLACES)}; write a kernel for it"
    if "/" in header and not header.startswith(SYSTEM_FOLDERS):
        return (f"<{header}> is of no known library; give it a place in tests/style/rules.py and a"
                " reason in docs/decisions.md")
    if "/" not in header and header.endswith(".h") and header not in SYSTEM_HEADERS:
        return (f"<{header}> is no known system header; use quotes for our own, the <c...> form for"
                " C's, or add it to tests/style/rules.py")
    return None


def feature_switches(file):
    platform_place = file.is_test or file.path.startswith(PLATFORM_PLACES)
    for number, directive in sorted(file.cpp.directives.items()):
        match = re.match(r"\s*#\s*(if|ifdef|ifndef|elif)\b(.*)", directive)
        if not match or file.is_inline_header and "HWY_TARGET_TOGGLE" in file.text:
            continue
        names = set(re.findall(r"[A-Za-z_]\w*", match.group(2))) - {"defined"}
        foreign = sorted(n for n in names if not n.startswith(("__", "HWY_")))
        if foreign:
            yield Finding(number, "feature-switch",
                          f"#{match.group(1)} on {foreign[0]}; let CMake choose between two files,"
                          " one a stub that returns Unimplemented")
        elif not platform_place and any(n.startswith("__") for n in names):
            yield Finding(number, "feature-switch",
                          f"#{match.group(1)} on the platform belongs to"
                          f" {', '.join(PLATFORM_PLACES)}; put a function there and call it")


def macro_names(file):
    for number, directive in sorted(file.cpp.directives.items()):
        match = re.match(r"\s*#\s*define\s+(\w+)", directive)
        if match and not match.group(1).startswith(("K3_", "HWY_")):
            yield Finding(number, "macro",
                          f"macro {match.group(1)}; write a constant, a function or a template"
                          " (only K3_* and HWY_* macros exist here)")


# State.

_NOT_A_VARIABLE = re.compile(
    r"^(?:using|typedef|class|struct|union|enum|friend|static_assert|namespace|template|concept"
    r"|extern\s+template|return|asm|public|private|protected)\b")
_DECLARATION = re.compile(r"^(?P<type>[\w:*&\s]+?)\b(?P<name>[A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*$")
_OWNING_TYPE = re.compile(
    r"\bstd::(?:string|vector|deque|list|(?:unordered_)?(?:multi)?(?:map|set)|unique_ptr|function"
    r"|mutex|regex)\b")


def _immutable(declared_type):
    if re.search(r"\b(?:constexpr|consteval)\b", declared_type):
        return True
    if not re.search(r"\bconst\b", declared_type):
        return False
    # `const char* name` may be pointed elsewhere; `const char* const name` may not.
    return "*" not in declared_type or declared_type.rstrip().endswith("const")


def _declared(text):
    """A declaration without attributes, template arguments and value: `std::map g_names`."""
    text = re.sub(r"\[\[[^\]]*\]\]|\balignas\s*\([^()]*\)", " ", text)
    text = re.split(r"(?<![<>=!])=(?!=)|\{", text, maxsplit=1)[0]
    while "<" in text and ">" in text:
        shorter = re.sub(r"<[^<>]*>", " ", text)
        if shorter == text:
            break
        text = shorter
    return text.strip()


def global_state(file):
    for statement in file.blocks.statements:
        text = _declared(statement.text)
        if _NOT_A_VARIABLE.match(text):
            continue
        match = _DECLARATION.match(text)
        if not match or not match.group("type").strip():
            continue
        declared_type = match.group("type")
        if not _immutable(declared_type):
            yield Finding(statement.line, "global-state",
                          f"{match.group('name')} is mutable state of the whole program; make it"
                          " constexpr or a member of what owns it")
        elif (not file.is_test and "constexpr" not in declared_type
              and _OWNING_TYPE.search(declared_type)):
            yield Finding(statement.line, "static-initialiser",
                          f"{match.group('name')} runs code before main; use a constexpr"
                          " string_view or array")


def local_statics(file):
    code = file.cpp.plain
    for function in file.blocks.functions:
        begin, end = function.body
        for match in re.finditer(r"\b(?:static|thread_local)\b\s+[^;={(]*", code[begin:end]):
            if not re.search(r"\b(?:const|constexpr)\b", match.group(0)):
                yield Finding(file.cpp.line_of(begin + match.start()), "global-state",
                              "a mutable static in a function is a hidden global; pass it in")


# What no text file may hold.


def machine_names(file):
    for number, line in enumerate(file.text.split("\n"), 1):
        if MACHINE_PATH.search(line):
            yield Finding(number, "machine-path",
                          "a path of one machine; write it relative to the project, or <dir>")
        if REGISTRY_HOST.search(line):
            yield Finding(number, "registry-host",
                          "the host name of a package registry; name the package instead")


CPP_RULES = (file_name, file_length, function_length, line_length, header_opening,
             using_namespace, todo_owner, stream_endl, shared_pointer, third_party_includes,
             feature_switches, macro_names, global_state, local_statics)


def check(file, text_only=False):
    """All findings of one file, less those that a `style-ok(rule): reason` comment allows."""
    rules = (machine_names,)
    if not text_only:
        rules += CPP_RULES if file.is_cpp else (file_name,)
    lines = file.text.split("\n")
    found = []
    for rule in rules:
        for finding in rule(file):
            nearby = lines[max(finding.line - 2, 0):finding.line]
            allowed = [match.group(1) for match in map(ALLOWANCE.search, nearby) if match]
            if finding.rule not in re.split(r"[ ,]+", " ".join(allowed)):
                found.append(finding)
    return sorted(found, key=lambda finding: finding.line)
