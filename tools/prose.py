#!/usr/bin/env python3
"""Counts the words of docs/ and README.md, and fills their paragraphs.

Usage: tools/prose.py [PAGE ...] prints, for each page, its words and how many sentences are too
long.  tools/prose.py --wrap PAGE ... writes the pages anew, in lines of COLUMNS_MAX.  Not counted:
what a program writes, that is the parts between BEGIN and END, the tables that begin with a line
of HEADS, and the blocks of COMPARED.
tidy.py holds the limits.  Needs the standard library only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORDS_MAX = 50_000  # All pages together.
SENTENCE_WORDS_MAX = 30
COLUMNS_MAX = 100

BEGIN = re.compile(r"<!-- (generated|torch_matrix): begin -->")
END = re.compile(r"<!-- (generated|torch_matrix): end -->")
# First lines of tables that `make golden` writes.
HEADS = re.compile(
    r"\| (fact of |key of `penstock.initialize` |key \| value \| default |name \| \| sizes )"
)
# Pages whose blocks of code a test compares with what a program prints, or compiles.
COMPARED = {"docs/configuration.md", "docs/cpp.md", "docs/errors.md", "docs/planner.md"}

ITEM = re.compile(r"^(\s*)([-*]|\d+\.)\s+")
WORD = re.compile(r"\S*\w\S*")
# What no line may be broken in: code, links, and words.
ATOM = re.compile(r"(?:`[^`]*`|!?\[[^\]]*\]\([^)\s]*\)|\S)+")
# Atoms that begin a list, a table, a heading or a quotation where they begin a line.
OPENS = re.compile(r"[-+*>|]|#+|\d+[.)]")
SENTENCE_END = re.compile(r"(?:(?<=[^\s.][.!?])|(?<=[^.][.!?][)\"])|(?<=[.!?]\*\*))\s+")


@dataclass
class Paragraph:
    line: int  # Its first, from 1.
    lines: list[str]

    @property
    def text(self) -> str:
        return " ".join(line.strip() for line in self.lines)


def is_page(path: str) -> bool:
    return path == "README.md" or (path.startswith("docs/") and path.endswith(".md"))


def kinds(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Each line with its number and kind: prose, table, code, heading, generated or blank."""
    generated = fenced = in_table = False
    for number, line in enumerate(lines, 1):
        is_fence = line.lstrip().startswith("```")
        in_table = line.startswith("|") and (in_table or HEADS.match(line) is not None)
        if generated or BEGIN.match(line):
            generated = not END.match(line)
            yield number, "generated", line
        elif in_table:
            yield number, "generated", line
        elif fenced or is_fence:
            fenced ^= is_fence
            yield number, "code", line
        elif not line.strip():
            yield number, "blank", line
        elif line.startswith("|"):
            yield number, "table", line
        elif line.startswith(("#", "<", "    ")) or re.match(r"\[[^\]]+\]: ", line):
            yield number, "heading", line
        else:
            yield number, "prose", line


def paragraphs(lines: list[str]) -> Iterator[Paragraph]:
    last = None
    for number, kind, line in kinds(lines):
        if last and (kind != "prose" or ITEM.match(line)):
            yield last
            last = None
        if kind == "prose":
            last = last or Paragraph(number, [])
            last.lines.append(line)
    if last:
        yield last


def words(path: str, lines: list[str]) -> int:
    left_out = {"generated", "code"} if path in COMPARED else {"generated"}
    return sum(len(WORD.findall(line)) for _, kind, line in kinds(lines) if kind not in left_out)


def sentences(paragraph: Paragraph) -> list[str]:
    """A full stop in code ends no sentence."""
    text = ITEM.sub("", paragraph.text, count=1)
    spans = re.findall(r"`[^`]*`", text)
    masked = re.sub(r"`[^`]*`", "`\0`", re.sub(r"\]\([^)\s]*\)", "]", text))
    found = SENTENCE_END.split(masked)
    for span in spans:
        place = next(i for i, each in enumerate(found) if "`\0`" in each)
        found[place] = found[place].replace("`\0`", span, 1)
    return found


def long_sentences(lines: list[str]) -> Iterator[tuple[int, str]]:
    for paragraph in paragraphs(lines):
        for sentence in sentences(paragraph):
            if len(WORD.findall(re.sub(r"`[^`]*`", "code", sentence))) > SENTENCE_WORDS_MAX:
                yield paragraph.line, sentence


def long_lines(lines: list[str]) -> Iterator[int]:
    """Lines of prose that could be broken, and are too long."""
    for number, kind, line in kinds(lines):
        if kind == "prose" and len(line) > COLUMNS_MAX:
            opening = ITEM.match(line)
            if len(ATOM.findall(line[opening.end() :] if opening else line)) > 1:
                yield number


def filled(paragraph: Paragraph) -> list[str]:
    opening = ITEM.match(paragraph.lines[0])
    first = opening[0] if opening else re.match(r"\s*", paragraph.lines[0])[0]
    atoms: list[str] = []
    for atom in ATOM.findall(ITEM.sub("", paragraph.text, count=1)):
        if atoms and OPENS.fullmatch(atom):
            atoms[-1] += " " + atom
        else:
            atoms.append(atom)
    result = [first + atoms[0]]
    for atom in atoms[1:]:
        if len(result[-1]) + 1 + len(atom) <= COLUMNS_MAX:
            result[-1] += " " + atom
        else:
            result.append(" " * len(first) + atom)
    return result


def wrapped(lines: list[str]) -> list[str]:
    result = list(lines)
    for paragraph in reversed(list(paragraphs(lines))):
        begin = paragraph.line - 1
        result[begin : begin + len(paragraph.lines)] = filled(paragraph)
    return result


def objections(pages: list[tuple[str, list[str]]]) -> Iterator[tuple[str, int, str]]:
    """Path, line and message of each objection to pages; the last one is to all of them."""
    total = 0
    for path, lines in pages:
        for number in long_lines(lines):
            yield path, number, f"more than {COLUMNS_MAX} columns: tools/prose.py --wrap {path}"
        for number, sentence in long_sentences(lines):
            start = " ".join(sentence.split()[:6])
            yield path, number, f"a sentence of more than {SENTENCE_WORDS_MAX} words: {start} ..."
        total += words(path, lines)
    if total > WORDS_MAX:
        yield "docs", 1, f"{total} words, at most {WORDS_MAX}: say each thing once"


def main(arguments: list[str]) -> int:
    root = Path(__file__).resolve().parents[1]
    names = [each for each in arguments if each != "--wrap"]
    pages = names or ["README.md", *sorted(f"docs/{p.name}" for p in (root / "docs").glob("*.md"))]
    total = too_long = 0
    for name in pages:
        lines = (root / name).read_text(encoding="utf-8").splitlines()
        if "--wrap" in arguments:
            lines = wrapped(lines)
            (root / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        count, sentence_count = words(name, lines), len(list(long_sentences(lines)))
        print(f"{count:6}  {sentence_count:4}  {name}")
        total, too_long = total + count, too_long + sentence_count
    print(f"{total:6}  {too_long:4}  words, and sentences of more than {SENTENCE_WORDS_MAX}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
