"""What the tests of the planning commands share: running them, and refusals.

Needs the standard library only, and no torch.
"""

from __future__ import annotations

import subprocess

import support
from support import PENSTOCK, ProcessTest

SIZES = ("--ranks", 4, "--microbatches", 8)


def layers_of(size: dict) -> list[dict]:
    """A size's layers in a file of `penstock memory --layers`, where a number is an earlier one."""
    layers: list[dict] = []
    for each in size["layers"]:
        layers.append(layers[each] if isinstance(each, int) else each)
    return layers


class PlannerTest(ProcessTest):
    def penstock(self, *words: object, text: str = "", code: int = 0) -> support.Result:
        """Runs it with `text` as its standard input, and expects that exit code."""
        done = subprocess.run(
            [str(word) for word in (PENSTOCK, *words)],
            cwd=self.folder,
            env=self.environment(),
            input=text.encode(),
            capture_output=True,
            timeout=support.PATIENCE,
            check=False,
        )
        out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        result = support.Result(done.returncode, out, err, 0)
        self.assert_code(result, code)
        return result

    def write(self, name: str, content: str | bytes) -> str:
        data = content if isinstance(content, bytes) else content.encode()
        (self.folder / name).write_bytes(data)
        return name

    def refuse(self, pattern: str, *words: object, code: int = 2, text: str = "") -> None:
        """One error, in words, and no file that was not there before."""
        before = {path.name for path in self.folder.iterdir()}
        result = self.penstock(*words, code=code, text=text)
        self.assertRegex(result.err, pattern)
        self.assertEqual(result.out, "")
        self.assertEqual(len(support.root_causes(result.err)), 1, result.err)
        self.assertLess(len(result.err), 4000, "short enough to be read")
        self.assertNotIn("terminate called", result.err)
        self.assertEqual({path.name for path in self.folder.iterdir()}, before, "no file is left")
