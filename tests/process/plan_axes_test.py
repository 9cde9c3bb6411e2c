"""Plans with axes that no run can have yet: context, experts, ZeRO within a node.

Needs the standard library only, and no torch.
"""

from __future__ import annotations

import json
import unittest

from planning import PlannerTest

MIXTRAL = {
    "model_type": "mixtral", "num_hidden_layers": 4, "hidden_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 2048,
    "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
DEVICE = ("--device", "h100-sxm")


class PlanAxes(PlannerTest):
    def config(self, model: dict, samples: int = 64, sequence: int = 4096) -> str:
        (self.folder / "model").mkdir(exist_ok=True)
        self.write("model/config.json", json.dumps(model))
        run = {
            "train_batch_size": samples, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW"},
            "model": {"type": "hugging_face", "path": "model", "weights": "random",
                      "sequence_length": sequence},
        }  # fmt: skip
        return self.write("run.json", json.dumps(run))

    def only(self, layout: str, *words: object) -> dict:
        told = self.penstock(
            "plan", "run.json", *DEVICE, "--only", layout, "--format", "json", *words
        )
        return json.loads(told.out)["layouts"][0]

    def test_a_model_with_experts_is_planned_from_its_config_and_marked(self) -> None:
        config = self.config(MIXTRAL)
        told = self.penstock("plan", config, "--world", 16, *DEVICE, "--format", "json")
        candidates = json.loads(told.out)["candidates"]
        self.assertGreater(max(each["expert"] for each in candidates), 1)
        for each in candidates:
            self.assertEqual(each["not_yet"][0], "mixtral")
            self.assertEqual(each["expert"] > 1, f"expert {each['expert']}" in each["not_yet"])
        text = self.penstock("plan", config, "--world", 16, *DEVICE).out
        self.assertIn("not yet: mixtral", text)
        page = self.penstock("plan", config, "--world", 16, *DEVICE, "--format", "html").out
        self.assertIn("not yet: mixtral", page)

    def test_what_no_run_can_have_is_not_written(self) -> None:
        config = self.config(MIXTRAL)
        self.refuse(r"--write best.json: no run can have this yet: mixtral",
                    "plan", config, "--world", 16, *DEVICE, "--write", "best.json")  # fmt: skip

    def test_experts_of_more_ranks_take_less_memory_and_more_exchanges(self) -> None:
        self.config(MIXTRAL)
        layouts = [self.only(f"data=8,zero=1,expert={ranks}") for ranks in (1, 2, 8)]
        parameters = [each["ranks"][0]["bytes"]["parameters"] for each in layouts]
        # Experts of a layer: 8 of 3 x 1024 x 2048 elements of two bytes, shared by the ranks.
        experts = 4 * 8 * 3 * 1024 * 2048 * 2
        self.assertEqual(parameters[0] - parameters[1], experts // 2)
        self.assertEqual(parameters[0] - parameters[2], experts - experts // 8)
        waited = [each["ranks"][0]["exchanges"]["experts"]["waited"] for each in layouts]
        self.assertEqual(waited[0], 0)
        self.assertLess(waited[1], waited[2])

    def test_the_worst_case_of_experts_is_told(self) -> None:
        self.config(MIXTRAL)
        layout = self.only("data=8,zero=1,expert=8")
        # One expert of a rank: each of eight ranks' tokens goes to it once, and not twice.
        self.assertEqual(layout["worst"]["load"], 4)
        self.assertGreater(layout["worst"]["peak"], max(layout["peak"]))
        fuller = self.only("data=8,zero=1,expert=8", "--expert-load", 4)
        self.assertEqual(max(fuller["peak"]), layout["worst"]["peak"])
        self.assertGreater(fuller["step"], layout["step"])

    def test_ranks_that_share_tokens_take_their_part(self) -> None:
        self.config(MIXTRAL, samples=8, sequence=32768)
        one, four = self.only("data=1,zero=1"), self.only("context=4,zero=1")
        of_four = four["ranks"][0]["exchanges"]["context"]
        # Keys and values of 8192 tokens, of three other ranks or to them, three times a layer, and
        # of eight samples.
        own = 8192 * 2 * 8 * 128 * 2
        self.assertEqual(of_four["bytes"], 8 * 4 * 3 * 3 * own)
        self.assertEqual(of_four["hidden"], 0)
        self.assertLess(four["ranks"][0]["bytes"]["activations"],
                        one["ranks"][0]["bytes"]["activations"] / 3)  # fmt: skip
        ring = self.only("context=4,zero=1", "--context-by", "ring")
        self.assertEqual(ring["ranks"][0]["exchanges"]["context"]["bytes"], of_four["bytes"])
        self.assertGreater(ring["ranks"][0]["exchanges"]["context"]["hidden"], 0)
        self.assertLess(ring["step"], four["step"])

    def test_zero_within_a_node_gathers_there_and_takes_more(self) -> None:
        self.config(MIXTRAL)
        node, all_ranks = self.only("data=32,zero=3,shard=node"), self.only("data=32,zero=3")
        self.assertEqual((node["shard"], all_ranks["shard"]), (8, 32))
        self.assertIn("ZeRO among 8 ranks", node["not_yet"])
        of_node, of_all = node["ranks"][0]["bytes"], all_ranks["ranks"][0]["bytes"]
        self.assertAlmostEqual(of_node["optimizer"] / of_all["optimizer"], 4, delta=0.01)
        self.assertLess(node["parts"]["gathers"], all_ranks["parts"]["gathers"])

    def test_all_axes_are_tried_when_they_are_asked_for(self) -> None:
        config = self.config(MIXTRAL, samples=16, sequence=32768)
        words = ("plan", config, "--world", 32, *DEVICE, "--format", "json")
        few = json.loads(self.penstock(*words).out)
        many = json.loads(self.penstock(*words, "--all-axes").out)
        self.assertGreater(many["layouts"], 4 * few["layouts"])
        self.assertGreaterEqual(few["candidates"][0]["step"], many["candidates"][0]["step"])

    def test_what_is_wrong_is_told(self) -> None:
        config = self.config(MIXTRAL)
        plan = ("plan", config, "--world", 16, *DEVICE)
        self.refuse(r"--expert 3: has to divide the 8 experts", *plan, "--expert", 3)
        self.refuse(r"--context 3: each rank has two of 6 chunks", *plan, "--context", 3)
        self.refuse(r"--shard \"half\": expected all, node", *plan, "--shard", "half")
        self.refuse(r"expert=16: has to divide the 16 ranks of a stage, and 8 experts",
                    *plan, "--only", "expert=16")  # fmt: skip
        self.config({**MIXTRAL, "num_local_experts": None})
        self.refuse(r"no mixtral has these sizes", *plan)
        self.config({**MIXTRAL, "num_attention_heads": 7})
        self.refuse(r"num_attention_heads 7 is no multiple", *plan)


if __name__ == "__main__":
    unittest.main()
