"""Names that two files of one folder give to different things, outside of headers.

Files of a layer are compiled in groups, and which files meet in a group changes with every new
one.  So two unnamed namespaces of a layer may not have a type, a constant or a function with the
same parameters under one name: the file that is new would break two others.  tidy.py reports what
is found here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

UNNAMED = re.compile(r"^namespace \{\n(.*?)^\}  // namespace\n", re.DOTALL | re.MULTILINE)
ENCLOSING = re.compile(r"^namespace (\w[\w:]*) \{", re.MULTILINE)
FUNCTION = re.compile(
    r"^(?!using|struct|class|enum|namespace|template|return|#)"
    r"[A-Za-z][\w:<>,&* \n]*?[\s&*](\w+)\(([^;{}]*?)\)\s*(?:const)?\s*\{",
    re.MULTILINE,
)
TYPE = re.compile(r"^(?:struct|class|enum class) (\w+)\b[^;]*?\{", re.MULTILINE)
ALIAS = re.compile(r"^using (\w+) = ([^;]+);", re.MULTILINE)
CONSTANT = re.compile(r"^(?:inline )?constexpr [\w:<>, ]+ (k\w+)", re.MULTILINE)


def check_grouped_names(files: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """A path and a message for each second use.  files: paths and texts, of one group."""
    first: dict[tuple[str, ...], tuple[str, str]] = {}
    for path, text in files:
        for key, meaning in _names(text):
            other, its_meaning = first.setdefault(key, (path, meaning))
            if other != path and (not meaning or meaning != its_meaning):
                yield path, f"{key[1]} is a name of {other}, too, and they may be compiled together"


def _names(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Names by namespace, with parameters; and what an alias stands for, "" for all others."""
    for unnamed in UNNAMED.finditer(text):
        body = re.sub(r"//.*", "", unnamed[1])
        outer = ENCLOSING.findall(text[: unnamed.start()])
        where = outer[-1] if outer else ""
        for pattern in (TYPE, CONSTANT):
            for found in pattern.finditer(body):
                yield (where, found[1]), ""
        for found in ALIAS.finditer(body):
            yield (where, found[1]), found[2]
        for found in FUNCTION.finditer(body):
            yield (where, found[1], *_types(found[2])), ""


def _types(parameters: str) -> list[str]:
    types, depth, last = [], 0, ""
    for letter in re.sub(r"/\*.*?\*/", "", parameters) + ",":
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and depth == 0:
            types.append(last)
            last = ""
        else:
            last += letter
    shorn = (re.sub(r"\s*=.*$", "", each.strip(), flags=re.DOTALL) for each in types)
    return [re.sub(r"\s+", "", re.sub(r"\s+\w+$", "", each)) for each in shorn if each]
