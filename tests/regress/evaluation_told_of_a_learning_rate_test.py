"""`penstock evaluate` of a run's checkpoint told how the learning rate jumps, and a validation of a
set with fewer samples than were asked for counted some of them twice.
"""

import json

from fine_tuning import FineTuning


class EvaluationToldOfALearningRate(FineTuning):
    def test_a_run_and_its_evaluation_agree(self):
        held = self.corpus("held", samples=6)
        config = self.tuning(
            data={"path": self.corpus("chats"), "validation": held},
            scheduler={"type": "Cosine"},
            run={"epochs": 1, "eval_batches": 9, "directory": "r"},
            checkpoint={"save_interval": 100},
        )
        words = json.loads(config.read_text())
        del words["run"]["steps"]
        config.write_text(json.dumps(words))
        self.penstock("train", config)
        lines = (self.folder / "r/metrics.jsonl").read_text().splitlines()
        (loss,) = [line["val_loss"] for line in map(json.loads, lines) if "val_loss" in line]
        result = self.penstock("evaluate", config, "--data", held, "--resume", "auto", "--json")
        self.assertAlmostEqual(json.loads(result.out)["loss"], loss, delta=1e-6 * loss)
        self.assertNotIn("learning rate", result.err)
        self.assertNotIn("data.", result.err)
