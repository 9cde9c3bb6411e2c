"""`penstock verify` of a run's configuration: what its ranks exchange, proved without a rank.

Needs the standard library only; layers are those of the program that has torch.
"""

from __future__ import annotations

import json
import unittest

from planning import PlannerTest
from support import ROOT

TENSOR = ROOT / "examples" / "tensor.json"
MODEL = f"model.path={ROOT / 'examples' / 'tiny_llama'}"
BEHIND = 'behind piece {} of layer "model.layers.{}"'


class VerifyRun(PlannerTest):
    def test_a_run_is_proved_and_its_exchanges_counted(self) -> None:
        out = self.penstock("verify", TENSOR, "--set", MODEL).out.splitlines()
        self.assertEqual(
            out[0],
            f"{TENSOR}: verified, 1f1b(ranks=2, stages=2, microbatches=8) on "
            "pipe(2) x data(1) x tensor(2)",
        )
        self.assertEqual(out[1], "peak activations by pipe rank: 2, 1")
        self.assertEqual(len(out), 4)
        self.assertTrue(out[2].startswith("stage 0: model.embed_tokens .. model.layers."), out[2])
        self.assertIn(" exchanges in a forward, ", out[2])

    def test_exchanges_have_names(self) -> None:
        words = ("verify", TENSOR, "--set", MODEL, "--set", "mesh.pipe=1", "--nproc", 2, "--json")
        (stage,) = json.loads(self.penstock(*words).out)["stages"]
        # The embedding, four blocks, the head, and two of the loss.
        self.assertEqual(len(stage["forward"]), 1 + 4 * 4 + 1 + 2)
        block = [name for name in stage["backward"] if BEHIND.format("", 3)[-16:] in name]
        self.assertEqual(
            block,
            [
                f"the all-gather {BEHIND.format(2, 3)}",
                f"the all-gather of gradients {BEHIND.format(3, 3)}",
                f"the reduce-scatter of gradients {BEHIND.format(2, 3)}",
                f"the all-gather {BEHIND.format(0, 3)}",
                f"the all-gather of gradients {BEHIND.format(1, 3)}",
                f"the reduce-scatter of gradients {BEHIND.format(0, 3)}",
            ],
        )

    def test_exchanges_of_pairs_have_the_other_pass_beside_them(self) -> None:
        words = ("verify", TENSOR, "--set", MODEL, "--set", "schedule.name=dualpipev")
        found = json.loads(self.penstock(*words, "--json").out)
        ranks = list(zip(found["beside_other_pass"], found["exchanges"], strict=True))
        for beside, every in ranks:
            self.assertTrue(0 < beside < every, (beside, every))
        text = ", ".join(f"{beside} of {every}" for beside, every in ranks)
        self.assertIn(
            f"exchanges beside the other pass of an overlapped pair, by pipe rank: {text}\n",
            self.penstock(*words).out,
        )
        plain = json.loads(self.penstock("verify", TENSOR, "--set", MODEL, "--json").out)
        self.assertEqual(plain["beside_other_pass"], [0, 0])

    def test_a_run_that_shares_no_layers_is_proved_too(self) -> None:
        words = ("verify", ROOT / "examples" / "gpt.json", "--set", "schedule.name=zbv")
        out = self.penstock(*words).out
        self.assertIn("on pipe(2) x data(2)\n", out)
        self.assertNotIn("exchange", out)
        self.assertIn("on devices: messages hold at most 32 of 132 multiprocessors, and no", out)

    def test_any_number_of_replicas_leaves_room_on_devices(self) -> None:
        words = ["verify", ROOT / "examples" / "gpt.json", "--nproc", 36]
        for each in ("mesh.pipe=2", "mesh.data=18", "train_batch_size=72"):
            words += ["--set", each]
        said = "messages hold at most 112 of 132 multiprocessors, and no order of kernels hangs"
        self.assertIn(said, self.penstock(*words).out)
        self.assertIn(said, self.penstock(*words, "--set", "launch.device=cuda").out)

    def test_what_cannot_run_is_refused_without_a_rank(self) -> None:
        words = ("verify", TENSOR, "--set", MODEL)
        self.refuse("mesh.context = 2: context parallelism", *words, "--set", "mesh.context=2")
        self.refuse("ranks cannot share 4 heads", *words, "--set", "mesh.tensor=3")
        gpt = ("verify", ROOT / "examples" / "gpt.json")
        self.refuse("sizes that work: 1, 2, 3, 4", *gpt, "--set", "mesh.tensor=5")

    def test_models_of_gpt2s_form_are_proved(self) -> None:
        """Two blocks of four exchanges, the embedding, the head, and two of the loss."""
        for config in (ROOT / "examples" / "gpt.json", self.gpt2()):
            sets = ("mesh.pipe=1", "mesh.data=1", "mesh.tensor=2", "train_batch_size=4")
            words = [word for each in sets for word in ("--set", each)]
            (stage,) = json.loads(self.penstock("verify", config, *words, "--json").out)["stages"]
            blocks = 4 if config != "gpt2.json" else 2
            self.assertEqual(len(stage["forward"]), 1 + 4 * blocks + 1 + 2)

    def test_options_of_configurations_are_not_those_of_schedules(self) -> None:
        program = self.write("one.csv", "0F0,0B0\n")
        self.refuse("--nproc and --set are for the configuration", "verify", program, "--nproc", 2)

    def gpt2(self) -> str:
        """The configuration of a run of GPT-2."""
        (self.folder / "gpt2").mkdir()
        config = {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": 64,
            "n_positions": 32,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
        }
        self.write("gpt2/config.json", json.dumps(config))
        run = {
            "train_batch_size": 4,
            "train_micro_batch_size_per_gpu": 2,
            "model": {
                "type": "hugging_face",
                "path": "gpt2",
                "weights": "random",
                "sequence_length": 16,
            },
        }
        return self.write("gpt2.json", json.dumps(run))


if __name__ == "__main__":
    unittest.main()
