"""Files of strangers: only regular ones are opened, and names in them cannot steer a terminal.

A pipe in place of a file would be waited for without end.
"""

import importlib
import os
import threading

import pytest

import penstock
from penstock._foreign_files import open_foreign, read_foreign
from penstock._printable import printable
from penstock.errors import CheckpointError, ConfigError, Error


def refusal_of(call, *, seconds=20):
    """What `call` raises, or returns; None where it is still waiting then."""
    found = []

    def run():
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path, what in (
        (tmp_path / "pipe", "is a pipe, and no file"),
        (tmp_path / "link", "is a device, and no file"),
        (tmp_path, "is a folder, and no file"),
        (tmp_path / "none", "cannot be read: No such file or directory"),
    ):
        with pytest.raises(ConfigError) as error:
            open_foreign(path)
        assert str(error.value) == f"{path}: {what}"


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"x")
    os.truncate(path, 1 << 40)  # A hole: it takes no block of the disk.
    with pytest.raises(CheckpointError, match="larger than 100 bytes"):
        read_foreign(path, 100, CheckpointError)


def test_every_reader_refuses_a_pipe(tmp_path):
    board = importlib.import_module("penstock.board")
    importing = importlib.import_module("penstock.checkpoint.importing")
    main = importlib.import_module("penstock.tokenize").main

    def with_pipe(name, folder, *others):
        folder = tmp_path / folder
        folder.mkdir()
        os.mkfifo(folder / name)
        for other, text in others:
            (folder / other).write_text(text)
        return str(folder)

    tokenizer = with_pipe("tokenizer.json", "tokenizer", ("x.txt", "text"))
    out = str(tmp_path / "c.bin")
    readers = {
        "text": lambda: main(
            ["--tokenizer", "none", with_pipe("x.txt", "texts") + "/x.txt", "-o", out]
        ),
        "tokenizer": lambda: main(["--tokenizer", tokenizer, tokenizer + "/x.txt", "-o", out]),
        "metrics": lambda: board.main([with_pipe("metrics.jsonl", "run"), "--csv", out]),
        "tag": lambda: importing.main([with_pipe("latest", "tags"), str(tmp_path / "to")]),
        "dcp": lambda: importing.main([with_pipe(".metadata", "dcp"), str(tmp_path / "to2")]),
        "deepspeed": lambda: importing.main(
            [with_pipe("mp_rank_00_model_states.pt", "deepspeed"), str(tmp_path / "to3")]
        ),
        "configuration": lambda: penstock.lint(with_pipe("c.json", "configuration") + "/c.json"),
    }
    for name, read in readers.items():
        found = refusal_of(read)
        assert found is not None, f"{name}: waits for the other end of a pipe"
        assert found != 0, name


def test_what_would_steer_a_terminal_is_spelt_out():
    assert printable("\x1b]0;title\x07\x9b31m\u202e\u2066\u2028\r\x7f") == (
        "\\u001b]0;title\\u0007\\u009b31m\\u202e\\u2066\\u2028\\u000d\\u007f"
    )
    plain = 'a\tb\nfür 重み العربية "\\u001b" \U0001f600'
    assert printable(plain) == plain
    error = Error("tensor \x1b[2J", ("named \x9bm",))
    assert str(error) == "tensor \\u001b[2J\n  note: named \\u009bm"
    assert error.message == "tensor \\u001b[2J"


def test_both_languages_spell_out_the_same():
    for code in (*range(1, 0x300), *range(0x2000, 0x2100), 0x10FFFF):
        with pytest.raises(Error) as error:
            penstock.schedule.generate(chr(code), ranks=1, microbatches=1)
        if printable(chr(code)) != chr(code):
            assert chr(code) not in str(error.value)
            assert printable(chr(code)) in str(error.value)
