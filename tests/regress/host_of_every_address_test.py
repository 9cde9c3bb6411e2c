"""`--host 0.0.0.0` was refused in Gloo's own words, after the ranks had started."""

from __future__ import annotations

from support import PENSTOCK, ProcessTest


class HostOfEveryAddress(ProcessTest):
    def test_train_says_what_to_name_instead(self) -> None:
        result = self.train(self.config(), "--host", "0.0.0.0", "--run", "none")
        self.assert_code(result, 2)
        self.assertRegex(result.err, r'host "0.0.0.0" stands for every address of this machine')
        self.assertIn("hostname -I", result.err)
        self.assert_nothing_left()

    def test_a_rank_of_another_launcher_says_so(self) -> None:
        variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        config = self.config(mesh={"pipe": 1, "data": 1})
        result = self.train(config, "--host", "0.0.0.0", "--run", "none", **variables)
        self.assert_code(result, 2)
        self.assertIn('host "0.0.0.0" stands for every address', result.err)

    def test_launch_says_so(self) -> None:
        result = self.run_words(PENSTOCK, "launch", "--nproc", 2, "--host", "0.0.0.0", "--", "true")
        self.assert_code(result, 2)
        self.assertIn('host "0.0.0.0" stands for every address', result.err)
