"""What is decided in one place of the tree: what each decision looks like, and where it may stand.

tidy.py looks for them; docs/ARCHITECTURE.md has all decisions, these are the ones that a line gives
away.
"""

from __future__ import annotations

import re

DECISIONS = [
    (
        "who has what in common is asked by role (mesh/groups.h), and a size by Axis (mesh/axes.h)",
        re.compile(
            r"\b(?:(?:mesh|shape|layout|asked|here|at)_?(?:\(\))?|coordinate_?(?:\(.*\))?)"
            r"(?:\.|->)(?:pipe|data)\b(?!\()"
            r'(?=(?:[^"]*"[^"]*")*[^"]*$)'  # Not in a text.
        ),
        ("penstock/core/mesh/", "include/penstock/mesh/", "penstock/plan/config/resolve"),
    ),
    (
        "what a stage of ZeRO means is decided in partition/ownership.h",
        re.compile(r"(?:==|!=|<=?|>=?) *(?:\w+::)*ZeroStage::\w|switch *\(.*\bzero\b.*stage"),
        (
            *("penstock/plan/config/", "include/penstock/config/"),
            *("penstock/plan/partition/ownership", "include/penstock/partition/ownership"),
            "penstock/runtime/parameters/zero_options",
        ),
    ),
    (
        "which parameters are too small to be away is decided in partition/ownership.cpp",
        re.compile(r"(?:\.|->)stays\("),
        ("penstock/plan/partition/", "include/penstock/partition/"),
    ),
    (
        "how much of a gradient is clipped is decided in update/update.cpp",
        re.compile(r"norm \+ 1e-6"),
        ("penstock/runtime/update/update.cpp",),
    ),
    (
        "whether a step is skipped is decided in update/update.cpp",
        re.compile(r"isfinite\(.*norm"),
        ("penstock/runtime/update/update.cpp",),
    ),
    (
        "how the learning rate moves is decided in config/learning_rate.cpp",
        re.compile(r"warmup_\w+ *[*/]|[*/] *(?:\w+\.)*warmup_"),
        ("penstock/plan/config/learning_rate.cpp",),
    ),
    (
        "a file from elsewhere is opened by core/foreign_file.h, one that a user names by "
        "core/read_file.h",
        re.compile(
            r"\bifstream\b(?!\(\"/proc)|\bfopen\(|::open\((?!.*O_DIRECTORY|.*\"/dev/null).*O_RDONLY"
        ),
        # The last two: files of /proc.
        ("penstock/core/", "penstock/launch/", "penstock/runtime/comm/"),
    ),
    (
        "a program prints by core/program_output.h or core/output.h",
        re.compile(r"\bstd::(?:cout|cerr|clog)\b|\bprintf\(|\b(?:fprintf|fputs)\("),
        ("penstock/core/program_output.cpp", "penstock/core/check.cpp"),
    ),
    (
        "a file from elsewhere is opened by _foreign_files.py",
        re.compile(r"\.read_(?:text|bytes)\(|(?<!def )\bopen\(\s*[\"']rb?[\"']"),
        (
            "penstock/",
            *("python/penstock/_plan.py", "python/penstock/_program.py"),  # Their own files.
            *("python/penstock/_compatibility.py", "python/penstock/accelerator.py"),
            # A user's script.
            *("python/penstock/swap.py", "python/penstock/_swap/script_names.py"),
        ),
    ),
]
