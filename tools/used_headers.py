"""Standard headers that a C++ file uses and does not include.

Files of a layer are compiled in groups, where an earlier file's includes serve a later one.  Such a
later file does not compile alone, as in the sanitizers' builds.  USES has the headers that
penstock's own rarely include.  tidy.py reports what is found here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

USES = {
    "algorithm": r"(?:ranges::)?(?:sort|stable_sort|(?:all|any|none)_of|count(?:_if)?|find|find_if"
    r"|find_if_not|copy|copy_if|copy_n|fill|fill_n|transform|(?:min|max|minmax)(?:_element)?|clamp"
    r"|lower_bound|upper_bound|equal|equal_range|binary_search|reverse|rotate|unique|replace"
    r"|remove_if|adjacent_find|is_sorted|partition|partition_point|for_each|generate|nth_element"
    r"|mismatch|includes|set_difference|set_union|merge|next_permutation|shuffle)\(",
    "array": r"(?:array<|to_array\b)",
    "atomic": r"atomic\b",
    "bit": r"(?:bit_cast|popcount|countr_zero|bit_ceil|bit_width|endian)\b",
    "charconv": r"(?:from_chars|to_chars)\b",
    "cmath": r"(?:sqrt|exp|exp2|log|log2|pow|floor|ceil|round|lround|llround|isfinite|isnan|trunc"
    r"|fabs|hypot|ldexp|frexp|nearbyint|fmod)\(",
    "condition_variable": r"condition_variable\b",
    "cstdio": r"(?:printf|fprintf|snprintf|fputs|fopen|fflush)\(",
    "cstdlib": r"(?:getenv|exit|abort|_Exit|free|malloc|quick_exit)\(",
    "cstring": r"(?:memcpy|memset|memcmp|strlen|strcmp|strerror)\(",
    "deque": r"deque<",
    "filesystem": r"filesystem::",
    "fstream": r"[io]fstream\b",
    "limits": r"numeric_limits\b",
    "list": r"list<",
    "mutex": r"(?:mutex|lock_guard|unique_lock|scoped_lock|once_flag|call_once)\b",
    "numeric": r"(?:accumulate|iota|gcd|lcm|reduce|partial_sum|inner_product)\(",
    "queue": r"(?:queue|priority_queue)<",
    "random": r"(?:mt19937|uniform_)",
    "regex": r"(?:regex|smatch)\b",
    "set": r"(?:multi)?set<",
    "sstream": r"[io]?stringstream\b",
    "stdexcept": r"(?:runtime_error|logic_error|invalid_argument|out_of_range|length_error)\b",
    "thread": r"(?:j?thread|this_thread)\b",
    "unordered_map": r"unordered_map<",
    "unordered_set": r"unordered_set<",
}
USE = {header: re.compile(r"\bstd::" + names) for header, names in USES.items()}
STANDARD = re.compile(r"^#include <([a-z_]+)>", re.MULTILINE)
PROJECT = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
NO_CODE = re.compile(r'//.*|#include .*|"(?:\\.|[^"\\\n])*"')


def check_used_headers(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """A path and a message for each header that is missing.  texts: of all C++ files, by path."""
    for path, text in texts.items():
        included = set(STANDARD.findall(text) + STANDARD.findall(_own_header(path, texts)))
        code = NO_CODE.sub("", text)
        for header, use in USE.items():
            if header not in included and (found := use.search(code)):
                yield path, f"{found[0].rstrip('(<:')} needs #include <{header}>"


def _own_header(path: str, texts: Mapping[str, str]) -> str:
    """The text of the header that the file implements: what that includes, the file has."""
    first = PROJECT.search(texts[path])
    if first is None or PurePosixPath(first[1]).stem != PurePosixPath(path).stem:
        return ""
    return texts.get(first[1]) or texts.get(f"include/{first[1]}", "")
