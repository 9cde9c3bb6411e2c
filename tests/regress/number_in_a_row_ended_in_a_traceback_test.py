"""An integer of more than 4,300 digits, which Python does not read, ended in a traceback.  So did a
key that is nested nearly as deep as Python reads JSON.
"""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.tokenize._documents import batches_of
from penstock.tokenize._rows import rows_of


@pytest.mark.parametrize("form", ["%s\n", "[%s]"])
def test_a_number_with_too_many_digits_is_named(tmp_path, form):
    path = tmp_path / "c.json"
    path.write_text(form % ('{"id": ' + "1" * 5000 + "}"))
    with pytest.raises(ConfigError, match=r"c\.json:1: has a number with too many digits"):
        list(rows_of(path))


def test_a_key_that_is_nested_deep_is_refused(tmp_path):
    path = tmp_path / "c.json"
    for depth in range(900, 1000):
        deep = "[" * depth + "]" * depth
        path.write_text(f'{{"m": [{{"role": "user", "content": "a"}}], "score": {deep}}}')
        with pytest.raises(ConfigError):
            list(batches_of([path], None, "m"))
