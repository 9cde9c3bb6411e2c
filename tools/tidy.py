#!/usr/bin/env python3
"""Checks the tree's own rules, those that no compiler knows.

Prints `file:line: message` per finding and exits with 1 if there is any.  The layers and what each
may use are read from the penstock_layer lines of CMakeLists.txt, so they are written down once.
Needs the standard library only.  Usage: tools/tidy.py [ROOT]
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import prose
from comment_openings import check_openings
from decisions import DECISIONS
from grouped_names import check_grouped_names
from layers import Finding, Layers, read_layers
from python_walls import PACKAGE, check_walls
from used_headers import check_used_headers

LINES_MAX = 500
COLUMNS_MAX = 100
FUNCTIONS_MAX = 25  # Limit for a class.
HEADER_COMMENT_LINES_MIN = 2

CPP = {".h", ".cpp"}
SOURCES = CPP | {".py", ".sh", ".cmake"}
SOURCE_NAMES = {"CMakeLists.txt", "Makefile", "run"}
TEXTS = SOURCES | {".md", ".in", ".json", ".jsonc", ".yaml", ".toml", ".txt", ".cff", ".svg", ""}
SKIPPED_FOLDERS = re.compile(r"(build.*|\.venv.*|\.git|runs|__pycache__|\..*_cache)")

# Folders of tests/ that stand for no folder of the tree, and what is in them.
TEST_FOLDERS = {
    "cases": "commands, and what they print, as text",
    "consumer": "a project outside the tree that uses an installed penstock",
    "docs": "the programs that a page of docs/ has",
    "faults": "what goes wrong on one rank of a run",
    "forms": "what the compiler says of layers, losses and headers",
    "fuzz": "made-up inputs for every parser",
    "golden": "expected texts",
    "parity": "comparison with other systems",
    "process": "tests that start real processes",
    "published": "plans of runs that others have measured",
    "regress": "one small case per defect that was found",
    "setup": "the first commands on a machine where nothing was installed",
    "support": "what several test folders share",
    "torn": "saves that end or fail at any call, and disks that lose what was not flushed",
}

TORCH_FOLDERS = {"ATen", "c10", "c10d", "caffe2", "torch"}

# Spelt in pieces, so that this file passes its own check.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
MACHINE_PATHS = re.compile(
    r"(?<![\w.}])/(?:" + "|".join(["work", "home", "root", "opt", "Users"]) + r")/[\w.]"
)
REGISTRY_HOSTS = re.compile(
    "|".join(["files[.]python" + "hosted", "pypi[.]" + "org", "download[.]py" + "torch"])
)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
ASSERT = re.compile(r"(?<!\w)assert\s*\(|^\s*#\s*include\s*<(?:cassert|assert\.h)>")
MARKDOWN_LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")


@dataclass
class Source:
    """One text file: its path relative to the root, and its lines."""

    path: str
    lines: list[str]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.path).suffix

    @property
    def is_source(self) -> bool:
        return self.suffix in SOURCES or PurePosixPath(self.path).name in SOURCE_NAMES

    @property
    def forwards(self) -> bool:
        """Whether it is a header's earlier name, which may be in a layer below the header."""
        return self.lines[0].endswith("by its earlier name, for one version.")

    def finding(self, line: int, message: str) -> Finding:
        return Finding(self.path, line, message)


def list_files(root: Path) -> list[str]:
    """The files that git knows or would add; without git, all but those in skipped folders."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        git = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if git.returncode == 0:
            return sorted({name for name in git.stdout.split("\0") if (root / name).is_file()})
    names = []
    for path in root.rglob("*"):
        relative = path.relative_to(root)
        if path.is_file() and not any(map(SKIPPED_FOLDERS.fullmatch, relative.parts)):
            names.append(relative.as_posix())
    return sorted(names)


def read_sources(root: Path, names: list[str]) -> Iterator[Source]:
    for name in names:
        if PurePosixPath(name).suffix not in TEXTS:
            continue
        try:
            text = (root / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        yield Source(name, text.split("\n")[: -1 if text.endswith("\n") else None])


def check_include(
    source: Source, line: int, include: str, layers: Layers, names: set[str]
) -> Iterator[Finding]:
    parts = source.path.removeprefix("include/").split("/")
    owner = layers.owner(source.path)
    target = include.split("/")
    used = layers.owner(include)
    if parts[0] == "penstock" and owner == "cli":
        program = "runtime" if parts[2] == "runtime" else "plan"
        allowed = layers.reach([program]) | {"cli"}
        torch, who = program == "runtime", f"the {program} program"
    elif parts[0] in ("penstock", "tests") and owner in layers.layers:
        allowed = layers.allowed(owner) if parts[0] == "penstock" else set(layers.layers)
        torch, who = layers.below_torch_line(owner), f"layer {owner}"
    else:
        allowed, torch, who = set(layers.layers) | {"cli"}, True, ""
    if target[0] in TORCH_FOLDERS and not torch:
        yield source.finding(line, f"{who} is above the torch line: no {include} here")
    if target[0] != "penstock" or len(target) < 3:
        return
    if used in layers.layers and used not in allowed and not source.forwards:
        can = ", ".join(sorted(allowed - {owner})) or "nothing"
        yield source.finding(line, f"{who} may not include {include}; CMakeLists.txt allows {can}")
    elif used in layers.layers and not torch and layers.below_torch_line(used):
        yield source.finding(line, f"{who} is above the torch line, {include} is below it")
    if not names & {include, include + ".in", f"include/{include}"}:
        yield source.finding(line, f"{include} does not exist")


def check_cpp(source: Source, layers: Layers, names: set[str]) -> Iterator[Finding]:
    for number, line in enumerate(source.lines, 1):
        include = INCLUDE.match(line)
        if include:
            yield from check_include(source, number, include[2], layers, names)
        code = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line).split("//")[0]
        if ASSERT.search(code):
            yield source.finding(number, "use PENSTOCK_CHECK, which release builds keep")
        if source.suffix == ".h" and code.startswith("using namespace"):
            yield source.finding(number, "a header opens a namespace for all who include it")


def check_decisions(source: Source) -> Iterator[Finding]:
    """What is decided in one place, and again in another."""
    if not source.path.startswith(("penstock/", "python/penstock/")):
        return
    for number, line in enumerate(source.lines, 1):
        code = line.split("//")[0]
        for rule, pattern, places in DECISIONS:
            if pattern.search(code) and not source.path.startswith(places):
                yield source.finding(number, rule)


def check_python_walls(sources: list[Source]) -> Iterator[Finding]:
    """Imports of the Python package that run back, or in a circle."""
    python = [each for each in sources if each.suffix == ".py"]
    package = [each for each in python if PACKAGE in PurePosixPath(each.path).parents]
    texts = {each.path: "\n".join(each.lines) for each in package}
    for found, message in check_walls(texts):
        yield Finding(found.path, found.line, message)


def check_comments(source: Source) -> Iterator[Finding]:
    for line, word in check_openings(source.path, source.lines):
        yield source.finding(line, f'begins with "{word}": name the noun, or begin with a verb')


def check_header_opening(source: Source) -> Iterator[Finding]:
    comment_lines = 0
    for number, line in enumerate(source.lines, 1):
        if line.startswith("//"):
            comment_lines += len(line.strip("/ ")) > 0
        elif line.startswith("#pragma once"):
            if comment_lines < HEADER_COMMENT_LINES_MIN:
                yield source.finding(
                    number,
                    f"the header opens with {comment_lines} lines of comment; say in at least "
                    f"{HEADER_COMMENT_LINES_MIN} what it is, who uses it, what it does not know",
                )
            return
        elif line.strip():
            yield source.finding(number, "expected the opening comment, then #pragma once")
            return
    yield source.finding(1, "#pragma once is missing")


def at_depth(text: str, start: int) -> str:
    """The block that begins at text[start], a brace, without the blocks in it."""
    depth, outer = 0, []
    for char in text[start:]:
        if char == "}":
            depth -= 1
            if depth == 1:
                outer.append(";")
        elif depth == 1 and char != "{":
            outer.append(char)
        if char == "{":
            depth += 1
        if depth == 0:
            break
    return "".join(outer)


# A destructor, a copy or a move: what any class may have.
SPECIAL_MEMBER = re.compile(r"(virtual )?~|\w+& operator=\(|(explicit )?(\w+)\((const )?\3&")


def is_function(declaration: str) -> bool:
    """Whether it has parentheses that are no template's, nor a default's."""
    words = re.sub(r"\b(public|private|protected):", "", declaration).strip()
    if SPECIAL_MEMBER.match(words):
        return False
    if words.startswith(("using ", "friend ", "static_assert", "struct ", "class ", "enum ")):
        return False
    while (shorter := re.sub(r"<[^<>]*>", "", words)) != words:
        words = shorter
    return "(" in words and "=" not in words.split("(")[0] and not words.endswith("= delete")


def check_classes(source: Source) -> Iterator[Finding]:
    code = "\n".join(line.split("//")[0] for line in source.lines)
    for match in re.finditer(r"\b(?:class|struct) (\w+)[^;{()]*(\{)", code):
        functions = sum(map(is_function, at_depth(code, match.start(2)).split(";")))
        if functions > FUNCTIONS_MAX:
            yield source.finding(
                code.count("\n", 0, match.start()) + 1,
                f"{match[1]} has {functions} functions, at most {FUNCTIONS_MAX}: it is two things",
            )


def check_standard_headers(sources: list[Source]) -> Iterator[Finding]:
    """C++ files that compile behind others, and not alone."""
    texts = {each.path: "\n".join(each.lines) for each in sources if each.suffix in CPP}
    for path, message in check_used_headers(texts):
        yield Finding(path, 1, message)


def check_size(source: Source) -> Iterator[Finding]:
    if len(source.lines) > LINES_MAX:
        yield source.finding(LINES_MAX + 1, f"{len(source.lines)} lines, at most {LINES_MAX}")
    for number, line in enumerate(source.lines, 1):
        if len(line) > COLUMNS_MAX:
            yield source.finding(number, f"{len(line)} columns, at most {COLUMNS_MAX}")


def check_words(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.lines, 1):
        if found := UNFINISHED.search(line):
            yield source.finding(number, f"{found[0]}: finish it, or leave it to an issue")
        if found := MACHINE_PATHS.search(line):
            yield source.finding(number, f"a path of one machine: {line[found.start() :][:40]}")
        if found := REGISTRY_HOSTS.search(line):
            yield source.finding(number, f"names a package registry: {found[0]}")


def markdown_lines(source: Source) -> Iterator[tuple[int, str]]:
    """The lines outside code blocks and comments, without inline code."""
    fenced = commented = False
    for number, line in enumerate(source.lines, 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if fenced:
            continue
        if commented and "-->" not in line:
            continue
        text = line.split("-->")[-1] if commented else line
        text = re.sub(r"<!--.*?-->", "", text)
        commented = "<!--" in text
        yield number, re.sub(r"`[^`]*`", "", text.split("<!--")[0])


def anchors(source: Source) -> set[str]:
    """What a `#fragment` may name: the headings, as GitHub spells them."""
    result = set()
    fenced = False
    for line in source.lines:
        fenced ^= line.lstrip().startswith("```")
        if not fenced and (heading := re.match(r"#+\s+(.*)", line)):
            words = re.sub(r"[^\w\- ]", "", heading[1].strip().lower())
            result.add(words.replace(" ", "-"))
    return result


def check_links(source: Source, root: Path, documents: dict[str, Source]) -> Iterator[Finding]:
    for number, line in markdown_lines(source):
        for link in MARKDOWN_LINK.findall(line):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, fragment = link.partition("#")
            target = (root / source.path).parent / name if name else root / source.path
            if not target.exists():
                yield source.finding(number, f"the link {link} leads nowhere")
            elif fragment and target.resolve().is_relative_to(root):
                document = documents.get(target.resolve().relative_to(root).as_posix())
                if document and fragment not in anchors(document):
                    yield source.finding(number, f"the link {link} names no heading")


def check_prose(pages: list[Source]) -> Iterator[Finding]:
    """Lines and sentences of docs/ and README.md, and how many words they have together."""
    for path, line, message in prose.objections([(page.path, page.lines) for page in pages]):
        yield Finding(path, line, message)


def check_folders(names: list[str], layers: Layers) -> Iterator[Finding]:
    """Folders of penstock/ without a layer, and of tests/ that mirror nothing; once each."""
    top = {name.split("/")[0] for name in names}
    seen = set()
    for name in names:
        parts = name.removeprefix("include/").split("/")
        folder = tuple(parts[: 3 if parts[0] == "penstock" and len(parts) > 3 else 2])
        if len(parts) < 3 or folder in seen:
            continue
        seen.add(folder)
        owner = layers.owner(name)
        if owner and (not name.startswith("penstock/") or name.startswith(layers.folder(owner))):
            continue
        if parts[0] == "penstock":
            yield Finding(name, 1, f"{'/'.join(folder)} is no layer in CMakeLists.txt")
        elif parts[0] == "tests" and parts[1] not in TEST_FOLDERS and parts[1] not in top:
            yield Finding(
                name,
                1,
                f"tests/{parts[1]} mirrors no folder of penstock/ or of the tree, and "
                "TEST_FOLDERS in tools/tidy.py does not say what it is",
            )


def check_public_headers(
    sources: list[Source], documents: dict[str, Source], names: set[str]
) -> Iterator[Finding]:
    """Headers of docs/headers.md that are not there, and others that users are shown to include."""
    page = documents.get("docs/headers.md")
    public = {}
    for number, line in enumerate(page.lines if page else [], 1):
        if row := re.match(r"\| `(penstock/[^`]+)` \|", line):
            public[row[1]] = number
    for header, number in public.items():
        if f"include/{header}" not in names:
            yield page.finding(number, f"there is no {header}")
    for source in sources:
        if not source.path.startswith(("tests/consumer/", "examples/", "docs/", "README.md")):
            continue
        for number, line in enumerate(source.lines, 1):
            header = re.match(r"\s*#include [<\"](penstock/[^>\"]+)", line)
            if header and header[1] not in public:
                yield source.finding(number, f"{header[1]} is not public (docs/headers.md)")


def compiled_test_folders(root: Path) -> set[str]:
    """The folders of tests/ that some penstock_test_program takes."""
    text = (root / "tests/CMakeLists.txt").read_text(encoding="utf-8")
    uncommented = re.sub(r"#[^\n]*", "", text)
    calls = re.findall(r"\bpenstock_test_program\s*\([^)]*\bFOLDERS\b([^)]*)\)", uncommented)
    return {name for call in calls for name in call.split()}


def check_tests_are_compiled(names: list[str], folders: set[str]) -> Iterator[Finding]:
    for name in names:
        top, _, rest = name.partition("/")
        is_test = top == "tests" and name.endswith("_test.cpp")
        if is_test and rest.rpartition("/")[0] not in folders:
            yield Finding(name, 1, "no FOLDERS in tests/CMakeLists.txt has this test's folder")


def check_groups(sources: list[Source], layers: Layers) -> Iterator[Finding]:
    """Names that files have in common which CMake may compile together."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for source in sources:
        if source.suffix != ".cpp" or not source.path.startswith(("penstock/", "bindings/")):
            continue
        folder = source.path.rpartition("/")[0]
        # Each of the command line's two programs has a folder, and what is beside the two.
        programs = ["penstock/cli/plan", "penstock/cli/runtime"]
        is_of_cli = folder.startswith("penstock/cli")
        owner = folder if is_of_cli else layers.owner(source.path) or folder
        for group in programs if folder == "penstock/cli" else [owner]:
            groups.setdefault(group, []).append((source.path, "\n".join(source.lines) + "\n"))
    for files in groups.values():
        for path, message in check_grouped_names(files):
            yield Finding(path, 1, message)


def check_tree(root: Path) -> list[Finding]:
    root = root.resolve()
    names = list_files(root)
    layers, findings = read_layers((root / "CMakeLists.txt").read_text(encoding="utf-8"))
    sources = list(read_sources(root, names))
    documents = {source.path: source for source in sources if source.suffix == ".md"}
    findings += check_folders(names, layers)
    findings += check_public_headers(sources, documents, set(names))
    findings += check_tests_are_compiled(names, compiled_test_folders(root))
    findings += check_python_walls(sources)
    findings += check_groups(sources, layers)
    findings += check_standard_headers(sources)
    findings += check_prose([each for each in sources if prose.is_page(each.path)])
    for source in sources:
        findings += check_words(source)
        if source.is_source:
            findings += check_size(source)
        if source.suffix in CPP:
            findings += check_cpp(source, layers, set(names))
        if source.suffix in CPP | {".py"}:
            findings += check_decisions(source)
            findings += check_comments(source)
        if source.suffix == ".h":
            findings += check_header_opening(source)
            findings += check_classes(source)
        if source.suffix == ".md":
            findings += check_links(source, root, documents)
    return sorted(findings)


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parent.parent
    findings = check_tree(root)
    for finding in findings:
        print(finding)
    if findings:
        print(f"tidy: {len(findings)} findings", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
