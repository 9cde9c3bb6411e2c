"""A run that went on with another run.best kept the lowest loss of the set before, under the new
set's name, and called whatever model lay in run.save the best one.
"""

from fine_tuning import FineTuning
from model_folders import read_weights

# A rate at which no later loss is lower.
WORSE = ("--resume", "auto", "--set", "optimizer.params.lr=1")


class BestModelWasAnotherSets(FineTuning):
    def tuned(self, best, save, steps, *words):
        held = {"near": self.corpus("near"), "far": self.corpus("far", 1, samples=8)}
        data = {"path": self.corpus("chats"), "validation": held}
        run = {"best": best, "save": save, "eval_interval": 2, "steps": steps, "directory": "r"}
        whole = {"adapter": {"rank": 0}}
        config = self.tuning(data=data, model=whole, run=run, checkpoint={"save_interval": 2})
        return self.penstock("train", config, *words).err

    def test_another_set_begins_anew(self):
        self.tuned("near", "one", 4)
        said = self.tuned("far", "two", 6, "--resume", "auto")
        self.assertIn("the lowest loss was that of near: the lowest of far is looked for", said)
        self.assertIn("the best model is that of step 6, validation loss of far", said)

    def test_a_model_that_stayed_is_the_best_one(self):
        self.tuned("near", "one", 4)
        best = read_weights(self.folder / "one")
        said = self.tuned("near", "one", 6, *WORSE)
        self.assertIn("the best model is that of step 4", said)
        self.assertEqual(read_weights(self.folder / "one"), best)

    def test_what_took_its_place_is_told(self):
        self.tuned("near", "one", 4)
        self.tuned("near", "one", 6, *WORSE)
        other = self.tuning(
            "other.json",
            data={"path": self.corpus("chats")},
            model={"adapter": {"rank": 0}},
            run={"save": "one", "steps": 1},
        )
        self.penstock("train", other, "--run", "other")
        said = self.tuned("near", "one", 8, *WORSE)
        self.assertIn("the best model, of step 4", said)
        self.assertIn("is not in one", said)
        self.assertNotIn("the best model is", said)
