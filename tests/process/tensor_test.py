"""Runs whose ranks share layers (mesh.tensor): the same losses, saves, comebacks and refusals.

Layouts are pipe x data x tensor.  Needs the standard library only.
Takes over 10 s: many runs of two and four ranks, and each rank loads torch.
"""

from __future__ import annotations

import array
import json
import math
import random
import re
import unittest
from pathlib import Path

import support
from comebacks import ComebackTest
from model_folders import (
    TINY_GPT2,
    TINY_LLAMA,
    Tensors,
    gpt2_shapes,
    llama_shapes,
    read_safetensors,
    read_weights,
    write_gpt2,
    write_llama,
    write_random_weights,
)
from support import PENSTOCK, ROOT

# Ranks that share a layer add in another order than one process does, in float, and AdamW makes
# of the smallest gradient a step of the size of the learning rate.
LOSS_BOUND = 1e-4
SEQUENCE = 16
TRAINING = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.5,
    "steps_per_print": 20,
    "seed": 7,
    "run": {"steps": 12, "eval_batches": 1},
    "launch": {"heartbeat_seconds": 30, "startup_seconds": 60},
}
ADAPTER = {"rank": 3, "alpha": 6, "targets": "q_proj|k_proj|o_proj|gate_proj|down_proj"}


def mesh_of(layout: str) -> dict[str, int]:
    return dict(zip(("pipe", "data", "tensor"), map(int, layout.split("x")), strict=True))


def losses_of(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


class TensorTest(ComebackTest):
    def llama(self, layout: str, name: str = "", **changes: object) -> Path:
        """A configuration that trains the tiny Llama, from weights that are drawn."""
        model = self.folder / "llama"
        if not model.exists():
            write_llama(model)
        base = {
            **TRAINING,
            "data": {"path": str(self.text)},
            "mesh": mesh_of(layout),
            "model": {
                "type": "hugging_face",
                "path": "llama",
                "weights": "random",
                "sequence_length": SEQUENCE,
            },
        }
        path = self.folder / (name or f"{layout}.json")
        path.write_text(json.dumps(support.merged(base, changes), indent=1))
        return path

    def trained(self, config: Path, name: str, *words: object) -> Path:
        result = self.train(config, "--run", name, *words)
        self.assert_code(result, 0)
        return self.folder / name

    def evaluated(self, config: Path, *words: object) -> dict:
        tokens = self.folder / "tokens.bin"
        if not tokens.exists():
            generator = random.Random(5)
            numbers = [generator.randrange(256) for _ in range(SEQUENCE * 21 + 1)]
            tokens.write_bytes(array.array("H", numbers).tobytes())
        data = ("--data", tokens, "--set", "data.format=uint16", "--json")
        result = self.run_words(PENSTOCK, "evaluate", config, *data, *words)
        self.assert_code(result, 0)
        return json.loads(result.out)

    def assert_near(
        self, losses: list[float], others: list[float], bound: float = LOSS_BOUND
    ) -> None:
        self.assertEqual(len(losses), len(others))
        apart = max(abs(a - b) for a, b in zip(losses, others, strict=True))
        self.assertLessEqual(apart, bound, f"{losses}\n{others}")

    def assert_same_tensors(self, some: Tensors, others: Tensors) -> None:
        """Bit for bit."""
        self.assertEqual(some.keys(), others.keys())
        self.assertEqual([name for name in some if some[name] != others[name]], [])


class Layouts(TensorTest):
    def test_the_example_has_the_same_losses_in_every_layout(self) -> None:
        courses = {}
        for layout in ("1x1x1", "1x1x2", "2x1x2", "1x2x2"):
            values = {
                **{f"mesh.{axis}": size for axis, size in mesh_of(layout).items()},
                "model.path": ROOT / "examples" / "tiny_llama",
                "train_batch_size": 16,
                "run.eval_batches": 1,
                "run.sample_tokens": 0,
            }
            sets = [word for key in values for word in ("--set", f"{key}={values[key]}")]
            words = ("--data", self.text, "--steps", 10, *sets)
            run = self.trained(ROOT / "examples" / "tensor.json", layout, *words)
            courses[layout] = losses_of(run)
        one = courses["1x1x1"]
        self.assertEqual(len(one), 10)
        self.assertLess(one[-1], one[0] - 0.5, one)
        for layout, losses in courses.items():
            with self.subTest(layout):
                self.assert_near(losses, one)

    def test_the_byte_gpt_has_the_same_losses_in_every_layout(self) -> None:
        for dropout in (0, 0.2):
            courses = {}
            for layout in ("1x1x1", "1x1x2", "2x1x2", "1x1x4"):
                values = {
                    **{f"mesh.{axis}": size for axis, size in mesh_of(layout).items()},
                    "model.dropout": dropout,
                    "model.hidden": 64,
                    "model.layers": 2,
                    "train_batch_size": 8,
                    "run.sample_bytes": 3,
                }
                sets = [word for key in values for word in ("--set", f"{key}={values[key]}")]
                words = ("--data", self.text, "--steps", 8, *sets)
                name = f"{dropout}-{layout}"
                run = self.trained(ROOT / "examples" / "gpt.json", name, *words)
                courses[layout] = losses_of(run)
            for layout, losses in courses.items():
                with self.subTest(f"dropout {dropout}, {layout}"):
                    self.assert_near(losses, courses["1x1x1"])

    def test_it_writes_the_text_that_one_process_writes(self) -> None:
        texts = []
        for layout in ("1x1x1", "2x1x2"):
            config = self.llama(layout, run={"steps": 4, "sample_tokens": 6, "sample_interval": 2})
            run = self.trained(config, layout)
            lines = (run / "samples.jsonl").read_text().splitlines()
            texts.append([json.loads(line) for line in lines])
        self.assertEqual([text["step"] for text in texts[0]], [2, 4])
        self.assertEqual([len(text["tokens"]) for text in texts[0]], [6, 6])
        self.assertEqual(texts[1], texts[0])


class Comebacks(TensorTest):
    """One rank is killed in the midst of a step."""

    def assert_comes_back(self, layout: str, fault: str, **changes: object) -> None:
        more = {"run": {"steps": 30}, "checkpoint": {"save_interval": 10}}
        config = self.llama(layout, **support.merged(more, changes))
        whole = self.trained(config, "whole", "--save", "whole-weights")
        words = ("--run", "killed", "--save", "killed-weights", "--inject", fault)
        result = self.train(config, *words)
        self.assert_code(result, 0)
        self.assertIn(f"injected: {fault}", result.err)
        self.assert_came_back(result.text)
        self.assert_same(whole, self.folder / "killed")
        weights = (read_weights(self.folder / f"{run}-weights") for run in ("whole", "killed"))
        self.assert_same_tensors(*weights)
        self.assert_nothing_left()

    def test_in_a_pipeline(self) -> None:
        self.assert_comes_back("2x1x2", "kill:rank=3,step=14,at=F,after=0.001")

    def test_of_replicas_with_zero_3(self) -> None:
        fault = "kill:rank=1,step=17,at=B,after=0.001"
        self.assert_comes_back("1x2x2", fault, zero_optimization={"stage": 3})


class OtherMeshes(TensorTest):
    def test_a_stopped_run_goes_on_in_another_layout(self) -> None:
        saving = {"checkpoint": {"save_interval": 6}}
        whole = losses_of(self.trained(self.llama("2x1x2", **saving), "whole"))
        step_6 = self.folder / "whole" / "checkpoints" / "step-00000006"
        for layout in ("1x2x2", "4x1x1"):
            with self.subTest(layout):
                run = self.trained(self.llama(layout, **saving), layout, "--resume", step_6)
                self.assert_near(losses_of(run), whole[6:])


class Folders(TensorTest):
    """What a run saves for other programs has whole tensors, whoever shares them."""

    def test_weights(self) -> None:
        config = self.llama("2x1x2", checkpoint={"save_interval": 12})
        run = self.trained(config, "run", "--save", "saved")
        saved = read_weights(self.folder / "saved")
        self.assertEqual(len(list((self.folder / "saved").glob("*.safetensors"))), 4)
        shapes = {name: shape for name, (_, shape, _) in saved.items()}
        self.assertEqual(shapes, llama_shapes(TINY_LLAMA))
        self.assert_code(self.checkpoint("export", run, "exported"), 0)
        exported = self.folder / "exported" / "model.safetensors"
        self.assert_same_tensors(saved, read_safetensors(exported))
        of_checkpoint = self.evaluated(config, "--run", run, "--resume", "auto")
        self.assertEqual(of_checkpoint["samples"], 21)
        trained = {"model": {"path": "saved", "weights": "folder"}}
        evaluated, next_losses = [of_checkpoint["loss"]], []
        for layout in ("1x1x1", "1x1x2"):
            goes_on = self.llama(layout, f"on-{layout}.json", run={"steps": 3}, **trained)
            evaluated.append(self.evaluated(goes_on)["loss"])
            next_losses.append(losses_of(self.trained(goes_on, f"on-{layout}")))
        for loss in evaluated[1:]:
            self.assertAlmostEqual(loss, evaluated[0], delta=1e-5)
        self.assert_near(*next_losses)

    def test_weights_of_gpt2_are_those_of_one_process(self) -> None:
        """Fused queries, keys and values are whole in files, wherever their parts were."""
        folder = write_gpt2(self.folder / "gpt2")
        write_random_weights(folder)
        given = {"path": "gpt2", "weights": "folder"}
        still = {"optimizer": {"params": {"lr": 0.0}}, "checkpoint": {"save_interval": 12}}
        for model in (given, {**given, "weights": "random"}):
            saved, evaluated = [], []
            for layout in ("1x1x1", "1x1x2", "2x1x4"):
                name = f"{model['weights']}-{layout}"
                config = self.llama(layout, f"{name}.json", model=model, **still)
                run = self.trained(config, name, "--save", f"{name}-saved")
                saved.append(read_weights(self.folder / f"{name}-saved"))
                shapes = {tensor: shape for tensor, (_, shape, _) in saved[-1].items()}
                self.assertEqual(shapes, gpt2_shapes(TINY_GPT2))
                self.assert_code(self.checkpoint("export", run, f"{name}-exported"), 0)
                exported = self.folder / f"{name}-exported" / "model.safetensors"
                self.assert_same_tensors(saved[-1], read_safetensors(exported))
                evaluated.append(self.evaluated(config)["loss"])
            for other in saved[1:]:
                self.assert_same_tensors(other, saved[0])
            self.assert_near(evaluated, [evaluated[0]] * len(evaluated), 1e-5)
            if model is given:
                self.assert_same_tensors(saved[0], read_safetensors(folder / "model.safetensors"))

    def test_checkpoints_of_gpt2_show_the_ranges_of_each_rank(self) -> None:
        write_gpt2(self.folder / "gpt2")
        saving = {"checkpoint": {"save_interval": 12}, "model": {"path": "gpt2"}}
        run = self.trained(self.llama("1x1x2", **saving), "run")
        shown = self.checkpoint("show", run).out
        self.assertIn("[0:30,0:18|30:48|60:78]", shown)

    def test_adapters(self) -> None:
        adapter = {"model": {"adapter": ADAPTER}}
        config = self.llama("2x1x2", checkpoint={"save_interval": 12}, **adapter)
        run = self.trained(config, "run", "--save", "saved")
        saved = read_safetensors(self.folder / "saved" / "adapter_model.safetensors")
        shapes = {name: shape for name, (_, shape, _) in saved.items()}
        self.assertEqual(shapes, self.adapter_shapes())
        names = {path.name for path in (self.folder / "saved").iterdir()}
        self.assertEqual(names, {"README.md", "adapter_config.json", "adapter_model.safetensors"})
        self.assert_code(self.checkpoint("export", run, "exported", "--adapters"), 0)
        exported = self.folder / "exported" / "adapter_model.safetensors"
        self.assert_same_tensors(saved, read_safetensors(exported))
        from_saved = {"model": {"adapter": {**ADAPTER, "path": "saved"}}}
        courses = []
        for layout, changes in (("1x1x1", adapter), ("1x1x1", from_saved), ("1x1x2", from_saved)):
            name = f"{layout}-{len(courses)}"
            config = self.llama(layout, f"{name}.json", run={"steps": 3}, **changes)
            courses.append(losses_of(self.trained(config, name)))
        new, one, two = courses
        self.assertLess(one[0], new[0] - 0.01, "those that were saved have learnt something")
        self.assert_near(one, two)

    def adapter_shapes(self) -> dict[str, list[int]]:
        """As PEFT names them."""
        shapes = {}
        targets = ADAPTER["targets"].split("|")
        for name, shape in llama_shapes(TINY_LLAMA).items():
            linear = name.removesuffix(".weight")
            if linear.split(".")[-1] not in targets:
                continue
            inner = f"base_model.model.{linear}.lora"
            shapes[f"{inner}_A.weight"] = [ADAPTER["rank"], shape[1]]
            shapes[f"{inner}_B.weight"] = [shape[0], ADAPTER["rank"]]
        return shapes


class Evaluated(TensorTest):
    def test_two_ranks_count_what_one_counts(self) -> None:
        config = self.llama("1x1x1", checkpoint={"save_interval": 12})
        resume = ("--run", self.trained(config, "run"), "--resume", "auto")
        one = self.evaluated(config, *resume)
        two = self.evaluated(config, *resume, "--set", "mesh.tensor=2")
        self.assertEqual((two["samples"], two["tokens"]), (one["samples"], one["tokens"]))
        self.assertAlmostEqual(two["loss"], one["loss"], delta=1e-5)
        self.assertLess(one["loss"], math.log(256) + 1.5)


class Recorded(TensorTest):
    def test_a_timeline_and_its_report_have_the_exchanges(self) -> None:
        config = self.llama("2x1x2", run={"steps": 2, "timeline_steps": 2})
        run = self.trained(config, "run")
        head, _, exchanges = (run / "timeline.csv").read_text().partition("# exchanges\n")
        self.assertIn("# rank 3 pipe 1 data 0 tensor 1 ", head)
        rows = [line.split(",", 7) for line in exchanges.splitlines()[1:-1]]
        for rank in range(4):
            in_step = [row for row in rows if row[:2] == ["2", str(rank)]]
            ahead = [row for row in in_step if int(row[4]) - int(row[3]) > 0]
            self.assertGreater(len(ahead), 0, rank)
            asked = {tuple(row[6:]) for row in in_step}
            stage, block = (0, "model.layers.0") if rank < 2 else (1, "model.layers.1")
            behind = f'behind piece 0 of layer "{block}"'
            self.assertIn((f"{stage}F0", f"the all-gather {behind}"), asked)
            self.assertNotIn((f"{stage}B0", f"the reduce-scatter {behind}"), asked)
        page = self.folder / "page.html"
        report = self.run_words(PENSTOCK, "report", run, "--output", page)
        self.assert_code(report, 0)
        # Which took longest is the machine's word: any rank's, forward or backward.
        self.assertRegex(report.out, r"rank [0-3]: the [a-z -]+ behind piece \d of layer ")
        self.assertIn('"name":"exchanges"', page.read_text())


class Hanging(TensorTest):
    """A rank stops within a step: who waits for it says in which exchange."""

    def assert_waits(self, layout: str, fault: str, *waits: str) -> None:
        config = self.llama(layout, launch={"heartbeat_seconds": 2})
        result = self.train(config, "--inject", fault)
        self.assert_code(result, 5)
        stopped = fault.partition("rank=")[2].partition(",")[0]
        self.assertRegex(result.err, rf"penstock: rank {stopped} stopped answering for 2\.\d s")
        for words in waits:
            self.assertRegex(result.err, rf"  note: {re.escape(words)} \(\d+\.\d s\)\n")
        self.assert_nothing_left()

    def test_in_a_forward(self) -> None:
        self.assert_waits(
            "1x1x2",
            "stop:rank=1,step=3,at=0F0",
            "rank 0: step 3, waiting in 0F0: "
            'the reduce-scatter behind piece 0 of layer "model.embed_tokens"',
        )

    def test_in_a_later_stage(self) -> None:
        self.assert_waits(
            "2x1x2",
            "stop:rank=3,step=3,at=1F0",
            "rank 2: step 3, waiting in 1F0: "
            'the sum of sizes behind piece 0 of layer "model.layers.1"',
        )

    def test_in_a_backward(self) -> None:
        self.assert_waits(
            "1x1x2",
            "stop:rank=0,step=3,at=0B1",
            'rank 1: step 3, waiting in 0B1: the all-gather behind piece 0 of layer "lm_head"',
        )


class BadInput(TensorTest):
    def assert_refused(self, config: Path, *lines: str, words: tuple = ()) -> None:
        """With these lines first, each matched as a whole, before anything is trained."""
        result = self.train(config, "--run", "run", "--save", "weights", *words)
        self.assert_code(result, 2)
        self.assertEqual(len(support.root_causes(result.err)), 1, result.err)
        for line, said in zip(result.err.splitlines(), lines, strict=False):
            self.assertRegex(line, f"^{said}$")
        self.assertNotIn("step 1/", result.text)
        self.assert_nothing_left()

    def test_ranks_that_heads_cannot_be_shared_by(self) -> None:
        self.assert_refused(
            self.llama("1x1x3"),
            r'penstock: rank (\d) failed: rank \1: the function that makes layer "model.layers.0": '
            "mesh.tensor = 3: ranks cannot share 4 heads of queries and 2 of keys and values, each "
            "rank some whole ones",
            "  note: sizes that work: 1, 2, 4",
        )

    def test_world_sizes_that_the_mesh_does_not_divide(self) -> None:
        self.assert_refused(
            self.llama("2x1x2", mesh={"data": None}),
            r"penstock: .*/2x1x2.json: world size 6 is not a multiple of mesh.pipe 2 x mesh.tensor "
            "2; use 4 or 8 processes, or mesh.tensor 1 or 3, or mesh.pipe 1 or 3",
            words=("--nproc", 6),
        )


if __name__ == "__main__":
    unittest.main()
