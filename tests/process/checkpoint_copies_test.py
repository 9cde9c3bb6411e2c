"""`penstock checkpoint export` of real runs.  Standard library only.

That other tools open an export is a test where PENSTOCK_TORCH_PYTHON has safetensors.
Takes over 10 s: runs of four ranks, whose checkpoints are exported.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import unittest
from pathlib import Path

import support
from comebacks import ComebackTest
from support import PENSTOCK

# Prints, for each tensor of a folder: its name, its type, its shape, and its bytes.
OPENED = """
import json, pathlib, sys, torch
from safetensors import safe_open
folder = pathlib.Path(sys.argv[1])
index = folder / "model.safetensors.index.json"
places = json.loads(index.read_text())["weight_map"] if index.exists() else {}
tensors = {}
for path in sorted(folder.glob("*.safetensors")):
    with safe_open(path, framework="pt") as file:
        for name in file.keys():
            if index.exists() and places[name] != path.name:
                sys.exit(f"{name} is in {path.name}, the index says {places[name]}")
            tensor = file.get_tensor(name)
            bits = tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes().hex()
            tensors[name] = [str(tensor.dtype), list(tensor.shape), bits]
if index.exists() and set(places) != set(tensors):
    sys.exit("the index has other tensors")
print(json.dumps(tensors))
"""


class CopiesTest(ComebackTest):
    def checkpoint_of(self, name: str = "run", **changes: object) -> Path:
        """The last checkpoint of a run with 2 ranks."""
        values = {"mesh": {"data": 1}, "run": {"steps": 4}, "checkpoint": {"save_interval": 2}}
        config = self.training(f"{name}.json", **support.merged(values, changes))
        self.undisturbed(config, name)
        return self.folder / name / "checkpoints" / "step-00000004"

    def names(self, *but: str) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.name not in but)

    def opened(self, folder: Path) -> dict[str, list]:
        """What the package safetensors finds in the files of a folder."""
        words = [support.TORCH_PYTHON, "-c", OPENED, str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)


class Exported(CopiesTest):
    def test_other_tools_open_it_and_find_the_bits(self) -> None:
        python = support.TORCH_PYTHON
        found = python and subprocess.run([python, "-c", "import safetensors, torch"], check=False)
        if not found or found.returncode != 0:
            self.skipTest("no Python with torch and safetensors in PENSTOCK_TORCH_PYTHON")
        weights = self.folder / "weights"
        one = {"mesh": {"pipe": 1, "data": 1}, "bf16": {"enabled": True}}
        self.checkpoint_of(**one, run={"steps": 4, "save": str(weights)})
        # One rank's shard has whole tensors, by their names: another reader's view of the masters.
        states = self.opened(self.folder / "run/checkpoints/step-00000004")
        masters = {name: each for name, each in states.items() if "/" not in name}
        self.assertTrue(masters)
        self.assertLess(len(masters), len(states))
        self.assertEqual({each[0] for each in masters.values()}, {"torch.float32"})

        self.assert_code(self.checkpoint("export", "run", "whole"), 0)
        self.assertEqual(
            [each.name for each in (self.folder / "whole").iterdir()], ["model.safetensors"]
        )
        self.assertEqual(self.opened(self.folder / "whole"), masters)

        cut = self.checkpoint("export", "run", "cut", "--max-shard-size", "30KB", "--json")
        self.assert_code(cut, 0)
        files = json.loads(cut.out)["files"]
        self.assertGreater(len(files), 2)
        self.assertEqual(self.opened(self.folder / "cut"), masters)

        self.assert_code(self.checkpoint("export", "run", "short", "--type", "bf16"), 0)
        self.assertEqual(self.opened(self.folder / "short"), self.opened(weights))

    def test_it_says_what_it_has_written(self) -> None:
        path = self.checkpoint_of()
        result = self.checkpoint("export", "run", "out", "--json")
        self.assert_code(result, 0)
        said = json.loads(result.out)
        self.assertEqual(said["step"], 4)
        self.assertEqual(self.folder / said["from"], path)
        size = (self.folder / "out" / "model.safetensors").stat().st_size
        self.assertGreater(size, said["bytes"])
        self.assertEqual(said["files"][0]["tensors"], said["tensors"])
        text = self.checkpoint("export", path, "again").out
        self.assertRegex(text, r"to: again, 0\.2 MiB in 1 file\ntensors: \d+ in F32\n")


class BadInput(CopiesTest):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.checkpoint_of()
        self.before = self.names()

    def assert_refused(self, code: int, said: str, *words: object, **limits: int) -> None:
        with self.subTest(words=words):
            result = self.limited(*words, **limits) if limits else self.checkpoint(*words)
            self.assert_code(result, code)
            self.assertIn(said, result.err)
            self.assertEqual(result.out, "")
            self.assertEqual(self.names(), self.before)

    def limited(self, *words: object, file_bytes: int) -> support.Result:
        """With files that may not be larger, as on a disk that is full."""

        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

        done = subprocess.run(
            [str(PENSTOCK), "checkpoint", *map(str, words)],
            cwd=self.folder,
            env=self.environment(),
            preexec_fn=limit,
            capture_output=True,
            text=True,
            check=False,
        )
        return support.Result(done.returncode, done.stdout, done.stderr, 0.0)

    def test_words(self) -> None:
        self.assert_refused(
            2, 'found "BF32"; did you mean "F32"?', "export", "run", "a", "--type", "BF32"
        )
        self.assert_refused(
            2, "expected a size, such as 5GB", "export", "run", "a", "--max-shard-size", "5 bananas"
        )
        self.assert_refused(2, "expected a size", "export", "run", "a", "--max-shard-size", "0")
        self.assert_refused(2, "is not a directory", "export", "nowhere", "a")

    def test_what_is_there_stays(self) -> None:
        (self.folder / "there").mkdir()
        (self.folder / "there" / "notes").write_text("mine")
        self.before = self.names()
        said = 'is there already, and is not empty: it has "notes"'
        self.assert_refused(2, said, "export", "run", "there")
        self.assertEqual((self.folder / "there" / "notes").read_text(), "mine")
        self.assert_refused(2, "is not empty", "export", "run", self.path)
        self.assert_code(self.checkpoint("verify", "run"), 0)

    def test_a_full_disk(self) -> None:
        said = f": {os.strerror(errno.EFBIG)}"
        self.assert_refused(3, said, "export", "run", "a/b", file_bytes=40_000)

    def test_damage(self) -> None:
        shard = self.path / "shard-00001-of-00002.safetensors"
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 4
        shard.write_bytes(content)
        said = 'shard-00001-of-00002.safetensors" is damaged'
        self.assert_refused(3, said, "export", "run", "a/b")
        shard.unlink()
        self.assert_refused(3, "cannot be read", "export", "run", "a")


class Pruned(CopiesTest):
    def test_it_says_in_json_what_went_and_what_stayed(self) -> None:
        self.checkpoint_of(checkpoint={"save_interval": 1, "keep_last": 0})
        result = self.checkpoint("prune", "run", "--keep-last", 1, "--keep-every", 2, "--json")
        self.assert_code(result, 0)
        said = json.loads(result.out)
        self.assertEqual([each["step"] for each in said["removed"]], [3, 1])
        self.assertEqual([each["step"] for each in said["kept"]], [4, 2])
        self.assertGreater(said["bytes_removed"], 0)
        again = self.checkpoint("prune", "run", "--keep-last", 2)
        self.assertEqual(again.out, "nothing to remove: 2 checkpoints stay\n")


if __name__ == "__main__":
    unittest.main()
