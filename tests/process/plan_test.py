"""penstock plan: what it says of a real model is what penstock memory says of what it writes.

Needs the standard library, and a build with torch.
"""

from __future__ import annotations

import json
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "published"))

import shapes
from model_folders import write_llama
from planning import PlannerTest, layers_of

CONFIG = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 2,
    "model": {"layers": 4, "hidden": 64, "sequence_length": 32},
    "mesh": {"pipe": 2, "data": 2},
}
DEVICE = ("--flops", "1e10", "--bandwidth", "1e10", "--link", "intra=1GB/s:10us")


class Plan(PlannerTest):
    def setUp(self) -> None:
        super().setUp()
        self.write("gpt.json", json.dumps(CONFIG))

    def planned(self, *words: object) -> dict:
        ask = ("plan", "gpt.json", "--world", "4", "--memory", "1GB", *DEVICE)
        return json.loads(self.penstock(*ask, "--format", "json", *words).out)

    def measure(self, *words: object) -> None:
        self.penstock("memory", "gpt.json", "--layers", "layers.json", *words)

    def test_memory_is_what_penstock_memory_says_of_the_written_configuration(self) -> None:
        self.measure("--microbatch-sizes", "1,2")
        chosen = {}  # A candidate of each ZeRO stage and pipeline.
        planned = self.planned("--layers", "layers.json", "--top", "400")
        for number, each in enumerate(planned["candidates"], 1):
            chosen[each["zero"], each["pipe"]] = (number, each)
        self.assertEqual(len(chosen), 9)
        for number, each in chosen.values():
            ask = ("plan", "gpt.json", "--world", "4", "--memory", "1GB", *DEVICE)
            words = ("--layers", "layers.json", "--top", "400", "--explain", number)
            self.penstock(*ask, *words, "--write", "planned.json")
            told = json.loads(self.penstock("memory", "planned.json", "--json").out)
            peaks = [rank["peak"]["total"] for rank in told["pipe_ranks"]]
            self.assertEqual(peaks, each["peak"], each)

    def test_layers_are_measured_where_no_file_has_them(self) -> None:
        self.measure("--microbatch-sizes", "1,2,4,8")
        measured = self.planned()
        read = self.planned("--layers", "layers.json")
        self.assertEqual(measured["candidates"], read["candidates"])

    def test_layouts_whose_ranks_share_layers_are_told_as_memory_tells_them(self) -> None:
        write_llama(self.folder / "m")
        model = {"type": "hugging_face", "path": "m", "weights": "random", "sequence_length": 32}
        self.write("gpt.json", json.dumps({**CONFIG, "model": model}))
        planned = self.planned("--top", "1000")["candidates"]
        self.assertEqual({each.get("tensor", 1) for each in planned}, {1, 2, 4})
        chosen = {}
        for number, each in enumerate(planned, 1):
            chosen[each["zero"], each["pipe"], each.get("tensor", 1)] = (number, each)
            is_shared = each.get("tensor", 1) > 1
            self.assertEqual(each["parts"]["exchanges"] > 0, is_shared)
        for number, each in (chosen[0, 1, 4], chosen[0, 2, 2], chosen[3, 1, 2]):
            ask = ("plan", "gpt.json", "--world", "4", "--memory", "1GB", *DEVICE)
            words = ("--top", "1000", "--explain", number, "--write", "planned.json")
            self.penstock(*ask, *words)
            told = json.loads(self.penstock("memory", "planned.json", "--json").out)
            self.assertEqual(told["tensor"], each["tensor"])
            peaks = [rank["peak"]["total"] for rank in told["pipe_ranks"]]
            self.assertEqual(peaks, each["peak"], each)

    def test_a_layout_that_is_asked_for_is_told_by_rank_and_part(self) -> None:
        write_llama(self.folder / "m")
        model = {"type": "hugging_face", "path": "m", "weights": "random", "sequence_length": 32}
        self.write("gpt.json", json.dumps({**CONFIG, "model": model}))
        ask = ("plan", "gpt.json", "--device", "h100-sxm", "--format", "json")
        only = ("--only", "pipe=2,tensor=2,data=2,zero=1,recompute=selective")
        told = json.loads(self.penstock(*ask, *only, "--write", "one.json").out)["layouts"][0]
        self.assertEqual((told["recompute"], told["fits"]), ("selective", True))
        for rank, peak in zip(told["ranks"], told["peak"], strict=True):
            times = dict(rank["times"])
            self.assertAlmostEqual(times.pop("step"), told["step"], delta=1e-12)
            self.assertAlmostEqual(sum(times.values()), told["step"], delta=1e-9)
            self.assertEqual(rank["bytes"].pop("peak"), peak)
            self.assertEqual(sum(rank["bytes"].values()), peak)
        # `penstock memory` runs the selective blocks of the configuration that is written.
        words = ("--set", "launch.device=cuda", "--json")
        memory = json.loads(self.penstock("memory", "one.json", *words).out)
        self.assertEqual([each["peak"]["total"] for each in memory["pipe_ranks"]], told["peak"])
        none = ("--only", "pipe=2,tensor=2,data=2,zero=1")
        both = json.loads(self.penstock(*ask, *only, *none).out)["layouts"]
        self.assertGreater(max(both[1]["peak"]), max(both[0]["peak"]))
        self.assertLess(both[1]["step"], both[0]["step"])
        text = self.penstock(*ask[:-2], *only, "--world", "8", "--against", "1").out
        self.assertIn("busiest and fullest ranks", text)
        self.refuse("tensor=3: .* one node", *ask[:-2], "--only", "tensor=3")
        said = self.penstock(*ask[:-2], "--only", "tensor=8", code=2).err
        self.assertRegex(said, "ranks cannot share 4 heads of queries and 2 of keys")
        self.assertIn("tensor=8: layers are not shared by so many ranks", said)
        self.refuse("--world is required", *ask)

    def test_layers_of_published_runs_compute_what_layers_by_shape_do(self) -> None:
        row = {
            "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocabulary": 256,
            "sequence": 32, "tensor": 1, "microbatch": 2, "tokens_cut": True,
        }  # fmt: skip
        write_llama(
            self.folder / "m", hidden_size=64, intermediate_size=96, num_key_value_heads=2
        )  # fmt: skip
        model = {"type": "hugging_face", "path": "m", "weights": "random", "sequence_length": 32}
        self.write("gpt.json", json.dumps({**CONFIG, "model": model, "bf16": {"enabled": True}}))
        self.measure("--microbatch-sizes", "2", "--set", "launch.device=cuda")
        found = layers_of(json.loads((self.folder / "layers.json").read_text())["sizes"][0])
        formula = shapes.layers_file(row, {"attention": "flash", "gated": True})["sizes"][0]

        def operations(layer: dict, each: str) -> dict[str, int]:
            sums: dict[str, int] = {}
            for kind, amount, times in layer[each + "_kernels"]:
                if kind != "other":
                    sums[kind] = sums.get(kind, 0) + amount * times
            return sums

        for of, other in ((1, 1), (-1, -1)):  # A block, and the head.
            for each in ("forward", "backward", "input", "weight"):
                self.assertEqual(
                    operations(formula["layers"][of], each), operations(found[other], each), each
                )

    def test_a_device_gives_speeds_memory_and_links(self) -> None:
        out = self.penstock("plan", "gpt.json", "--world", "16", "--device", "h100-sxm").out
        self.assertIn("h100-sxm: operations and bytes of layers, at 4.422e+13 operations/s", out)
        self.assertIn("of h100-sxm: ", out)
        self.assertIn("between nodes of 8 ranks", out)
        done = self.penstock("plan", "gpt.json", "--world", "4", "--device", "h100", code=2)
        self.assertIn("h100-sxm", done.err)
        done = self.penstock("plan", "gpt.json", "--world", "4", *DEVICE, code=2)
        self.assertIn("plan: --memory is required", done.err)

    def test_costs_are_those_of_the_configurations_own_layout(self) -> None:
        self.measure()
        self.write("costs.json", '{"forward": [1, 2, 3], "input": 1, "weight": 1}')
        ask = ("plan", "gpt.json", "--world", "4", "--memory", "1GB", "--layers", "layers.json")
        done = self.penstock(*ask, "--costs", "costs.json", code=2)
        self.assertIn("forward: 3 stages; the configuration's own layout has 2", done.err)
        self.write("costs.json", '{"forward": [10, 30], "input": 20, "weight": 20}')
        done = self.penstock(*ask, "--costs", "costs.json", "--format", "json")
        one = next(each for each in json.loads(done.out)["candidates"] if each["pipe"] == 1)
        # A replica of four has 2 of 8 microbatches, and all stages: F, I and W in milliseconds.
        self.assertAlmostEqual(one["parts"]["compute"], 2 * (10 + 30 + 2 * 20 + 2 * 20) / 1000)

    def test_ranks_that_share_cores_take_turns_and_the_explanation_says_it(self) -> None:
        self.measure("--microbatch-sizes", "2")
        words = ("--layers", "layers.json", "--no-recompute", "--zero", "0", "--top", "400")
        alone = self.planned(*words)["candidates"]
        shared = self.planned(*words, "--cores-per-node", "2")["candidates"]
        parts = {each["data"]: each["parts"] for each in shared if each["pipe"] == 1}
        # Four replicas on two cores: all that they do takes twice as long.
        self.assertAlmostEqual(
            parts[4]["cores"], sum(time for name, time in parts[4].items() if name != "cores")
        )
        self.assertEqual({each["parts"]["cores"] for each in alone}, {0})
        ask = ("plan", "gpt.json", "--world", "4", "--memory", "1GB", *DEVICE, *words)
        told = self.penstock(*ask, "--explain", "1", "--cores-per-node", "2").out
        self.assertIn("other ranks of the node compute on its cores", told)
        self.assertNotIn("of the node", self.penstock(*ask, "--explain", "1").out)


if __name__ == "__main__":
    unittest.main()
