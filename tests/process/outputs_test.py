"""What a run leaves for its user, and what the programs print.  Needs the standard library only.

Takes over 10 s: many runs of four ranks, and each rank loads torch.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import re
import shutil
import struct
import subprocess
import time
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import support
from model_folders import read_weights
from support import PENSTOCK, ProcessTest, losses

STEP_KEYS = {"step", "loss", "lr", "grad_norm", "tokens_per_second", "step_time_seconds"}


def without_comments(text: str) -> str:
    """JSON of a text whose comments begin with two blanks, as penstock writes them."""
    return re.sub(r"  //[^\n]*", "", text)


class RunDirectory(ProcessTest):
    @classmethod
    def setUpClass(cls) -> None:
        """One run, which every test here looks at."""
        cls.maker = ProcessTest()
        cls.maker.setUp()
        cls.addClassCleanup(cls.maker.doCleanups)
        run = {"steps": 6, "eval_interval": 3, "sample_interval": 4, "timeline_steps": 2}
        config = cls.maker.config(run=run)
        run = cls.maker.start_train(config, "run", "--save", "run/weights")
        cls.result = run.wait()
        cls.maker.assert_code(cls.result, 0)
        cls.run_directory = run.directory

    def file(self, name: str) -> Path:
        return self.run_directory / name

    def test_holds_these_files_and_no_others(self) -> None:
        names = {path.name for path in self.run_directory.iterdir()}
        expected = {"config.resolved.json", "metrics.jsonl", "loss.svg", "schedule.svg"}
        expected |= {"schedule.csv", "timeline.csv", "timeline.json", "sample.txt", "weights"}
        expected |= {"events.jsonl", "samples.jsonl"}
        self.assertEqual(names, expected)
        self.maker.assert_nothing_left()

    def test_resolved_config_gives_the_same_run(self) -> None:
        text = self.file("config.resolved.json").read_text()
        values = json.loads(without_comments(text))
        self.assertEqual(values["model"]["hidden"], 32)
        self.assertIn("// default", text)
        self.assertIn("tiny.json:", text)
        self.assertIn("// --save", text)
        result = self.train(self.file("config.resolved.json"), "--run", "again", "--save", "w")
        self.assert_code(result, 0)
        self.assertEqual(losses(self.folder / "again"), losses(self.run_directory))

    def test_metrics(self) -> None:
        rows = [json.loads(line) for line in support.raw_lines(self.run_directory)]
        steps = [row for row in rows if "val_loss" not in row]
        self.assertEqual([row["step"] for row in steps], [1, 2, 3, 4, 5, 6])
        for row in steps:
            self.assertEqual(set(row), STEP_KEYS)
            self.assertGreater(row["tokens_per_second"], 0)
            self.assertGreater(row["step_time_seconds"], 0)
            self.assertTrue(3 < row["loss"] < 7 and row["grad_norm"] > 0, row)
        validations = [row for row in rows if "val_loss" in row]
        self.assertEqual([row["step"] for row in validations], [3, 6])
        self.assertEqual(set(validations[0]), {"step", "val_loss"})

    def test_numbers_parse_back_to_the_same_bits(self) -> None:
        for row in losses(self.run_directory):
            for text in filter(None, row[1:]):
                # The shortest text that does: no digit too few, none too many.
                self.assertEqual(float(repr(float(text))), float(text))
                self.assertLessEqual(len(text.replace(".", "")), len(repr(float(text))))

    def test_pictures_are_well_formed(self) -> None:
        for name in ("loss.svg", "schedule.svg"):
            root = ElementTree.parse(self.file(name)).getroot()
            self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg", name)
            self.assertGreater(len(list(root.iter())), 20, name)

    def test_timeline_has_every_action_of_every_rank_once(self) -> None:
        events = json.loads(self.file("timeline.json").read_text())["traceEvents"]
        named = [event for event in events if event["ph"] == "M"]
        ranks = {e["pid"]: e["args"]["name"] for e in named if e["name"] == "process_name"}
        self.assertEqual(ranks, {rank: f"rank {rank}" for rank in range(4)})
        rows = {(e["pid"], e["args"]["name"]) for e in named if e["name"] == "thread_name"}
        both = ("compute", "communication")
        self.assertEqual(rows, set(itertools.product(range(4), both)))
        complete = [event for event in events if event["ph"] == "X"]
        self.assertTrue(all(e["ts"] >= 0 and e["dur"] >= 0 for e in complete))
        self.assertEqual({e["pid"] for e in complete if e["tid"] == 1}, set(range(4)))
        computed = sorted(
            (e["pid"], int(e["args"]["step"]), e["name"]) for e in complete if e["tid"] == 0
        )
        # Ranks 0 and 1 are the replicas of stage 0.
        expected = sorted(
            (rank, step, f"{rank // 2}{op}{microbatch}")
            for rank, step, op, microbatch in itertools.product(range(4), (1, 2), "FB", range(4))
        )
        self.assertEqual(computed, expected)

    def test_a_row_of_the_timeline_does_one_thing_at_a_time(self) -> None:
        events = json.loads(self.file("timeline.json").read_text())["traceEvents"]
        for rank in range(4):
            mine = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (rank, 0)]
            mine.sort(key=lambda event: event["ts"])
            for before, after in itertools.pairwise(mine):
                # Microseconds are written with a nanosecond's digits.
                self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 0.01)

    def test_report_says_what_the_recorded_steps_cost(self) -> None:
        words = ("--replica", 1, "--costs", "costs.json", "-o", "page.html")
        report = self.run_words(PENSTOCK, "report", self.run_directory, *words)
        self.assert_code(report, 0)
        self.assertIn("replica 1 of 2", report.out)
        self.assertIn("recorded steps 1 to 2, costs from step 2, shown step 2", report.out)
        costs = json.loads(
            "".join(re.findall(r"(?m)^(?!//).*$", (self.folder / "costs.json").read_text()))
        )
        recorded = support.recorded_events(self.run_directory)
        for key, op in (("forward", "F"), ("backward", "B")):
            for stage, cost in enumerate(costs[key]):
                own = [e.own_ms for e in recorded if e.step == 2 and e.is_a(f"{stage}{op}")]
                self.assertEqual(len(own), 8, "4 microbatches, 2 replicas")
                self.assertGreaterEqual(cost, min(own), "at least what some took by themselves")
        program = self.file("schedule.csv")
        words = ("simulate", program, "--costs", "costs.json", "--json")
        simulated = json.loads(self.run_words(PENSTOCK, *words).out)["makespan"]
        shown = re.search(r"(?m)^simulated +([\d.]+)", report.out)[1]
        self.assertEqual(f"{simulated:.{len(shown.partition('.')[2])}f}", shown)

    def test_a_recorded_step_took_at_least_what_its_shortest_actions_allow(self) -> None:
        """No step is shorter than a simulation in which each action takes the least that it took
        anywhere, and messages nothing: order and dependencies are those that were recorded."""
        recorded = support.recorded_events(self.run_directory)

        def least(op: str) -> str:
            own = [[e.own_ms for e in recorded if e.is_a(f"{stage}{op}")] for stage in range(2)]
            return ",".join(repr(min(times)) for times in own)

        costs = ("--forward", least("F"), "--backward", least("B"))
        words = ("simulate", self.file("schedule.csv"), *costs, "--json")
        shortest = json.loads(self.run_words(PENSTOCK, *words).out)["makespan"]
        for step, replica in itertools.product((1, 2), range(2)):
            mine = [e for e in recorded if e.step == step and e.rank % 2 == replica]
            took = max(e.end_ns for e in mine) - min(e.start_ns for e in mine)
            self.assertGreaterEqual(took / 1e6, shortest * (1 - 1e-9))

    def test_recorded_sends_have_their_sizes(self) -> None:
        recorded = support.recorded_events(self.run_directory)
        sends = [e for e in recorded if "SEND" in e.action and not e.action.startswith("await")]
        # One sample of 16 tokens, 32 wide, in floats.
        self.assertEqual({e.bytes for e in sends}, {16 * 32 * 4})
        self.assertEqual({e.bytes for e in recorded if e not in sends}, {0})

    def test_sample(self) -> None:
        sample = self.file("sample.txt").read_bytes()
        prompt, generated = sample[:-4], sample[-4:]
        self.assertEqual(len(prompt), 16)
        self.assertIn(prompt.strip(b"\n"), self.maker.text.read_bytes())
        self.assertEqual(len(generated), 4)
        self.assertIn("step 6/6  sample (after", self.result.out)
        lines = [*map(json.loads, self.file("samples.jsonl").read_text().splitlines())]
        self.assertEqual([line["step"] for line in lines], [4, 6])
        self.assertEqual(bytes(lines[1]["prompt_tokens"] + lines[1]["tokens"]), sample)
        self.assertEqual(lines[0]["prompt_tokens"], lines[1]["prompt_tokens"])
        self.assertIn("step 4/6  sample (after", self.result.out)

    def test_program_is_what_ran(self) -> None:
        program = self.file("schedule.csv")
        rows = [row.split(",") for row in program.read_text().splitlines()]
        self.assertEqual(len(rows), 2, "a row per pipeline rank")
        for op, microbatch in itertools.product("FB", range(4)):
            self.assertEqual(
                [row.count(f"{s}{op}{microbatch}") for s, row in enumerate(rows)], [1, 1]
            )
        changes = {"run": {"steps": 6, "eval_interval": 3}, "schedule": {"file": str(program)}}
        self.assert_code(self.train(self.config(**changes), "--run", "again"), 0)
        self.assertEqual(losses(self.folder / "again"), losses(self.run_directory))

    def test_weights(self) -> None:
        tensors = read_weights(self.file("weights"))
        self.assertEqual(tensors["transformer.wte.weight"][:2], ("F32", [256, 32]))
        layers = {match[1] for name in tensors if (match := re.search(r"\.h\.(\d+)\.", name))}
        self.assertEqual(layers, {"0", "1"})
        for name, (_, _, data) in tensors.items():
            values = struct.unpack(f"<{len(data) // 4}f", data)
            self.assertTrue(all(map(math.isfinite, values)), name)
        json.loads(without_comments((self.file("weights") / "config.json").read_text()))

    def test_weights_by_the_safetensors_package(self) -> None:
        if not importlib.util.find_spec("safetensors") or not importlib.util.find_spec("numpy"):
            self.skipTest("safetensors or numpy is not installed")
        from safetensors.numpy import load_file

        ours = read_weights(self.file("weights"))
        theirs = {}
        for path in self.file("weights").glob("*.safetensors"):
            theirs.update(load_file(path))
        self.assertEqual(set(theirs), set(ours))
        for name, tensor in theirs.items():
            self.assertEqual((list(tensor.shape), tensor.tobytes()), ours[name][1:], name)


class Recording(ProcessTest):
    def test_nothing_is_recorded_unless_it_is_asked_for(self) -> None:
        self.assert_code(self.train(self.config(run={"steps": 1}), "--run", "run"), 0)
        self.assertEqual(list((self.folder / "run").glob("timeline*")), [])
        result = self.run_words(PENSTOCK, "report", "run", "--costs", "costs.json")
        self.assert_code(result, 2)
        self.assertIn("run.timeline_steps", result.err)
        result = self.run_words(PENSTOCK, "report", "run")
        self.assert_code(result, 0)
        self.assertIn("finished after step 1\n", result.out)

    def test_costs_of_split_backwards(self) -> None:
        config = self.config(
            schedule={"name": "zbv", "stages_per_rank": 2},
            mesh={"pipe": 2, "data": 1},
            model={"layers": 4},
            run={"steps": 3, "timeline_steps": 3},
        )
        self.assert_code(self.train(config, "--run", "run"), 0)
        report = self.run_words(PENSTOCK, "report", "run", "--costs", "costs.json")
        self.assert_code(report, 0)
        for stage, op in itertools.product(range(4), "FIW"):
            self.assertRegex(report.out, rf"(?m)^{op} of stage {stage} ")
        text = (self.folder / "costs.json").read_text()
        self.assertNotIn("half of B", text)
        self.assertNotIn('"backward"', text)
        words = ("simulate", "zb_h1", "--ranks", 4, "--microbatches", 8, "--costs", "costs.json")
        self.assert_code(self.run_words(PENSTOCK, *words), 0)
        page = (self.folder / "run" / "report.html").read_text()
        self.assertIn("simulated, with the fitted costs", page)


class Repeats(ProcessTest):
    def weights(self, config: Path, run: str) -> dict[str, tuple[str, list[int], bytes]]:
        self.assert_code(self.train(config, "--run", run, "--save", f"{run}-weights"), 0)
        return read_weights(self.folder / f"{run}-weights")

    def test_one_seed_gives_the_same_bits_and_another_does_not(self) -> None:
        first = self.weights(self.config(), "first")
        self.assertEqual(first, self.weights(self.config(), "second"))
        self.assertEqual(losses(self.folder / "first"), losses(self.folder / "second"))
        other = self.weights(self.config(seed=8), "other")
        self.assertNotEqual(first, other)
        pairs = zip(losses(self.folder / "first"), losses(self.folder / "other"), strict=True)
        for mine, theirs in pairs:
            self.assertNotEqual(mine[1:], theirs[1:])

    def test_invariant_numerics_give_every_layout_the_same_bits(self) -> None:
        model = {"tie_embeddings": True, "dropout": 0.1}
        again = {"activation_checkpoint_interval": 2, "checkpointable_layers": "Block|Head"}
        runs = {}
        for pipe, data, pipeline in ((1, 1, {}), (2, 1, again), (1, 2, again), (2, 2, {})):
            config = self.config(
                mesh={"pipe": pipe, "data": data},
                model=model,
                pipeline=pipeline,
                numerics={"invariant": True},
            )
            name = f"{pipe}x{data}"
            weights = self.weights(config, name)
            self.assertNotIn("head.lm_head.weight", weights)
            runs[name] = (losses(self.folder / name), weights)
        for name, run in runs.items():
            self.assertEqual(run, runs["1x1"], name)

    def test_short_types_in_every_zero_stage(self) -> None:
        for name, key, steps in (("bf16", "BF16", {}), ("fp16", "F16", {"loss_scale": 138.0})):
            runs = []
            for stage in range(4):
                config = self.config(
                    mesh={"pipe": 2, "data": 2},
                    zero_optimization={"stage": stage, "reduce_bucket_size": 1000},
                    **{name: {"enabled": True, **steps}},
                )
                weights = self.weights(config, f"{name}-{stage}")
                self.assertEqual({dtype for dtype, _, _ in weights.values()}, {key})
                runs.append((losses(self.folder / f"{name}-{stage}"), weights))
            self.assertTrue(all(run == runs[0] for run in runs))

    def test_a_step_that_overflows_is_skipped_and_told(self) -> None:
        config = self.config(fp16={"enabled": True, "initial_scale_power": 40, "hysteresis": 1})
        result = self.train(config, "--run", "run")
        self.assert_code(result, 0)
        text = (self.folder / "run" / "metrics.jsonl").read_text()
        steps = [line for line in map(json.loads, text.splitlines()) if "loss" in line]
        for number, line in enumerate(steps):
            self.assertEqual(line["gradient_scale"], 2.0 ** (40 - number))
            self.assertTrue(line["skipped"])
            self.assertIn(line["grad_norm"], ("inf", "nan"))
            said = f"step {number + 1}/{len(steps)}  skipped: the gradients overflowed at gradient"
            self.assertIn(f"{said} scale {2 ** (40 - number)}", result.text)

    def test_default_data_and_run_directory(self) -> None:
        config = self.config(data={"path": ""}, run={"steps": 1}, mesh={"pipe": 1, "data": 1})
        self.assert_code(self.train(config), 0)
        (run,) = (self.folder / "runs").iterdir()
        self.assertRegex(run.name, r"^tiny-\d{8}-\d{6}$")
        self.assertEqual(len(losses(run)), 2)


class Programs(ProcessTest):
    def test_version(self) -> None:
        result = self.run_words(PENSTOCK, "--version")
        self.assert_code(result, 0)
        self.assertRegex(result.out, r"^penstock \d+\.\d+\.\d+")
        torch = r"compiler \w+ \d+.*\ntorch \d+\.\d+.*\n"
        transports = "transports shm, tcp, gloo; nccl between CUDA devices\n"
        self.assertRegex(result.out, torch + transports)

    def test_help_needs_no_torch(self) -> None:
        times = []
        for _ in range(10):
            began = time.monotonic()
            shown = subprocess.run([PENSTOCK, "--help"], capture_output=True, text=True, check=True)
            times.append(time.monotonic() - began)
        print(f"--help: {1000 * min(times):.1f} ms, at most {1000 * max(times):.1f} ms of 10")
        for word in ("train", "launch", "schedule", "Exit codes"):
            self.assertIn(word, shown.stdout)
        if shutil.which("ldd"):
            libraries = subprocess.run(["ldd", PENSTOCK], capture_output=True, text=True).stdout
            self.assertIn("libc.so", libraries)
            self.assertNotIn("torch", libraries)
            self.assertNotIn("c10", libraries)

    def test_help_of_every_command(self) -> None:
        for command, word in (("train", "--nproc"), ("launch", "--log-dir"), ("schedule", "1f1b")):
            result = self.run_words(PENSTOCK, command, "--help")
            self.assert_code(result, 0)
            self.assertIn(word, result.out)

    def schedule(self, *words: object) -> str:
        sizes = ("--ranks", 2, "--microbatches", 3)
        result = self.run_words(PENSTOCK, "schedule", *words, *sizes)
        self.assert_code(result, 0)
        return result.out

    def test_schedule_formats(self) -> None:
        grid = "rank 0: 0F0 0F1 0B0 0F2 0B1 0B2\nrank 1: 1F0 1B0 1F1 1B1 1F2 1B2\n"
        self.assertEqual(self.schedule("1f1b"), grid)
        self.assertEqual(self.schedule("1f1b", "--format", "grid"), grid)
        rows = ["0F0,0F1,0B0,0F2,0B1,0B2", "1F0,1B0,1F1,1B1,1F2,1B2"]
        self.assertEqual(self.schedule("1f1b", "--format", "csv").splitlines(), rows)
        self.assertIn("0F2", json.dumps(json.loads(self.schedule("gpipe", "--format", "json"))))
        root = ElementTree.fromstring(self.schedule("gpipe", "--format", "svg"))
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        self.schedule("1f1b", "--format", "csv", "-o", "order.csv")
        self.assertEqual((self.folder / "order.csv").read_text().splitlines(), rows)

    def test_schedules_without_a_name_are_a_table(self) -> None:
        result = self.run_words(PENSTOCK, "schedule")
        self.assert_code(result, 0)
        for name in ("1f1b", "interleaved_1f1b", "zbv", "dualpipev"):
            self.assertRegex(result.out, rf"(?m)^{name} ")

    def test_schedules_with_several_stages_per_rank(self) -> None:
        self.assertIn("rank 0: 0F0 0F1 0F2 3F0 3I0 3W0", self.schedule("ZB-V"))
        rows = self.schedule("looped_bfs", "--stages-per-rank", 3).splitlines()
        self.assertTrue(rows[1].startswith("rank 1: 1F0 1F1 1F2 3F0 3F1 3F2 5F0"))

    def test_a_printed_schedule_can_be_trained_by(self) -> None:
        sizes = ("--ranks", 2, "--microbatches", 4, "--format", "csv", "-o", "order.csv")
        self.assert_code(self.run_words(PENSTOCK, "schedule", "gpipe", *sizes), 0)
        self.assert_code(self.train(self.config(), "--run", "name"), 0)
        by_file = self.config("file.json", schedule={"file": "order.csv"})
        self.assert_code(self.train(by_file, "--run", "file"), 0)
        self.assertEqual(len(losses(self.folder / "file")), 6)
        first = [row[1] for row in losses(self.folder / "name")]
        self.assertEqual(first[0], losses(self.folder / "file")[0][1])

    def test_a_program_with_split_backwards_trains_to_the_same_losses(self) -> None:
        sizes = ("--ranks", 2, "--microbatches", 4, "--format", "csv", "-o", "zbv.csv")
        self.assert_code(self.run_words(PENSTOCK, "schedule", "zbv", *sizes), 0)
        self.assertIn("0W0", (self.folder / "zbv.csv").read_text())
        self.assert_code(self.train(self.config(), "--run", "whole"), 0)
        by_file = self.train(self.config(), "--run", "split", "--set", "schedule=zbv.csv")
        self.assert_code(by_file, 0)
        self.assertEqual(losses(self.folder / "split"), losses(self.folder / "whole"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
