"""The planning commands: schedule, verify and simulate, as a user runs them.

Needs the standard library only, and no torch.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import stat
import subprocess
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import support
from planning import SIZES, PlannerTest
from support import PENSTOCK

GOLDEN = support.ROOT / "tests" / "golden"


def blocks(name: str) -> dict[str, str]:
    """A recorded text of blocks: the rows under each line that names a case."""
    result, key = {}, ""
    for line in (GOLDEN / name).read_text().splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isalpha():
            key = line
            result[key] = ""
        else:
            result[key] += line + "\n"
    return result


class Schedule(PlannerTest):
    def test_forms(self) -> None:
        sizes = ("schedule", "1f1b", "--ranks", 2, "--microbatches", 2)
        grid = "rank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1B0 1F1 1B1\n"
        csv = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
        self.assertEqual(self.penstock(*sizes).out, grid)
        self.assertEqual(self.penstock(*sizes, "--format", "csv").out, csv)
        programs = json.loads(self.penstock(*sizes, "--format", "json").out)["programs"]
        self.assertEqual(programs, [row.split(",") for row in csv.splitlines()])
        svg = ElementTree.fromstring(self.penstock(*sizes, "--format", "svg").out)
        self.assertEqual(svg.tag, "{http://www.w3.org/2000/svg}svg")
        trace = json.loads(self.penstock(*sizes, "--format", "trace").out)["traceEvents"]
        complete = [event["name"] for event in trace if event["ph"] == "X"]
        self.assertEqual(complete, ["0F0", "0F1", "0B0", "0B1", "1F0", "1B0", "1F1", "1B1"])
        page = self.penstock(*sizes, "--format", "html").out
        drawn = json.loads(page.split('id="data">')[1].split("</script>")[0])["timelines"][0]
        self.assertEqual(drawn["notes"][0], "makespan 9")

    def test_timetables_have_idle_slots(self) -> None:
        def table(name: str, text: str = "") -> str:
            is_file = text or name.endswith(".csv")
            sizes = () if is_file else ("--ranks", 2, "--stages-per-rank", 1, "--microbatches", 2)
            return self.penstock("schedule", name, *sizes, "--format", "timetable", text=text).out

        first = "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n"
        self.assertEqual(table("-", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), first)
        torch = "0F0,0F1,,,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n"
        self.assertEqual(table("ScheduleInterleaved1F1B"), torch)
        self.assertEqual(table("-", torch), first, "idle slots of a file are dropped")
        name = self.write("mine.csv", "0F0,0B0\n1F0,1B0\n")
        self.assertEqual(table(name), "0F0,,,0B0\n,1F0,1B0\n")
        lowered = (*SIZES, "--format", "timetable", "--lowered", "torch")
        self.refuse("timetable has no messages, zbv has", "schedule", "zbv", *lowered)
        csv = self.penstock("schedule", "zbv", *SIZES, "--lowered", "torch", "--format", "csv").out
        words = ("schedule", "-", "--format", "timetable")
        self.refuse("timetable has no messages, standard input has", *words, text=csv)

    def test_names(self) -> None:
        expected = self.penstock("schedule", "zbv", *SIZES).out
        for name in ("ZBV", "ScheduleZBVZeroBubble", "zb-v", "schedulezbvzerobubble"):
            self.assertEqual(self.penstock("schedule", name, *SIZES).out, expected, name)

    def test_without_a_name_there_is_the_table(self) -> None:
        table = self.penstock("schedule").out
        for name in ("gpipe", "1f1b", "zbv", "dualpipev"):
            self.assertRegex(table, rf"(?m)^{name} ")

    def test_messages(self) -> None:
        ours = self.penstock("schedule", "1f1b", *SIZES, "--lowered", "penstock").out
        self.assertIn("0SEND_F0", ours)
        self.assertNotIn("UNSHARD", ours)
        torch = self.penstock("schedule", "zb_h1", *SIZES, "--lowered", "torch").out
        self.assertIn("0UNSHARD 0F0 0SEND_F0", torch)
        # torch's own 1F1B is a loop without UNSHARD; of an order in a file it makes a program.
        loop = self.penstock("schedule", "Schedule1F1B", *SIZES, "--lowered", "torch").out
        self.assertIn("rank 0: 0F0 0SEND_F0 0F1", loop)
        order = self.penstock("schedule", "1f1b", *SIZES, "--format", "csv").out
        program = self.penstock("schedule", "-", "--lowered", "torch", text=order).out
        self.assertIn("rank 0: 0UNSHARD 0F0 0SEND_F0 0F1", program)

    def test_deepspeed_dialect(self) -> None:
        words = ("schedule", "TrainSchedule", "--ranks", 2, "--microbatches", 1)
        steps = self.penstock(*words, "--dialect", "deepspeed").out
        load = "LoadMicroBatch(buffer_id=0) ForwardPass(buffer_id=0)\n"
        self.assertTrue(steps.startswith(f"stage 0 buffers=2\n  step 0: {load}"), steps)
        self.assertIn("OptimizerStep()", steps)

    def test_deepspeed_instructions_are_read(self) -> None:
        words = ("schedule", "train", "--ranks", 3, "--microbatches", 4, "--dialect", "deepspeed")
        self.penstock(*words, "-o", "steps.txt")
        steps = (self.folder / "steps.txt").read_text()
        back = self.penstock("schedule", "steps.txt", "--dialect", "deepspeed").out
        self.assertEqual(back, steps)
        program = self.penstock("schedule", "steps.txt", "--format", "csv").out
        self.assertTrue(program.startswith("0F0,0SEND_F0,0F1,"), program)
        for channels in ("tagged", "dirfifo", "pairfifo"):
            self.penstock("verify", "steps.txt", "--channels", channels)
        result = json.loads(self.penstock("simulate", "steps.txt", "--json").out)
        self.assertEqual(result["makespan"], 18, "1F1B's")
        # Without its last RecvGrad, stage 0 runs a backward on an old gradient, and stage 1 waits.
        at = steps.rindex("RecvGrad(buffer_id=3) ", 0, steps.index("stage 1"))
        self.write("bad.txt", steps[:at] + steps[at + len("RecvGrad(buffer_id=3) ") :])
        result = self.penstock("verify", "bad.txt", "--json", code=1)
        codes = {each["code"] for each in json.loads(result.out)["diagnostics"]}
        self.assertIn("S060", codes)
        self.refuse(r"\[S060\]", "simulate", "bad.txt")
        only = ("verify", "steps.txt", "--format", "compute_only")
        self.refuse(r"instructions, which have messages, in a compute_only file", *only)

    def test_a_file_is_drawn_at_its_costs(self) -> None:
        name = self.write("mine.csv", "0F0,0B0\n1F0,1B0\n")
        words = ("schedule", name, "--format", "svg", "--backward", 5, "-o", "mine.svg")
        self.penstock(*words)
        self.assertIn("makespan 12 ", (self.folder / "mine.svg").read_text())

    def test_very_long_ones_are_shares_of_time(self) -> None:
        """Boxes of one op as high as its share, in one path; equal neighbours are one box."""
        words = ("schedule", "gpipe", "--ranks", 4, "--microbatches", 4000, "--backward", 2)
        svg = self.penstock(*words, "--format", "svg").out
        number = r"(-?[\d.]+)"
        areas: dict[str, float] = {}
        for path, fill in re.findall(r'<path d="(M[^"]*z)" fill="(#\w+)"', svg):
            boxes = re.findall(rf"M{number} {number}h{number}v{number}h-{number}z", path)
            boxes = [[float(value) for value in box] for box in boxes]
            for x, y, width, height, back in boxes:
                self.assertEqual(width, back)
                areas[fill] = areas.get(fill, 0) + width * height
                behind = [b for b in boxes if abs(b[0] - x - width) < 0.15]
                self.assertNotIn((y, height), [(b[1], b[3]) for b in behind])
        forward, backward = sorted(area for area in areas.values() if area > 0)
        # Positions and heights are printed with one digit: half of it in a height of at least 6.
        self.assertAlmostEqual(backward / forward, 2, delta=0.02)


class Output(PlannerTest):
    words = ("schedule", "1f1b", *SIZES, "--format", "csv", "-o")

    def test_replaces_a_file(self) -> None:
        self.write("out.csv", "old\n" * 10000)
        self.penstock(*self.words, "out.csv")
        csv = self.penstock(*self.words[:-1]).out
        self.assertEqual((self.folder / "out.csv").read_text(), csv)
        self.assert_nothing_left()

    def test_a_failing_write_leaves_what_was_there(self) -> None:
        self.write("out.csv", "old\n")

        def small_files() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        done = subprocess.run(
            [str(word) for word in (PENSTOCK, *self.words, "out.csv")],
            cwd=self.folder,
            capture_output=True,
            preexec_fn=small_files,
            check=False,
        )
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr.decode(), r'cannot write "out.csv": File too large')
        self.assertEqual((self.folder / "out.csv").read_text(), "old\n")
        self.assert_nothing_left()

    def test_places_that_take_no_file(self) -> None:
        (self.folder / "taken").mkdir()
        self.refuse(r'cannot write "taken": Is a directory', *self.words, "taken")
        self.refuse(r'cannot write "no/where": No such file', *self.words, "no/where")
        self.penstock(*self.words, "/dev/null")
        self.assertTrue(stat.S_ISCHR(Path("/dev/null").stat().st_mode))

    def test_an_error_leaves_no_file(self) -> None:
        self.write("bad.csv", "0F0,0B0,0F1\n")
        words = ("schedule", "bad.csv", "--format", "html", "-o", "out.html")
        self.refuse(r"0B1 is missing \[S004\]", *words)
        self.refuse(r"unknown schedule", "schedule", "none", *SIZES, "-o", "out.html")


class Compare(PlannerTest):
    def test_all_that_fit_do_the_same_work_and_come_sorted(self) -> None:
        result = json.loads(self.penstock("schedule", "compare", *SIZES, "--json").out)
        entries = {(each["name"], each["stages_per_rank"]): each for each in result["schedules"]}
        makespans = [each["makespan"] for each in result["schedules"]]
        self.assertEqual(makespans, sorted(makespans))
        expected = {("1f1b", 1): 33, ("zb_h1", 1): 27, ("zbv", 2): 25.5, ("dualpipev", 2): 27}
        expected |= {("interleaved_1f1b", 2): 28.5, ("interleaved_1f1b", 4): 26.25}
        expected |= {("interleaved_zero_bubble", 4): 24.75}
        self.assertEqual({key: entries[key]["makespan"] for key in expected}, expected)
        self.assertEqual(entries["zbv", 2]["peak_activations"], 8)
        self.assertEqual(entries["zbv", 2]["peak_memory"], 4)
        self.assertEqual(entries["zbv", 2]["span_bubble"], 0)
        self.assertNotIn("forward_only", {name for name, _ in entries})
        for entry in entries.values():
            self.assertLessEqual(entry["lower_bound"], entry["makespan"], entry)
            self.assertGreaterEqual(entry["lower_bound"], 24, entry)

    def test_the_table_has_what_does_not_fit_and_why(self) -> None:
        words = ("schedule", "compare", "--ranks", 4, "--microbatches", 6)
        text = self.penstock(*words, "--latency", 0.5).out
        self.assertRegex(text, r"(?m)^schedule +stages per rank +makespan")
        self.assertRegex(text, r"(?m)^dualpipev +microbatches is 6, must be at least stages \(8\)")

    def test_sizes_are_needed(self) -> None:
        self.refuse("--ranks is required", "schedule", "compare", "--microbatches", 8)
        self.refuse("comes behind it", "schedule", "--ranks", 2, "compare", *SIZES)


class Diff(PlannerTest):
    def test_equal(self) -> None:
        csv = self.penstock("schedule", "1f1b", *SIZES, "--format", "csv").out
        name = self.write("mine.csv", csv)
        words = ("schedule", "diff", name, "1f1b", *SIZES)
        self.assertTrue(self.penstock(*words).out.startswith("equal: "))

    def test_different(self) -> None:
        one = self.write("one.csv", "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")
        two = self.write("two.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
        out = self.penstock("schedule", "diff", one, two, code=1).out
        self.assertIn("rank 1: 2 differences, the first at action 1: 1F1 | 1B0\n", out)
        self.assertIn("  1F0 [-1F1-] 1B0 {+1F1+} 1B1\n", out)
        self.assertNotIn("rank 0:", out)


class Verify(PlannerTest):
    swapped = "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"

    def test_what_verifies(self) -> None:
        self.write("good.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
        self.assertIn("peak activations by rank: 2, 1", self.penstock("verify", "good.csv").out)
        facts = json.loads(self.penstock("verify", "good.csv", "--json").out)
        self.assertTrue(facts["ok"])
        self.assertEqual(facts["peak_activations"], [2, 1])
        self.assertEqual(facts["rank_of_stage"], [0, 1])

    def test_objections(self) -> None:
        result = self.penstock("verify", "-", "--json", text=self.swapped, code=1)
        self.assertRegex(result.err, r"rank 0 step 1: 0B0 waits for itself: deadlock \[S030\]")
        (diagnostic,) = json.loads(result.out)["diagnostics"]
        self.assertEqual((diagnostic["code"], diagnostic["kind"]), ("S030", "deadlock"))
        self.assertEqual((diagnostic["rank"], diagnostic["step"]), (0, 1))

    def test_a_pipe_is_read_to_its_end(self) -> None:
        csv = self.penstock(
            *("schedule", "gpipe", "--ranks", 8, "--microbatches", 5000, "--format", "csv")
        ).out
        self.write("long.csv", csv)
        script = '"$0" verify <(sleep 0.1; cat long.csv)'
        done = subprocess.run(
            ["bash", "-c", script, str(PENSTOCK)],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            timeout=support.PATIENCE,
            check=False,
        )
        self.assertEqual(done.stderr.decode(), "")
        self.assertIn("(ranks=8, stages=8, microbatches=5000): verified", done.stdout.decode())

    def test_a_name_with_sizes(self) -> None:
        words = ("verify", "zbv", *SIZES, "--lowered", "torch", "--channels", "dirfifo", "--json")
        facts = json.loads(self.penstock(*words).out)
        self.assertTrue(facts["lowered"])
        self.assertEqual((facts["ranks"], facts["stages"], facts["microbatches"]), (4, 8, 8))

    def test_the_first_objections_are_listed_and_all_are_in_the_json(self) -> None:
        row = ",".join("0F0" for _ in range(30)) + ",0B0\n"
        result = self.penstock("verify", "-", "--json", text=row, code=1)
        self.assertEqual(result.err.count("[S"), 20)
        self.assertTrue(result.err.endswith("... and 9 more\n"), result.err)
        self.assertEqual(len(json.loads(result.out)["diagnostics"]), 29)

    def test_all_objections_come_at_once(self) -> None:
        result = self.penstock("verify", "-", text="0B0,0F0,0F1\n1F0,1B0,0B1\n", code=1)
        for code in ("S003", "S004", "S012"):
            self.assertIn(f"[{code}]", result.err)

    def test_activations(self) -> None:
        csv = self.penstock("schedule", "gpipe", *SIZES, "--format", "csv").out
        self.penstock("verify", "-", "--max-activations", 8, text=csv)
        result = self.penstock("verify", "-", "--max-activations", 7, text=csv, code=1)
        self.assertRegex(result.err, r"holds 8 activations, 7 allowed \[S050\]")

    def test_channels(self) -> None:
        # Rank 1 takes the two activations in the other order.
        text = (
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B1,0B1,0RECV_B0,0B0\n"
            "1RECV_F1,1RECV_F0,1F1,1B1,1SEND_B1,1F0,1B0,1SEND_B0\n"
        )
        self.penstock("verify", "-", text=text)
        misorder = self.penstock("verify", "-", "--channels", "dirfifo", text=text, code=1)
        self.assertIn("[S031]", misorder.err)
        deadlock = self.penstock("verify", "-", "--channels", "pairfifo", text=text, code=1)
        self.assertIn("[S030]", deadlock.err)
        simulate = ("simulate", "-", "--json", "--channels", "dirfifo")
        result = self.penstock(*simulate, text=text, code=1)
        self.assertRegex(result.err, r"^penstock: misorder \[S031\]")
        self.assertEqual(json.loads(result.out)["diagnostics"][0]["kind"], "misorder")

    def refuse_both(self, pattern: str, text: str, form: str) -> None:
        for command in ("verify", "simulate"):
            self.refuse(pattern, command, "-", "--format", form, text=text)

    def test_formats(self) -> None:
        for form in ("csv", "json"):
            order, torch, ours = (
                self.penstock("schedule", "zbv", *SIZES, *lowered, "--format", form).out
                for lowered in ((), ("--lowered", "torch"), ("--lowered", "penstock"))
            )
            none = r"compute_comms program has SENDs and RECVs between its 4 ranks, found none"
            self.refuse_both(none + r"\n.*--format compute_only", order, "compute_comms")
            found = r"input:\d+:\d+: \dSEND_F0 in a compute_only file.*\n.*format compute_comms"
            for command in ("verify", "simulate"):
                self.penstock(command, "-", "--format", "compute_only", text=order)
                for program in (torch, ours):
                    words = (command, "-", "--format", "compute_comms", "--channels", "pairfifo")
                    self.penstock(*words, text=program)
                    self.refuse_both(found, program, "compute_only")


def per_stage(count: int, number) -> str:
    return ",".join(str(number(stage)) for stage in range(count))


def costs_of(name: str, stages: int) -> tuple[str, ...]:
    if name == "unit":
        return ()
    if name == "b2":
        return ("--input=1.25", "--weight=0.75", "--latency=0.125")
    return (
        "--forward=" + per_stage(stages, lambda s: 2 + s % 3),
        "--input=" + per_stage(stages, lambda s: 3 + 5 * s % 4),
        "--weight=" + per_stage(stages, lambda s: 1 + 3 * s % 3),
        "--activation=" + per_stage(stages, lambda s: 1 + s % 2),
        "--latency=0.5",
        "--keep=0.5",
    )


class Simulate(PlannerTest):
    def test_golden_values(self) -> None:
        """A recorded order on the standard input gives an independent simulator's numbers."""
        orders = blocks("torch_orders.txt")
        lines = (GOLDEN / "simulated_torch_orders.txt").read_text().splitlines()
        cases = [line.split(" | ") for line in lines if not line.startswith("#")]
        cases = [case for case in cases if orders.get(case[0].rpartition(" ")[0], "")]
        checked = set()
        for name, makespan, busy, span, peak, memory in cases[:: len(cases) // 24]:
            program, _, costs = name.rpartition(" ")
            _, ranks, per_rank, _ = program.split()
            words = costs_of(costs, int(ranks) * int(per_rank))
            csv = orders[program]
            out = self.penstock(
                "simulate", "-", "--format", "compute_only", "--json", *words, text=csv
            ).out
            result = json.loads(out)
            self.assertEqual(result["makespan"], float(makespan), name)
            rows = zip(busy.split(), span.split(), peak.split(), memory.split(), strict=True)
            keys = ("busy", "span", "peak_activations", "peak_memory")
            for rank, row in zip(result["ranks"], rows, strict=True):
                self.assertEqual([rank[key] for key in keys], [float(value) for value in row], name)
            checked.add((program.split()[0], costs))
        self.assertGreater(len(checked), 10)

    def test_a_name_with_sizes(self) -> None:
        result = json.loads(self.penstock("simulate", "zb_h1", *SIZES, "--json").out)
        self.assertEqual(result["makespan"], 27)
        self.assertEqual(len(result["ranks"]), 4)
        keys = {"busy", "exchange", "span", "peak_activations", "peak_memory", "unshard_peak"}
        self.assertEqual(set(result["ranks"][0]), keys)
        self.assertLessEqual(result["lower_bound"], 27)

    def test_streams_of_a_lowered_program(self) -> None:
        order = self.penstock("schedule", "1f1b", *SIZES, "--format", "csv").out
        words = ("simulate", "-", "--lowered", "torch", "--gather", 0.5, "--reduce", 0.5, "--json")
        result = json.loads(self.penstock(*words, text=order).out)
        self.assertEqual(result["makespan"], 33 + 0.5 + 0.5)
        self.assertEqual([rank["unshard_peak"] for rank in result["ranks"]], [1] * 4)

    def test_text(self) -> None:
        text = self.penstock("simulate", "1f1b", *SIZES).out
        self.assertTrue(text.startswith("1f1b(ranks=4, stages=4, microbatches=8)\n\nmakespan "))
        self.assertRegex(text, r"(?m)^rank +busy +span +bubble +peak activations +peak memory$")
        self.assertRegex(text, r"(?m)^3 +24 +24 +27.3% +1 +1$")
        self.assertRegex(text, r"no order of this work in this memory is faster than\n\w+")

    def test_costs_of_a_file(self) -> None:
        costs = {"forward": [1, [2, 3]], "backward": 4, "latency": 0.5, "activation": [1, 2]}
        self.write("costs.json", json.dumps(costs))
        csv = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
        words = ("simulate", "-", "--costs", "costs.json", "--json")
        result = json.loads(self.penstock(*words, text=csv).out)
        # 1F0 1.5..3.5, 1B0 ..7.5, 1F1 ..10.5, 1B1 ..14.5, 0B1 15..19.
        self.assertEqual(result["makespan"], 19)
        self.assertEqual([rank["busy"] for rank in result["ranks"]], [10, 13])
        self.assertEqual([rank["peak_memory"] for rank in result["ranks"]], [2, 2])
        over = json.loads(self.penstock(*words, "--latency", 0, text=csv).out)
        self.assertEqual(over["makespan"], 18, "the command line goes over the file")

    def test_costs_in_the_file_of_the_schedule(self) -> None:
        costs = {
            **{"forward": [1, [2, 3, 2, 2, 2, 2, 2, 2], 1, 1.5], "backward": 4, "input": 0.1},
            **{"weight": 2.5, "overlap": 0.75, "latency": 0.5, "message": [1, 2, 3, 4]},
            **{"bandwidth": 8, "links": [{"from": 0, "to": 1, "latency": 2, "bandwidth": 1}]},
            **{"gather": 3, "reduce": 5, "optimizer": 7, "activation": [1, 2, 3, 4], "keep": 0.5},
        }
        self.write("costs.json", json.dumps(costs))
        for name in ("1f1b", "zb_h1"):
            chosen = (name, *SIZES, "--lowered", "penstock", "--costs", "costs.json")
            plan = ("schedule", *chosen, "--forward", "1,2,1,3", "--format", "json")
            self.penstock(*plan, "-o", "plan.json")
            written = json.loads((self.folder / "plan.json").read_text())["costs"]
            self.assertEqual(written, {**costs, "forward": [1, 2, 1, 3]})
            expected = self.penstock("simulate", *chosen, "--forward", "1,2,1,3", "--json").out
            self.assertEqual(self.penstock("simulate", "plan.json", "--json").out, expected)
            # Options go over it, and another file in its place.
            words = ("simulate", "plan.json", "--json", "--forward", "1,2,1,3")
            self.assertEqual(self.penstock(*words, "--costs", "costs.json").out, expected)
            cheap = json.loads(self.penstock(*words, "--backward", 0, "--input", 0).out)
            self.assertLess(cheap["makespan"], json.loads(expected)["makespan"])
            again = self.penstock("schedule", "plan.json", "--format", "json").out
            self.assertEqual(again, (self.folder / "plan.json").read_text())


class Documentation(PlannerTest):
    """docs/planner.md shows what the commands print; PENSTOCK_UPDATE_GOLDEN=1 rewrites it."""

    path = support.ROOT / "docs" / "planner.md"

    def session(self, block: re.Match) -> str:
        """The commands of a block, each with what it prints now."""
        shown = []
        for line in block[1].splitlines():
            if not line.startswith("$ penstock "):
                continue
            done = subprocess.run(
                [str(PENSTOCK), *line.split()[2:]],
                cwd=self.folder,
                env=self.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=support.PATIENCE,
                check=False,
            )
            shown.append(f"{line}\n{done.stdout.decode()}")
        return "```console\n" + "".join(shown) + "```"

    def test_commands_print_what_the_page_says(self) -> None:
        page = self.path.read_text()
        now = re.sub(r"```console\n(.*?)```", self.session, page, flags=re.DOTALL)
        if "PENSTOCK_UPDATE_GOLDEN" in os.environ:
            self.path.write_text(now)
        self.assertEqual(now, page, "PENSTOCK_UPDATE_GOLDEN=1 rewrites docs/planner.md")
        self.assertGreater(now.count("\n$ penstock "), 8)

    def test_costs_of_the_page_are_read(self) -> None:
        (costs,) = re.findall(r"```json\n(.*?)```", self.path.read_text(), flags=re.DOTALL)
        self.write("costs.json", costs)
        self.penstock("simulate", "1f1b", *SIZES, "--costs", "costs.json")


class Search(PlannerTest):
    def test_a_gap_above_nothing_is_no_number(self) -> None:
        """Pairs may hide all of a pass that is one exchange."""
        costs = ("--forward-exchange", 1, "--input-exchange", 1, "--weight", 0)
        ask = ("search", "--ranks", 1, "--microbatches", 2, "--rounds", 1, *costs)

        def refuse(word: str) -> None:
            self.fail(f"{word} is no JSON")

        told = json.loads(self.penstock(*ask, "--json").out, parse_constant=refuse)
        self.assertEqual((told["lower_bound"], told["gap"]), (0, None))
        self.assertIn("no bound is known", self.penstock(*ask).out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
