"""Who stood in a downloaded model's folder ran its Python files.

Python puts the working folder first in its path, so a tokenizer that was asked there imported
json.py or tokenizers.py of the folder.  Both doors: `penstock generate --prompt` starts Python, and
`python -m penstock.tokenize` is it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import PENSTOCK

tokenizers = pytest.importorskip("tokenizers")
# Of the standard library, of other packages, and this one.
MODULES = ("hashlib.py", "json.py", "linecache.py", "tokenizers.py", "penstock/__init__.py")
OF_COMMANDS = ("argparse.py", "hashlib.py", "json.py", "tokenizers.py")


@pytest.fixture
def folder(tmp_path):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"w": 0, "x": 1}, unk_token="w"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("x")
    return tmp_path


def plant(folder, modules):
    for module in modules:
        path = folder / module
        path.parent.mkdir(exist_ok=True)
        name = json.dumps(str(folder / "ran"))
        path.write_text(f"open({name}, 'a').write({module!r})\nraise ImportError\n")


def run(folder, *words, **variables):
    environment = {**os.environ, "PENSTOCK_PYTHON": sys.executable, **variables}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("path", ["{}", ":{}", "{}:", ".:{}"])
def test_penstock_asks_a_tokenizer_without_the_folders_code(folder, path):
    plant(folder, MODULES)
    packages = str(Path(__import__("penstock").__file__).parents[1])
    done = run(
        folder, str(PENSTOCK), "generate", ".", "--prompt", "x", PYTHONPATH=path.format(packages)
    )
    assert not (folder / "ran").exists(), (folder / "ran").read_text()
    # The prompt has its tokens; the folder has no model.
    assert "config.json" in done.stderr, done.stderr


def test_commands_of_the_package_import_nothing_from_the_folder(folder):
    plant(folder, OF_COMMANDS)
    words = (sys.executable, "-m", "penstock.tokenize", "--tokenizer", ".", "--end-of-text", "")
    done = run(folder, *words, "text.txt", "-o", "c.bin")
    assert not (folder / "ran").exists(), (folder / "ran").read_text()
    assert done.returncode == 0, done.stderr
