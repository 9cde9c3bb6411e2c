"""A shard's manifest that could not be written was told without the reason: "cannot write PATH"."""

from __future__ import annotations

import failing_disks
import support
from saves import calls_in


class ShardManifest(failing_disks.FailingDisk):
    disk = support.BUILD / "tests" / "libtorn_disk.so"
    case = failing_disks.Case("EDQUOT", 1, False, "stop", 0)

    def test_the_error_has_the_systems_words(self) -> None:
        if not self.disk.exists():
            self.skipTest(f"there is no {self.disk}: builds with sanitizers have none")
        count = self.folder / "count"
        result, _ = self.run_on_it("whole", TORN_COUNT=str(count))
        self.assert_code(result, 0)
        of_manifest = [
            number
            for number, call in enumerate(calls_in(count), 1)
            if call.name == "write" and call.path.endswith(".safetensors.json")
        ]
        at = str(of_manifest[0])
        result, checkpoints = self.run_on_it("failing", TORN_AT=at, TORN_ERROR=self.case.error)
        self.assert_code(result, 3)
        shard = checkpoints / "step-00000002.saving" / "shard-00001-of-00002.safetensors.json"
        self.assertIn(f'rank 1: cannot write "{shard}": Disk quota exceeded', result.text)
