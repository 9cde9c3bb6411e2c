"""Runs whose costs change, and that change their programs.  Standard library only.

Actions are made slow by injected faults: they sleep, so that times are those of a larger machine,
whatever else this one does.
"""

from __future__ import annotations

import json
import re
import unittest

import support
from comebacks import ComebackTest, course_of, events_of

RANKS = 4
UNIT = 0.004  # Of a forward; a backward is two.
COSTS = {"F": 1, "B": 2, "I": 1, "W": 1}
CHANGED = re.compile(
    r"penstock: from step (\d+) on another order, by simulation .* ms a step for .* ms: "
    r"([\d.]+)% less"
)
JUDGED = re.compile(
    r"penstock: the new order takes .* ms a step, .* ms before: ([\d.]+)% less, "
    r"([\d.]+)% less by simulation\n"
)


def slow(costs: dict[str, float] = COSTS, **changes: object) -> list[str]:
    """Every rank takes that many units more for each action of an op."""
    more = "".join(f",{key}={value}" for key, value in changes.items())
    return [
        word
        for rank in range(RANKS)
        for op, units in costs.items()
        for word in ("--inject", f"slow:rank={rank},at={op},seconds={units * UNIT:g}{more}")
    ]


class Adapt(ComebackTest):
    def pipeline(self, name: str = "tiny.json", **changes: object):
        values = support.merged(
            {
                "gradient_accumulation_steps": 8,
                "model": {"layers": 6, "hidden": 16},
                "mesh": {"pipe": RANKS, "data": 1},
                "schedule": {"window_steps": 4},
                "checkpoint": {"save_interval": 4},
                "run": {"steps": 16, "sample_bytes": 0},
                "steps_per_print": 1000,
            },
            changes,
        )
        return self.config(name, **values)

    def adapting(self, **changes: object):
        schedule = {"adapt": True, **changes.pop("schedule", {})}
        return self.pipeline("adapting.json", schedule=schedule, **changes)

    def assert_same_bits(self, whole, run) -> None:
        self.assertEqual(support.losses(run), support.losses(whole))
        result = self.checkpoint("diff", whole, run)
        self.assert_code(result, 0)
        self.assertRegex(result.out, r"\d+ tensors are equal, 0 are not")

    def test_a_faster_order_is_found_and_no_bit_changes(self) -> None:
        whole = self.undisturbed(self.pipeline())
        result = self.train(self.adapting(), "--run", "run", *slow())
        self.assert_code(result, 0)
        run = self.folder / "run"
        self.assert_same_bits(whole, run)
        changed = CHANGED.findall(result.err)
        self.assertEqual([step for step, _ in changed], ["6"], result.err)
        ((measured, simulated),) = JUDGED.findall(result.err)
        self.assertEqual(simulated, changed[0][1])
        self.assertGreater(float(measured), 0)
        (event,) = events_of(run, "program_changed")
        self.assertEqual((event["step"], event["file"]), (5, "schedule-after-5.csv"))
        self.assertEqual(len(events_of(run, "program_judged")), 1)
        verified = self.run_words(support.PENSTOCK, "verify", run / event["file"])
        self.assert_code(verified, 0)
        self.assertTrue((run / "schedule-after-5.svg").exists())
        programs = [line["program"] for line in course_of(run) if "loss" in line]
        self.assertEqual(programs, [1] * 5 + [2] * 11)
        self.assertNotIn("program", course_of(whole)[0])
        self.assert_code(self.run_words(support.PENSTOCK, "report", run), 0)
        self.assertIn("another order", (run / "report.html").read_text())
        self.assert_nothing_left()

    def test_ranks_that_share_layers_change_alike(self) -> None:
        mesh = {"pipe": 2, "data": 1, "tensor": 2}
        more = {"mesh": mesh, "run": {"steps": 12}}
        whole = self.undisturbed(self.pipeline(**more))
        costs = {op: 3 * units for op, units in COSTS.items()}
        config = self.adapting(schedule={"adapt_gain": 0}, **more)
        result = self.train(config, "--run", "run", *slow(costs))
        self.assert_code(result, 0)
        self.assert_same_bits(whole, self.folder / "run")
        self.assertTrue(CHANGED.findall(result.err), result.err)

    def test_of_ranks_that_share_layers_the_slowest_counts(self) -> None:
        mesh, late_ms = {"pipe": 2, "data": 1, "tensor": 2}, 50
        late = [
            word
            for rank in range(RANKS)
            for word in ("--inject", f"slow:rank={rank},at=F,seconds={late_ms / 1000}")
        ]
        config = self.pipeline(mesh=mesh, run={"steps": 6})
        self.assert_code(self.train(config, "--run", "run", *late), 0)
        for each in json.loads((self.folder / "run" / "costs.json").read_text())["forward"]:
            self.assertGreaterEqual(each, late_ms)
            self.assertLess(each, 1.9 * late_ms)  # The sum of two is more.

    def test_changed_costs_are_told_once(self) -> None:
        late = ["--inject", f"slow:rank=2,step=6,at=F,seconds={6 * UNIT:g}"]
        result = self.train(self.pipeline(), "--run", "run", *slow(), *late)
        self.assert_code(result, 0)
        told = re.findall(r"penstock: costs have changed: .*", result.err)
        self.assertEqual(len(told), 1, result.err)
        takes = r"stage 2 \(rank 2 of the pipe\) takes .* ms a microbatch, .* before"
        self.assertRegex(told[0], takes)
        self.assertIn("(steps 10 to 13, before: 2 to 5)", told[0])
        self.assertRegex(told[0], r"another order .* less by simulation|no order of the same work")
        self.assertEqual(len(events_of(self.folder / "run", "costs_changed")), 1)
        self.assertEqual(events_of(self.folder / "run", "program_changed"), [])

    def test_an_order_that_is_slower_is_left(self) -> None:
        # Halves cost half of the whole until they ran; here they cost as much as it.
        config = self.adapting(run={"steps": 14})
        costs = {"F": 1, "B": 2, "I": 2, "W": 2}
        result = self.train(config, "--run", "run", *slow(costs))
        self.assert_code(result, 0)
        self.assertRegex(result.err, r"% more, .*% less by simulation; the run goes back")
        self.assertEqual(len(CHANGED.findall(result.err)), 1)
        programs = [line["program"] for line in course_of(self.folder / "run") if "loss" in line]
        self.assertEqual(programs, [1] * 5 + [2] * 5 + [3] * 4)

    def test_a_rank_that_dies_while_programs_change(self) -> None:
        whole = self.undisturbed(self.pipeline())
        fault = ["--inject", "kill:rank=1,at=program"]
        often = self.adapting(checkpoint={"save_interval": 2})  # One is whole by then.
        result = self.train(often, "--run", "killed", *slow(), *fault)
        self.assert_code(result, 0)
        self.assertIn('injected: kill:rank=1,at=program, at "changing the program"', result.err)
        self.assert_came_back(result.text, times=1)
        self.assert_same_bits(whole, self.folder / "killed")
        self.assert_nothing_left()

    def test_a_run_that_comes_back_goes_on_with_its_program(self) -> None:
        whole = self.undisturbed(self.pipeline())
        fault = ["--inject", "kill:rank=3,step=11,at=F"]
        result = self.train(self.adapting(), "--run", "killed", *slow(), *fault)
        self.assert_code(result, 0)
        self.assert_came_back(result.text, times=1)
        self.assertIn("going on with the program that the run had changed to", result.err)
        self.assert_same_bits(whole, self.folder / "killed")
        # Another layout has no use for it.
        other = self.pipeline("two.json", schedule={"adapt": True}, mesh={"pipe": 2})
        more = ("--run", "killed", "--resume", "auto", "--steps", "18")
        result = self.train(other, *more)
        self.assert_code(result, 0)
        self.assertIn("the checkpoint's program is not gone on with: it has 4 ranks", result.err)

    def test_an_error_while_programs_change_has_one_cause(self) -> None:
        fault = ["--inject", "exception:rank=2,at=program"]
        config = self.adapting(checkpoint={"save_interval": 0})
        result = self.train(config, "--run", "run", *slow(), *fault)
        self.assert_code(result, 1)
        causes = support.root_causes(result.err)
        self.assertTrue(any("an injected exception" in cause for cause in causes), result.err)
        self.assert_nothing_left()

    def test_what_cannot_adapt_is_refused(self) -> None:
        def refused(*words: str) -> str:
            result = self.train(self.adapting(), "--run", "run", *words)
            self.assert_code(result, 2)
            return result.err

        self.assertIn("has no other order: stage", refused("--set", "schedule.name=looped_bfs"))
        text = refused("--set", "schedule.window_steps=0")
        self.assertIn("schedule.window_steps = 0: schedule.adapt is true", text)
        self.assertIn("schedule.adapt_gain", refused("--set", "schedule.adapt_gain=1"))
        self.assertIn("schedule.cost_change", refused("--set", "schedule.cost_change=0"))
        result = self.train(self.adapting(mesh={"pipe": 1}, run={"steps": 3}), "--run", "alone")
        self.assert_code(result, 0)
        self.assertIn("schedule.adapt = true has no effect: one rank", result.err)


if __name__ == "__main__":
    unittest.main()
