"""Documents were told apart by the end that training corpora name: a validation set with another
one ran together, and its loss chose the best model.  `penstock evaluate` of such sets did the same.
"""

import json

from fine_tuning import FineTuning

APART = ("--set", "data.attend_across_documents=false")


class SetsEndedDocumentsWithOtherTokens(FineTuning):
    def test_a_run_refuses_them(self):
        held = {"chats": self.corpus("held", 0), "texts": self.corpus("texts", 2)}
        data = {"path": self.corpus("chats", 0), "validation": held}
        config = self.tuning(data=data | {"attend_across_documents": False})
        result = self.penstock("train", config, "--run", "r", code=2)
        self.assertIn("no one token is known that ends a document", result.err)
        self.assertIn('texts.bin": token 2', result.err)
        self.assertIn('held.bin": token 0', result.err)
        data["validation"] = {"chats": held["chats"]}
        config = self.tuning(data=data | {"attend_across_documents": False})
        self.penstock("train", config, "--run", "r")

    def test_evaluate_takes_the_end_of_what_it_evaluates(self):
        """Not that of the configuration's data, which it does not read."""
        data = {"path": self.corpus("chats", 0), "attend_across_documents": False}
        config, texts = self.tuning(data=data), self.corpus("texts", 2)
        alone = self.penstock("evaluate", config, "--data", texts, "--json").out
        named = self.penstock("evaluate", config, "--data", f"texts={texts}", "--json").out
        of_folder = ("--sequence-length", 16, *APART, "--json")
        folder = self.penstock("evaluate", "model", "--data", texts, *of_folder).out
        self.assertEqual(json.loads(named)["sets"]["texts"], json.loads(alone))
        # Batches of another size add in another order.
        self.assert_equal(json.loads(folder), json.loads(alone))
        two = ("--data", texts, "--data", self.corpus("more", 2))
        both = self.penstock("evaluate", "model", *two, *of_folder).out
        self.assert_equal(json.loads(both)["sets"]["texts"], json.loads(alone))
        other = ("--data", texts, "--data", self.corpus("held", 0))
        result = self.penstock("evaluate", "model", *other, *of_folder, code=2)
        self.assertIn('held.bin": token 0', result.err)

    def assert_equal(self, one, other):
        self.assertEqual(one["tokens"], other["tokens"])
        self.assertAlmostEqual(one["loss"], other["loss"], delta=1e-6 * other["loss"])

    def test_evaluate_of_a_mixture_takes_other_data(self):
        sources = [{"path": self.corpus(name), "weight": 1} for name in ("a", "b")]
        config = self.tuning(data={"sources": sources})
        self.penstock("evaluate", config, "--data", self.corpus("held"))
