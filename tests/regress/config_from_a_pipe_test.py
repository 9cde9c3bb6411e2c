"""`penstock train <(generate)` failed: the launcher read the pipe to its end, and every rank opened
it again.  The launcher hands the text on.
"""

from __future__ import annotations

import os

from support import PENSTOCK, ProcessTest, free_port, losses


class ConfigFromAPipe(ProcessTest):
    def test_ranks_get_the_text_that_the_launcher_read(self) -> None:
        config = self.config(mesh={"pipe": 2, "data": 1})
        self.assert_code(self.train(config, "--run", "file"), 0)
        words = (PENSTOCK, config)
        own = self.run_words("bash", "-c", '"$0" train <(cat "$1") --run own', *words)
        self.assert_code(own, 0)
        self.assertEqual(losses(self.folder / "own"), losses(self.folder / "file"))
        resolved = (self.folder / "own/config.resolved.json").read_text()
        self.assertIn("// /dev/fd/", resolved, "values have their origins")

    def test_under_another_launcher(self) -> None:
        config = self.config(mesh={"pipe": 1, "data": 1})
        environment = self.environment(
            RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())
        )
        result = self.run_words(
            *("bash", "-c", '"$0" train <(cat "$1") --run hand', PENSTOCK, config),
            environment=environment,
        )
        self.assert_code(result, 0)

    def test_what_every_rank_reads_is_refused_before_any_starts(self) -> None:
        config = self.config(mesh={"pipe": 2, "data": 1})
        for what, option in (("data path", "data.path"), ("schedule", "schedule")):
            pipe = self.folder / f"{option}.csv"
            os.mkfifo(pipe)
            result = self.train(config, "--set", f"{option}={pipe}")
            with self.subTest(option):
                self.assert_code(result, 2)
                self.assertIn(f'{what} "{pipe}" is a pipe', result.err)
