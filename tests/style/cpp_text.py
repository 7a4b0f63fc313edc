"""C++ text for the style rules: comments and literals told from code, and the blocks of a file.

No parser: it leans on clang-format's layout (a body's brace follows a blank, an initialiser's brace
does not), which style.format checks.
"""

import bisect
import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<line_comment>//(?:\\\n|[^\n])*)
  | (?P<block_comment>/\*.*?(?:\*/|\Z))
  | (?P<raw>\b(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")
  | (?P<string>"(?:\\.|[^"\\\n])*")
  | (?P<number>\b\d[\w.]*(?:'[\w.]+)*)
  | (?P<char>'(?:\\.|[^'\\\n])+')
    """,
    re.VERBOSE | re.DOTALL,
)


def _blank(text):
    return re.sub(r"[^\n]", " ", text)


@dataclass
class CppText:
    """One file. `lines` is as written; `code` has the same shape with comments and the insides of
    literals blanked; `directives` maps a line number to its whole preprocessor directive."""

    text: str
    lines: list = field(init=False)
    code: str = field(init=False)
    comments: dict = field(init=False)  # line number -> the comment text on that line
    raw_lines: set = field(init=False)  # lines that a raw string reaches
    directives: dict = field(init=False)
    plain: str = field(init=False)  # code with the directives blanked too

    def __post_init__(self):
        self.lines = self.text.split("\n")
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.comments = {}
        self.raw_lines = set()
        self.code = _TOKEN.sub(self._replace, self.text)
        self._find_directives()

    def line_of(self, position):
        return bisect.bisect_right(self._starts, position)

    @property
    def code_lines(self):
        return self.code.split("\n")

    def _replace(self, match):
        token = match.group(0)
        kind = match.lastgroup if match.lastgroup != "delimiter" else "raw"
        if kind == "number":
            return token
        first = self.line_of(match.start())
        if kind in ("line_comment", "block_comment"):
            for i, part in enumerate(token.split("\n")):
                self.comments[first + i] = self.comments.get(first + i, "") + part
            return _blank(token)
        if kind == "raw":
            self.raw_lines.update(range(first, first + token.count("\n") + 1))
        quote = "'" if kind == "char" else '"'
        return quote + _blank(token[1:-1]) + quote

    def _find_directives(self):
        self.directives = {}
        plain = []
        lines = self.code_lines
        i = 0
        while i < len(lines):
            if not lines[i].lstrip().startswith("#"):
                plain.append(lines[i])
                i += 1
                continue
            first, parts = i, []
            while True:
                # The written line, for the name inside the quotes of an #include.
                is_include = re.match(r"\s*#\s*include\b", lines[i])
                parts.append(self.lines[i] if is_include else lines[i])
                plain.append(" " * len(lines[i]))
                i += 1
                if i >= len(lines) or not parts[-1].rstrip().endswith("\\"):
                    break
            self.directives[first + 1] = " ".join(part.rstrip().rstrip("\\") for part in parts)
        self.plain = "\n".join(plain)


@dataclass
class Function:
    name: str
    first_line: int
    last_line: int
    body: tuple  # positions of the braces


@dataclass
class Statement:
    """A statement or declaration at namespace scope, up to its semicolon."""

    text: str
    line: int


_TYPE = re.compile(r"^(?:typedef\s+|static\s+|friend\s+)*(?:class|struct|union|enum)\b")
_NAMESPACE = re.compile(r"^(?:inline\s+)?namespace\b|^extern\s+\"\s*\"$")


def _without_attributes(head):
    head = re.sub(r"\[\[[^\]]*\]\]|\balignas\s*\([^()]*\)|__attribute__\s*\(\([^)]*\)\)", " ", head)
    head = re.sub(r"^(?:\s*(?:public|private|protected)\s*:(?!:))+", "", head)
    return _without_template(head.strip())


def _without_template(head):
    while head.startswith("template"):
        start = head.find("<")
        if start < 0:
            return head
        depth = 0
        for i in range(start, len(head)):
            depth += (head[i] == "<") - (head[i] == ">")
            if depth == 0:
                head = head[i + 1:].strip()
                break
        else:
            return head
        head = re.sub(r"^requires\b[^{;]*?(?=\b(?:class|struct)\b)", "", head).strip()
    return head


def _matching_brace(code, start):
    depth = 0
    for i in range(start, len(code)):
        if code[i] == "{":
            depth += 1
        elif code[i] == "}":
            depth -= 1
            if depth == 0:
                return i
    return len(code) - 1


def _is_initialiser(code, brace, head):
    """A brace that opens a value: `x{1}`, `= {1}`, `f({1})`, not a body."""
    if head.count("(") > head.count(")"):
        return "[" not in head  # inside parentheses: a value, unless a lambda's body
    before = code[brace - 1] if brace > 0 else ""
    stripped = code[:brace].rstrip()
    if before not in " \n":
        return True
    return stripped.endswith(("=", ",", "(", "{")) and not stripped.endswith("operator=")


def _function_name(head):
    operator = re.search(r"(\boperator\s*(?:\(\)|[^\s\w(]+|[\w ]+?))\s*\(", head)
    if operator:
        return operator.group(1)
    match = re.search(r"([~\w:]+)\s*\(([^()]*)", head)
    if not match:
        return "?"
    if re.fullmatch(r"TEST|TEST_F|TEST_P|TYPED_TEST|RC_GTEST_PROP|[A-Z][A-Z0-9_]+", match.group(1)):
        return f"{match.group(1)}({match.group(2).strip()})"
    return match.group(1)


class Blocks:
    """The functions of a file and the statements at its namespace scope."""

    def __init__(self, source):
        self.functions = []
        self.statements = []
        self._source = source
        self._code = source.plain
        self._scan(0, len(self._code), at_namespace=True)

    def _scan(self, begin, end, at_namespace):
        code = self._code
        head_start = begin
        i = begin
        while i < end:
            c = code[i]
            if c == ";":
                self._end_statement(head_start, i, at_namespace)
                head_start = i + 1
            elif c == "{":
                close = min(_matching_brace(code, i), end - 1)
                keeps_head = self._block(head_start, i, close, at_namespace)
                i = close
                if not keeps_head:
                    head_start = i + 1
            i += 1

    def _end_statement(self, start, end, at_namespace):
        text = self._code[start:end]
        if at_namespace and text.strip():
            first = start + len(text) - len(text.lstrip())
            self.statements.append(Statement(text.strip(), self._source.line_of(first)))

    def _block(self, head_start, brace, close, at_namespace):
        """Takes one braced block; True when what stands before it goes on after it."""
        raw_head = self._code[head_start:brace]
        head = _without_attributes(raw_head)
        if _NAMESPACE.match(head):
            self._scan(brace + 1, close, at_namespace)
            return False
        if _TYPE.match(head) and ")" not in head and "=" not in head:
            self._scan(brace + 1, close, at_namespace=False)
            # `enum E {...};` and `struct {...} x;` both end at the semicolon.
            return at_namespace
        if _is_initialiser(self._code, brace, head) or ")" not in head and "requires" not in head:
            return True
        first = head_start + len(raw_head) - len(raw_head.lstrip())
        self.functions.append(
            Function(_function_name(head), self._source.line_of(first),
                     self._source.line_of(close), (brace, close)))
        # `auto f = [](int x) {...};` goes on to its semicolon.
        return bool(re.search(r"=\s*\[[^\]]*\]", head))
