"""The first word of a comment on a declaration, which is to be a noun or a verb.

A comment that begins with "Of" or "By" leaves its noun to the line that it stands on, and is read
twice.  These comments are looked at: in C++ the first line of a file, a block before a declaration,
and what stands behind code; in Python a docstring, a block outside of functions, and what stands
behind code.  A block inside of a function says why, as a sentence, which may begin with any word.
So may comments in the sources of tests, which go on behind a test's name.  tidy.py reports what is
found here.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

# Prepositions, conjunctions, relative pronouns, and adverbs that stand in for one of them.
# "At most" and "at least" are quantities, so they may open a comment.
OPENINGS = {
    *("of", "by", "for", "from", "to", "into", "on", "onto", "upon", "in", "within", "inside"),
    *("at", "with", "without", "before", "after", "behind", "between", "among", "beside"),
    *("besides", "beyond", "above", "below", "under", "over", "through", "during", "until"),
    *("per", "like", "about", "against", "across", "along", "around", "towards", "since", "as"),
    *("than", "instead", "except", "despite", "that", "those", "which", "whose", "whom", "where"),
    *("wherein", "whereby", "and", "but", "or", "nor", "so", "yet", "then", "also", "likewise"),
    *("else", "otherwise"),
}

WORD = re.compile(r"(?!at (?:most|least)\b)[a-z]+(?![\w.(:-])", re.IGNORECASE)
LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![\w])\'(?:[^\'\\]|\\.)+\'')
RAW = re.compile(r'R"(\w*)\(')
TYPE = re.compile(r"\b(?:class|struct|union|enum)\b[^()=]*$")
NAMESPACE = re.compile(r"\b(?:namespace\b[^()=]*|extern\s*)$")
ACCESS = re.compile(r"\b(?:public|private|protected)$")


@dataclass(frozen=True)
class Comment:
    line: int
    text: str  # Its first line, or more.


def check_openings(path: str, lines: list[str]) -> Iterator[tuple[int, str]]:
    """The lines of comments that begin with one of OPENINGS, and that word as it stands there."""
    if not is_checked(path):
        return
    is_python = path.endswith(".py")
    for comment in python_comments("\n".join(lines)) if is_python else cpp_comments(lines):
        word = WORD.match(comment.text)
        if word and word[0].lower() in OPENINGS:
            yield comment.line, word[0]


def is_checked(path: str) -> bool:
    is_source_of_tests = path.startswith("tests/") and not path.endswith(".h")
    return path.endswith((".h", ".cpp", ".py")) and not is_source_of_tests


def blank(found: re.Match[str]) -> str:
    return " " * len(found[0])


def without_literals(lines: list[str]) -> Iterator[str]:
    """C++ lines with blanks in the place of literals, each as long as it was."""
    raw_end = ""
    for line in lines:
        begin = 0
        if raw_end:
            end = line.find(raw_end)
            begin = len(line) if end < 0 else end + len(raw_end)
            raw_end = "" if end >= 0 else raw_end
        masked = " " * begin + LITERAL.sub(blank, line[begin:])
        if (raw := RAW.search(line, begin)) and "//" not in masked[: raw.start()]:
            raw_end = f'){raw[1]}"'
            end = line.find(raw_end, raw.end())
            stop = len(line) if end < 0 else end + len(raw_end)
            masked = masked[: raw.start()] + " " * (stop - raw.start()) + line[stop:]
            raw_end = "" if end >= 0 else raw_end
        yield masked


class Scopes:
    """The braces of a C++ file that are open, as far as it has been read."""

    def __init__(self) -> None:
        self._declares: list[bool] = []
        self._head = ""  # What stands before the next brace.

    @property
    def declares(self) -> bool:
        """Whether what comes next is a member of a namespace or a type, or a row of a table."""
        return all(self._declares)

    def read(self, code: str) -> None:
        for char in code + "\n":
            if char == "{":
                head = self._head.strip()
                declares = TYPE.search(head) or NAMESPACE.search(head)
                self._declares.append(bool(declares) or head == "" or head.endswith(("=", ",")))
            elif char == "}":
                self._declares = self._declares[:-1]
            if char in "{};" or (char == ":" and ACCESS.search(self._head)):
                self._head = ""
            else:
                self._head += char


def cpp_comments(lines: list[str]) -> Iterator[Comment]:
    scopes = Scopes()
    column = -1  # Column of a comment that the next line may go on with.
    for number, (line, masked) in enumerate(zip(lines, without_literals(lines), strict=True), 1):
        code, slashes, _ = masked.partition("//")
        goes_on = slashes and not code.strip() and column == len(code)
        if slashes and not goes_on and (code.strip() or scopes.declares):
            yield Comment(number, line[len(code) :].strip("/< "))
        column = len(code) if slashes else -1
        if not code.startswith("#"):
            scopes.read(code)


def python_comments(text: str) -> Iterator[Comment]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    inside_functions: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, *functions)) and ast.get_docstring(node):
            yield Comment(node.body[0].lineno, ast.get_docstring(node) or "")
        if isinstance(node, functions):
            inside_functions.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = text.split("\n")
    before = (0, 0)  # Line and column of the last comment.
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        trails = bool(lines[line - 1][:column].strip())
        goes_on = not trails and before == (line - 1, column)
        before = token.start
        if not goes_on and (trails or line not in inside_functions):
            yield Comment(line, token.string.strip("# "))
