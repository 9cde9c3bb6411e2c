"""docs/calls.md has the calls that enter through the door, and no others."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from penstock._calls import CALLS, calling

for name in (
    "penstock._engines.saving.stage_checkpoints",
    "penstock.pipe.engine",
    "penstock.pipe.grid",
    "penstock.pipelining.schedules",
    "penstock.utils.tensor_fragment",
    "penstock.zero.engine",
):
    importlib.import_module(name)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "calls.md").read_text()


def test_the_page_has_every_call_of_python():
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    known = sorted((each.name, each.of, each.when or "always") for each in CALLS.values())
    assert sorted(rows) == known


def test_the_page_has_every_call_of_cpp():
    named = set()
    for path in (ROOT / "penstock").rglob("*.cpp"):
        named |= set(re.findall(r'comm::Call \w+\("([^"]+)"', path.read_text()))
    of_page = set(re.findall(r"`([^`]+)`", PAGE[PAGE.index("## In C++") :])) & named
    assert named
    assert of_page == named


def test_a_call_that_fails_is_over():
    class ExpectedError(Exception):
        pass

    from penstock import _runtime

    try:
        with calling("outer()"), calling("inner()"):
            assert _runtime.spoken_call() == "outer()"
            raise ExpectedError
    except ExpectedError:
        pass
    assert _runtime.spoken_call() == ""
