"""`penstock report`: what it says of a run whose times are known, and what it refuses.

Needs the standard library only, and no torch.
"""

from __future__ import annotations

import json
import unittest
from pathlib import Path

import recorded_run
from planning import PlannerTest
from recorded_run import write_run


class Report(PlannerTest):
    def setUp(self) -> None:
        super().setUp()
        self.run_folder = write_run(self.folder / "run")

    def report(self, *words: object) -> str:
        return self.penstock("report", "run", *words).out

    def page(self) -> str:
        return (self.run_folder / "report.html").read_text()

    def test_a_step_that_went_as_simulated(self) -> None:
        out = self.report()
        self.assertIn("run: gpipe(ranks=2, stages=2, microbatches=2)", out)
        self.assertIn("recorded steps 1 to 3, costs from steps 2 to 3, shown step 2", out)
        self.assertRegex(out, r"(?m)^makespan, step 2 +9\.5000$")
        self.assertRegex(out, r"(?m)^simulated +9\.5000  0\.0% against the median; ")
        self.assertIn("with all costs at their quartiles 9.5000 to 9.5000", out)
        for row in ("F of stage 0", "F of stage 1"):
            self.assertRegex(out, rf"(?m)^{row} +1\.0000 +1\.0000 +1\.0000 +1\.0000 +4$")
        self.assertRegex(out, r"(?m)^B of stage 1 +2\.0000 +2\.0000 +2\.0000 +2\.0000 +4$")
        self.assertRegex(out, r"(?m)^message +0\.2500 +0\.2500 +0\.2500 +4$")
        self.assertRegex(out, r"(?m)^rank 0 +6\.0000 +6\.0000 +3\.5000 +3\.5000 +2$")
        self.assertRegex(out, r"(?m)^0B1 +0 +0\.0000 +0\.0000$")

    def test_the_chosen_step_is_shown_and_drifts(self) -> None:
        out = self.report("--step", 1)
        self.assertRegex(out, r"(?m)^makespan, step 1 +19\.000$")
        self.assertRegex(out, r"(?m)^1B1 +1 +\+5\.250 +\+2\.000$")
        self.assertRegex(out, r"(?m)^B of stage 0 +\+5\.500 +\+7\.500 +\+2\.000 +\+2\.000$")

    def test_costs_simulate_to_the_same_makespan(self) -> None:
        self.report("--costs", "costs.json")
        text = (self.folder / "costs.json").read_text()
        costs = json.loads("".join(line for line in text.splitlines() if line[:2] != "//"))
        self.assertEqual(costs["latency"], 0.25)
        self.assertEqual(costs["backward"], [2, 2])
        self.assertNotIn("bandwidth", costs)
        self.assertIn("each is half of B", text)
        words = ("simulate", "run/schedule.csv", "--costs", "costs.json", "--json")
        self.assertEqual(json.loads(self.penstock(*words).out)["makespan"], recorded_run.MAKESPAN)
        other = ("simulate", "zbv", "--ranks", 1, "--microbatches", 4, "--costs", "costs.json")
        self.penstock(*other)

    def test_costs_that_match_the_step_simulate_to_what_was_measured(self) -> None:
        # One of four actions: the median of their times knows nothing of it, that of steps does.
        write_run(self.folder / "late", recorded_run.timeline(longer_ms={"0B1": 0.5}))
        measured = self.penstock("report", "late", "--costs", "costs.json", "--match-step").out
        self.assertRegex(measured, r"(?m)^simulated +9\.5000  -2\.6% against the median; ")
        text = (self.folder / "costs.json").read_text()
        self.assertRegex(text, r"(?m)^// Times are multiplied by 1\.\d+: the simulated step takes")
        words = ("simulate", "late/schedule.csv", "--costs", "costs.json", "--json")
        self.assertAlmostEqual(json.loads(self.penstock(*words).out)["makespan"], 9.75)
        self.refuse("--match-step requires --costs", "report", "run", "--match-step")

    def test_page_holds_both_timelines_and_the_tables(self) -> None:
        out = self.report("-o", "page.html")
        self.assertIn("page: page.html", out)
        self.assertFalse((self.run_folder / "report.html").exists())
        page = (self.folder / "page.html").read_text()
        data = page.partition('id="data">')[2].partition("</script>")[0]
        measured, simulated = json.loads(data)["timelines"]
        self.assertEqual(measured["title"], "measured: step 2")
        self.assertEqual((measured["end"], simulated["end"]), (9.5, 9.5))
        self.assertEqual((measured["unit"], simulated["unit"]), ("ms", "ms"))
        for row, other in zip(measured["rows"], simulated["rows"], strict=True):
            for key in ("op", "start", "length", "waits"):
                self.assertEqual(row["lanes"][0][key], other["lanes"][0][key])
            self.assertEqual(row["memory"], other["memory"])
        self.assertIn('<a href="#0/0B1">0B1</a>', page)
        self.assertNotIn("http", page.partition("</style>")[2])

    def test_ranks_of_two_hosts(self) -> None:
        write_run(self.folder / "hosts", recorded_run.timeline(clocks=(5, 6)))
        out = self.penstock("report", "hosts").out
        self.assertIn("The ranks are on several hosts", out)
        self.assertIn("the latency is taken as 0", out)
        self.assertNotRegex(out, r"(?m)^message ")


class Refusals(PlannerTest):
    def run_with(self, timeline: str) -> str:
        return str(write_run(self.folder / "run", timeline).name)

    def test_what_is_no_run_directory(self) -> None:
        self.refuse('run directory "none" does not exist', "report", "none")
        self.write("file", "")
        self.refuse('"file" is not a run directory: it is a file', "report", "file")
        (self.folder / "empty").mkdir()
        self.refuse('"empty" is not a run directory: it has no schedule.csv', "report", "empty")
        self.refuse("(?i)run is required", "report")

    def test_a_run_that_was_not_recorded_says_which_key_to_set(self) -> None:
        run = write_run(self.folder / "run")
        (run / "timeline.csv").unlink()
        self.refuse(r"(?s)no timeline.csv.*--set run.timeline_steps=5", "report", "run")

    def test_a_timeline_that_was_cut_short(self) -> None:
        whole = recorded_run.timeline()
        self.run_with(whole[: len(whole) // 2])
        self.refuse(r"run/timeline.csv: cut short: it ends at line \d+", "report", "run")

    def test_another_version(self) -> None:
        self.run_with(recorded_run.timeline().replace("timeline 1", "timeline 7", 1))
        self.refuse(r'run/timeline.csv:1: a timeline of version "7"', "report", "run")

    def test_a_timeline_of_another_schedule(self) -> None:
        run = write_run(self.folder / "run")
        swapped = ("0F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0")
        (run / "schedule.csv").write_text("\n".join(swapped) + "\n")
        self.refuse("the timeline is not of this schedule: rank 0 ran 0F1", "report", "run")
        (run / "schedule.csv").write_text("0F0,0B0\n")
        self.refuse("has 2 pipeline ranks, the schedule has 1", "report", "run")

    def test_what_no_run_leaves(self) -> None:
        def write(rows: tuple[str, ...], times: bool = True) -> None:
            lines = ["# penstock timeline 1", "# schedule x", f"# ranks {len(rows)}"]
            lines += [f"# rank {r} pipe {r} data 0 clock 5" for r in range(len(rows))]
            events = []
            for rank, row in enumerate(rows):
                for i, action in enumerate([*row.split(","), "finish"]):
                    start, end = (i, i + 1) if times else (0, 0)
                    events.append(f"1,{rank},{action},{start},{start},{end},0")
            text = [*lines, recorded_run.HEAD, *events, f"# {len(events)} events"]
            (self.folder / "run" / "timeline.csv").write_text("\n".join(text) + "\n")
            (self.folder / "run" / "schedule.csv").write_text("\n".join(rows) + "\n")

        write_run(self.folder / "run")
        write(("0F0,0SEND_F0", "1RECV_F0,1F0"))
        self.refuse("the schedule has no backward: no run has trained by it", "report", "run")
        write(("0F0,0B0", "1F0,1B0"))
        self.refuse("has 2 ranks and no messages: no run has trained by it", "report", "run")
        write(("0F0,0B0",), times=False)
        self.refuse("no times: step 1 begins and ends at once", "report", "run")
        write(("0F0,0B0",))
        self.penstock("report", "run")

    def test_choices_that_there_are_not(self) -> None:
        write_run(self.folder / "run")
        self.refuse("--step 9: not recorded; there are steps 1 to 3", "report", "run", "--step", 9)
        self.refuse("--step -1: not recorded", "report", "run", "--step", -1)
        self.refuse("--step 0: not recorded", "report", "run", "--step", 0)
        self.refuse("--replica 1: the run has one replica, 0", "report", "run", "--replica", 1)
        self.refuse("name a file instead of -", "report", "run", "-o", "-")

    def test_no_file_is_left_where_one_cannot_be_written(self) -> None:
        write_run(self.folder / "run")
        self.refuse("no/page.html", "report", "run", "-o", "no/page.html")
        self.refuse("no/x.json", "report", "run", "--costs", "no/x.json")
        before = sorted(path.name for path in Path(self.folder / "run").iterdir())
        self.assertEqual(before, ["schedule.csv", "timeline.csv"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
