"""`penstock.tokenize` ended in a panic of the package tokenizers, and 88 lines, where the filter of
a container answers clone3 with EPERM: no thread can be started there.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
import refused_calls

pytest.importorskip("tokenizers")


@pytest.mark.skipif(not refused_calls.can_refuse(), reason="no seccomp filters on this machine")
def test_texts_are_tokenized_on_one_core(tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    model = {"type": "WordLevel", "vocab": {"the": 0, "mill": 1, "?": 2}, "unk_token": "?"}
    values = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (tmp_path / "tok/tokenizer.json").write_text(json.dumps(values))
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text("the mill")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "penstock.tokenize", "--tokenizer", "tok"),
            *("--end-of-text", "", "one.txt", "two.txt", "-o", "c.bin"),
        ],
        cwd=tmp_path,
        preexec_fn=refused_calls.refusal(["clone3"], errno.EPERM),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.bin").read_bytes() == bytes([0, 0, 1, 0] * 2)
