"""penstock profile: every command that takes costs takes those that it writes.

Needs the standard library, and a build with torch.  How long anything takes is not judged.
"""

from __future__ import annotations

import json
import unittest

from planning import PlannerTest

CONFIG = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "model": {"layers": 3, "hidden": 32, "heads": 2, "sequence_length": 16},
    "mesh": {"pipe": 2},
}
KINDS = ("forward", "backward", "input", "weight")
LAYERS = 5  # The embedding, three blocks, the head.


class Profile(PlannerTest):
    def setUp(self) -> None:
        super().setUp()
        self.write("gpt.json", json.dumps(CONFIG))

    def profiled(self, *words: object) -> tuple[str, dict]:
        ask = ("profile", "gpt.json", "--seconds", "0.01", "-o", "costs.json")
        out = self.penstock(*ask, *words).out
        lines = (self.folder / "costs.json").read_text().splitlines()
        self.assertTrue(lines[0].startswith("// Measured by penstock profile"), lines[0])
        return out, json.loads("\n".join(line for line in lines if not line.startswith("//")))

    def test_costs_are_of_the_stages_of_the_configuration(self) -> None:
        out, costs = self.profiled()
        self.assertIn("milliseconds of a microbatch of 2 samples", out)
        self.assertEqual(sorted(costs), sorted(KINDS))
        for kind in KINDS:
            self.assertEqual(len(costs[kind]), 2)
            self.assertGreater(min(costs[kind]), 0.0)
        for line in ("1 x Embedding", "3 x Block", "1 x Head", "loss"):
            self.assertIn(line, out)
        shown = [float(word) for word in out.splitlines()[-1].split()]
        last = [round(costs[kind][1], 3) for kind in KINDS]
        self.assertEqual(shown, [1.0, *last])

    def test_simulate_search_and_schedule_take_them(self) -> None:
        _, costs = self.profiled()
        sizes = ("--ranks", "2", "--microbatches", "4")
        told = self.penstock("simulate", "1f1b", *sizes, "--costs", "costs.json", "--json")
        busy = [rank["busy"] for rank in json.loads(told.out)["ranks"]]
        for stage in (0, 1):
            expected = 4 * (costs["forward"][stage] + costs["backward"][stage])
            self.assertAlmostEqual(busy[stage], expected, places=6)
        words = ("--stages-per-rank", "1", "--rounds", "1", "--json", "--costs", "costs.json")
        found = json.loads(self.penstock("search", *sizes, *words).out)
        self.assertGreater(found["makespan"], 0.0)
        words = ("--replicas", "2", "--lost", "1", "--json", "--costs", "costs.json")
        self.penstock("schedule", "reroute", "1f1b", *sizes, *words)

    def test_plan_takes_those_of_stages_and_of_layers(self) -> None:
        ask = ("plan", "gpt.json", "--world", "2", "--memory", "1GB", "--costs", "costs.json")
        self.penstock("memory", "gpt.json", "--layers", "layers.json")
        self.profiled()
        out = self.penstock(*ask, "--layers", "layers.json").out
        self.assertIn("milliseconds of 2 stages, shared out by operations", out)
        self.assertIn("links   not given", out)
        _, costs = self.profiled("--by-layer")
        for kind in KINDS:
            self.assertEqual(len(costs[kind]), LAYERS)
            self.assertEqual(len(set(costs[kind][1:4])), 1)  # The blocks are alike.
        out = self.penstock(*ask, "--layers", "layers.json").out
        self.assertIn(f"milliseconds of {LAYERS} layers, of microbatches of 2 samples", out)
        self.assertNotIn("shared out", out)

    def test_layers_that_are_computed_again_cost_their_forward_twice(self) -> None:
        out, costs = self.profiled("--set", "pipeline.activation_checkpoint_interval=1")
        medians = {}
        for line in out.splitlines():
            name, _, rest = line.partition(" x ")
            if rest and name.isdigit():
                cells = rest.split()
                medians[cells[0]] = (float(cells[1]), float(cells[4]))
            elif line.startswith("loss"):
                medians["loss"] = (float(line.split()[1]), float(line.split()[4]))
        forward, backward = (
            sum(count * medians[kind][i] for kind, count in (("Block", 3), ("Embedding", 1)))
            + medians["Head"][i]
            for i in (0, 1)
        )
        # The loss is computed once; the table is rounded to a thousandth for each of 6.
        told = sum(costs["backward"]) - medians["loss"][1]
        again = told - backward
        self.assertGreaterEqual(again, 3 * medians["Block"][0] - 0.01)
        self.assertLessEqual(again, forward + medians["loss"][0] + 0.01)

    def test_threads_are_those_of_a_rank(self) -> None:
        self.assertIn(", 1 thread: ", self.profiled("--threads", "1")[0])
        self.assertIn(", 2 threads: ", self.profiled("--threads", "2")[0])

    def test_this_machine_is_measured_into_what_emulate_and_plan_take(self) -> None:
        done = self.penstock("profile", "--device", "here.json", "--seconds", "0.01")
        self.assertIn("penstock: profile: links", done.err)
        here = json.loads((self.folder / "here.json").read_text())
        self.assertEqual(here["is_processor"], True)
        self.assertEqual(here["devices_per_host"], 2)
        self.assertGreater(here["float_peak"], 1e8)
        self.assertLess(here["kernel_s"], 1e-3)
        told = json.loads(
            self.penstock("emulate", "gpt.json", "--device", "here.json", "--json").out
        )
        self.assertGreater(told["step_s"], 0)
        slower = {**here, "float_peak": here["float_peak"] / 100}
        self.write("slower.json", json.dumps(slower))
        ask = ("plan", "gpt.json", "--world", 2, "--tensor", 1, "--microbatch-sizes", 2)
        fast, slow = (
            json.loads(self.penstock(*ask, "--device", name, "--format", "json").out)
            for name in ("here.json", "slower.json")
        )
        self.assertLess(fast["candidates"][0]["step"], slow["candidates"][0]["step"])

    def ledger(self, *words: object) -> list[dict]:
        ask = ("profile", "gpt.json", "--ledger", "--steps", "2", "--json")
        return json.loads(self.penstock(*ask, *words).out)["ranks"]

    def test_a_ledger_has_every_rank_and_adds_up(self) -> None:
        ranks = self.ledger()
        self.assertEqual([rank["rank"] for rank in ranks], [0, 1])
        for rank in ranks:
            together = sum(row["ms"] for row in rank["rows"])
            self.assertAlmostEqual(together, rank["step_ms"], delta=1e-4 * rank["step_ms"])
            self.assertGreater(rank["product_peak_gflops"], 0.1)
        # The head: 2 samples of 16 tokens in a microbatch, 4 of these in a step.
        head = [each for each in ranks[1]["products"] if each["columns"] == 256]
        self.assertEqual({(each["rows"], each["inner"]) for each in head}, {(32, 32)})
        self.assertEqual(sum(each["calls"] for each in head), 4)
        table = self.penstock("profile", "gpt.json", "--ledger", "--steps", "1").out
        for words in ("rank 0: a step takes", "rank 1: a step takes", "products", "32 x 32 x 256"):
            self.assertIn(words, table)

    def test_a_step_takes_its_memory_from_the_last_one(self) -> None:
        """Gradients of 8 MiB a rank are 2,000 pages, which a step's end frees."""
        model = {"type": "mlp", "layers": 16, "hidden": 512, "vocabulary": 64}
        self.write("gpt.json", json.dumps({**CONFIG, "model": {**model, "sequence_length": 64}}))
        for rank in self.ledger():
            self.assertLess(rank["page_faults"], 900)

    def test_a_ledger_counts_replicas_and_shared_layers(self) -> None:
        for mesh in ("data", "tensor"):
            ranks = self.ledger("--set", f'mesh={{"{mesh}": 2}}')
            self.assertEqual(len(ranks), 2)

    def test_bad_input_is_refused(self) -> None:
        self.refuse("--by-layer excludes --ledger", "profile", "gpt.json", "--ledger", "--by-layer")
        self.refuse("--ledger excludes --output", "profile", "gpt.json", "--ledger", "-o", "a.json")
        self.refuse("--json requires --ledger", "profile", "gpt.json", "--json")
        self.refuse("--steps", "profile", "gpt.json", "--ledger", "--steps", 0)
        self.refuse("mesh.pipe", "profile", "gpt.json", "--ledger", "--nproc", 3)
        self.refuse("what is to be measured?", "profile")
        self.refuse("links are between two ranks", "profile", "--device", "a.json", "--nproc", 1)
        self.refuse("--set is for a CONFIG", "profile", "--device", "a.json", "--set", "seed=1")
        self.refuse("config excludes --device", "profile", "gpt.json", "--device", "a.json")
        self.refuse("none.json", "profile", "none.json")
        self.refuse("--seconds", "profile", "gpt.json", "--seconds", "soon")
        self.refuse("no/such", "profile", "gpt.json", "--seconds", "0", "-o", "no/such/costs.json")
        self.profiled()
        four = ("--set", "mesh.pipe=4", "--set", "train_batch_size=8", "--layers", "layers.json")
        self.penstock("memory", "gpt.json", "--layers", "layers.json")
        ask = ("plan", "gpt.json", "--world", "4", "--memory", "1GB", "--costs", "costs.json")
        self.refuse("2 stages; the configuration's own layout has 4", *ask, *four)


if __name__ == "__main__":
    unittest.main()
