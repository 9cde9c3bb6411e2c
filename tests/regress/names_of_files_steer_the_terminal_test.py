"""A checkpoint from somewhere else set the title of the terminal that showed it.

Names and texts of files went to the terminal with their escapes.  Every command that shows what
files say, with a name that has each kind of them.
"""

import json
import re
import subprocess

import pytest
from support import PENSTOCK

# ESC ] sets a title, CSI of C1 paints, and U+202E turns what follows round.
EVIL = "\x1b]0;owned\x07 \x9b31m \u202e \r\x08"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def shown(folder, *words):
    """What a command prints, to both streams."""
    done = subprocess.run([PENSTOCK, *map(str, words)], cwd=folder, capture_output=True)
    return (done.stdout + done.stderr).decode(errors="replace")


CASES = {
    "a key of a configuration": ("c.json", json.dumps({EVIL: 1}, ensure_ascii=False), "train"),
    "a value of a configuration": (
        "c.json",
        json.dumps({"train_batch_size": 4, "schedule": {"name": EVIL}}, ensure_ascii=False),
        "train",
    ),
    "the escapes of JSON": ("c.json", json.dumps({"data": {"format": EVIL}}), "train"),
    "a key of DeepSpeed's": ("c.json", json.dumps({EVIL: 1}), "config", "check"),
    "a schedule": ("s.csv", f"0F0,{EVIL}\n", "verify"),
    "a schedule in JSON": ("s.json", json.dumps({"programs": [[EVIL]]}), "verify"),
    "a hostfile": ("h", f"{EVIL} slots=1\n", "run", "--hostfile"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_files_say_is_spelt_out(tmp_path, case):
    name, text, *words = CASES[case]
    (tmp_path / name).write_text(text, encoding="utf-8")
    more = ["script.py"] if words[0] == "run" else []
    text = shown(tmp_path, *words, name, *more)
    assert not STEERING.search(text), text
    assert "owned" in text, text


def test_names_of_files_are_spelt_out(tmp_path):
    for words in (["verify"], ["report"], ["checkpoint", "show"], ["train"]):
        text = shown(tmp_path, *words, f"none{EVIL}.json")
        assert not STEERING.search(text), text
        assert "owned" in text, text


CONFIG = {
    "train_batch_size": 4,
    "data": {"path": "text.txt"},
    "model": {"layers": 1, "hidden": 16, "heads": 2, "sequence_length": 16},
    "run": {"steps": 1, "eval_batches": 1, "sample_bytes": 0},
    "checkpoint": {"save_interval": 1},
}


def test_a_checkpoints_facts_are_spelt_out(tmp_path):
    """Its digest is no obstacle: the refusal says which one it wants."""
    (tmp_path / "text.txt").write_text("the river runs water wheel mill gate " * 200)
    (tmp_path / "c.json").write_text(json.dumps(CONFIG))
    said = shown(tmp_path, "train", "c.json", "--run", "run")
    manifest = next(tmp_path.glob("run/**/manifest.json"), None)
    assert manifest is not None, said
    fact = re.search(r'"facts"\s*:\s*\{\s*"([^"]+)"', manifest.read_text())
    text = manifest.read_text().replace(f'"{fact[1]}"', json.dumps(EVIL), 1)
    manifest.write_text(text)
    for wanted in re.findall(
        r"it has ([0-9a-f]{32})", shown(tmp_path, "checkpoint", "show", manifest.parent)
    ):
        digest = r'"xxh3_128": "[0-9a-f]{32}"(?=\s*\}\s*$)'
        manifest.write_text(re.sub(digest, f'"xxh3_128": "{wanted}"', text))
    for words in ("show",), ("show", "--json"), ("verify",):
        said = shown(tmp_path, "checkpoint", *words, manifest.parent)
        assert not STEERING.search(said), said
        assert "owned" in said or words == ("verify",), said
