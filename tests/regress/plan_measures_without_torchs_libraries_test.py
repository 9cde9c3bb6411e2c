"""`python -m penstock plan` measures layers where no file has them, and was started without torch's
libraries, which `memory` was given: where the package lies in another folder than torch, it failed.
"""

import pytest

from penstock import _program


@pytest.mark.parametrize("words", [[], ["--microbatch-sizes", "1"]])
def test_a_plan_that_measures_is_given_what_memory_is(words):
    assert _program.environment(["plan", *words]) == _program.environment(["memory"])


@pytest.mark.parametrize("words", [["--layers", "l.json"], ["--layers=l.json"], ["--help"]])
def test_one_that_does_not_measure_needs_no_torch(words):
    assert _program.environment(["plan", *words]) == _program.environment(["simulate"])


@pytest.mark.parametrize("command", ["profile", "selftest"])
def test_so_do_the_other_commands_that_run_layers(command):
    assert _program.environment([command]) == _program.environment(["memory"])
