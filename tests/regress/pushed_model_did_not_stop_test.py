"""Chats taught a model to end its answers with a token that generation_config.json did not name:
other programs generated on into made-up turns.
"""

import json

from fine_tuning import FineTuning


class PushedModelDidNotStop(FineTuning):
    def tuned(self, save):
        data = {"path": self.corpus("chats", answer_ends=[5])}
        config = self.tuning(data=data, run={"save": save})
        said = self.penstock("train", config, "--run", f"r-{save}").err
        return said, json.loads((self.folder / save / "generation_config.json").read_text())

    def test_the_end_of_answers_is_named(self):
        given = self.model / "generation_config.json"
        given.write_text('{\n  "eos_token_id": 2,\n  "top_p": 0.5\n}')
        said, config = self.tuned("a")
        self.assertEqual(config, {"eos_token_id": [2, 5], "top_p": 0.5})
        self.assertIn("answers end with token 5, which model does not name as an end", said)
        given.unlink()
        self.assertEqual(self.tuned("b")[1], {"eos_token_id": [5]})
        given.write_text('{"eos_token_id": [5, 7]}')
        said, config = self.tuned("c")
        self.assertEqual(config, {"eos_token_id": [5, 7]})
        self.assertNotIn("answers end", said)
