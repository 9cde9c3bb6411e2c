"""`penstock.tokenize --force` removed the old corpus before the new one had its place: what failed
in between, or a kill, left neither.  And two commands could make one corpus at one time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from penstock import _planning

WORDS = {"the": 0, "river": 1, "mill": 2, "?": 3}


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Of a command that makes c.bin of text.txt."""
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "pre_tokenizer": {"type": "Whitespace"},
                "model": {"type": "WordLevel", "vocab": WORDS, "unk_token": "?"},
            }
        )
    )
    (tmp_path / "text.txt").write_text("the river the mill")
    return [
        *(sys.executable, "-m", "penstock.tokenize", "--tokenizer", "tok"),
        *("--end-of-text", "", "text.txt", "-o", "c.bin"),
    ]


def tokenize(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def corpus_in(folder: Path) -> tuple[bytes, int]:
    note = json.loads((folder / "c.bin.json").read_text())
    return (folder / "c.bin").read_bytes(), note["tokens"]


def test_what_fails_when_files_take_their_places_leaves_a_corpus(
    words: list[str], tmp_path: Path
) -> None:
    assert tokenize(words, tmp_path).returncode == 0
    old = corpus_in(tmp_path)
    (tmp_path / "text.txt").write_text("mill mill")
    (tmp_path / "c.bin.mask").mkdir()  # No file takes its place, or is removed there.
    (tmp_path / "c.bin.mask/full").touch()
    assert tokenize([*words, "--force"], tmp_path).returncode != 0
    assert corpus_in(tmp_path) in (old, (bytes([2, 0, 2, 0]), 2))


def test_the_new_corpus_takes_the_place_of_the_old_one(words: list[str], tmp_path: Path) -> None:
    assert tokenize(words, tmp_path).returncode == 0
    (tmp_path / "text.txt").write_text("mill mill")
    (tmp_path / "c.bin.mask").write_bytes(b"\0")
    assert tokenize([*words, "--force"], tmp_path).returncode == 0
    assert corpus_in(tmp_path) == (bytes([2, 0, 2, 0]), 2)
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"c.bin", "c.bin.json", "text.txt", "tok"}


@pytest.mark.parametrize("what", ["path", "folder"])
def test_a_corpus_that_another_process_makes_is_refused(
    words: list[str], tmp_path: Path, what: str
) -> None:
    lock = (
        _planning.OutputLock.of_path(str(tmp_path / "c.bin"), "a corpus")
        if what == "path"
        else _planning.OutputLock.of_folder(str(tmp_path), "a run")
    )
    refused = tokenize(words, tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert f"process {os.getpid()} of " in refused.stderr
    assert not (tmp_path / "c.bin").exists()
    lock.let_go()
    assert tokenize(words, tmp_path).returncode == 0


def test_others_make_other_corpora_there(words: list[str], tmp_path: Path) -> None:
    lock = _planning.OutputLock.beside_others(str(tmp_path), "a corpus")
    assert tokenize(words, tmp_path).returncode == 0
    lock.let_go()
