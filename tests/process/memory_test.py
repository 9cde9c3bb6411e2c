"""penstock memory: the table, JSON, what it shows of schedules and of ZeRO, and bad input.

Needs the standard library, and a build with torch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import unittest

from emulate_test import is_built_for_cuda
from model_folders import TINY_LLAMA, write_llama
from planning import PlannerTest
from support import PENSTOCK

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 8,
    "model": {"layers": 4, "hidden": 64, "sequence_length": 32},
    "mesh": {"pipe": 2},
}
WIDE_LLAMA = {
    **TINY_LLAMA, "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    "num_hidden_layers": 4, "tie_word_embeddings": False,
}  # fmt: skip
WIDE_GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 1000,
    "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 512,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
FOLDER = {"type": "hugging_face", "weights": "random", "sequence_length": 512}
LAID_ASIDE = 2**20  # By oneDNN, in a product; no shape tells it.
RUNS_WHOLE_SWEEPS = "PENSTOCK_LONG_TESTS" in os.environ
COLUMNS = [
    *("parameters", "gradients", "optimizer", "activations", "buckets", "messages", "batch"),
    "checkpoint",
]


class Memory(PlannerTest):
    def told(self, *words: object) -> dict:
        name = self.write("gpt.json", json.dumps(CONFIG))
        return json.loads(self.penstock("memory", name, "--json", *words).out)

    def test_the_table_has_what_json_has(self) -> None:
        told = self.told()
        table = self.penstock("memory", "gpt.json").out.splitlines()
        self.assertIn("pipe 2 x data 1", table[0])
        self.assertEqual(table[1].split(), ["pipe", "rank", "stages", *COLUMNS, "peak", "at"])
        for line, rank in zip(table[2:], told["pipe_ranks"], strict=True):
            cells = line.split()
            shown = [float(cell) for cell in cells[2:-1]]
            peak = rank["peak"]
            expected = [peak[column] / 2**20 for column in [*COLUMNS, "total"]]
            self.assertEqual(shown, [round(value, 2) for value in expected])
            self.assertEqual(peak["total"], sum(peak[column] for column in COLUMNS))
            self.assertEqual(cells[-1], rank["at"])
            self.assertRegex(rank["at"], r"^\d+[FBIW]\d+$")

    def test_parameters_are_told_with_their_owners(self) -> None:
        self.write("gpt.json", json.dumps(CONFIG))
        words = ["--nproc", "4", "--set", "zero_optimization.stage=3"]
        out = self.penstock("memory", "gpt.json", "--parameters", *words).out
        self.assertEqual(out.count("ZeRO 3 over 2 ranks, buckets of up to"), 2)
        elements = sum(int(n) for n in re.findall(r": (\d+) elements", out))
        held = [sum(map(int, re.findall(rf"(\d+) on rank {rank}", out))) for rank in (0, 1)]
        self.assertEqual(sum(held), elements)
        self.assertGreater(min(held), 0.4 * elements)
        out = self.penstock("memory", "gpt.json", "--parameters").out
        self.assertIn("ZeRO 0 over 1 rank", out)
        self.assertRegex(out, r"wte\.weight: Float, \d+ elements: updated by every rank")

    def test_activations_are_those_of_the_schedule(self) -> None:
        def live(schedule: str) -> list[int]:
            ranks = self.told("--set", f"schedule.name={schedule}")["pipe_ranks"]
            return [rank["peak_activations"] for rank in ranks]

        self.assertEqual(live("gpipe"), [8, 8])
        self.assertEqual(live("1f1b"), [2, 1])
        gpipe, one = (
            self.told("--set", f"schedule.name={name}")["pipe_ranks"][0]["peak"]["activations"]
            for name in ("gpipe", "1f1b")
        )
        self.assertGreater(gpipe, 3 * one)
        again = self.told("--set", "pipeline.activation_checkpoint_interval=1")["pipe_ranks"][0]
        self.assertLess(again["peak"]["activations"], one)

    def test_states_in_a_file_are_not_in_memory(self) -> None:
        words = []
        for key, value in (("device", "nvme"), ("nvme_path", str(self.folder))):
            words += ["--set", f"zero_optimization.offload_optimizer.{key}={value}"]
        within, without = self.told()["pipe_ranks"][0], self.told(*words)["pipe_ranks"][0]
        self.assertEqual(within["file"], 0)
        self.assertLess(without["peak"]["optimizer"], 1000)
        self.assertEqual(within["peak"]["parameters"], without["peak"]["parameters"])
        kept = within["peak"]["optimizer"] - without["peak"]["optimizer"]
        self.assertEqual(without["file"], kept)
        table = self.penstock("memory", "gpt.json", *words).out.splitlines()
        self.assertRegex(table[-1], r"^in files, by pipe rank: \d+\.\d+, \d+")

    def test_parameters_in_a_file_are_in_memory_while_they_are_used(self) -> None:
        words = ["--set", "zero_optimization.stage=3"]
        for key, value in (("device", "nvme"), ("nvme_path", str(self.folder))):
            words += ["--set", f"zero_optimization.offload_param.{key}={value}"]
        plain, paged = self.told()["pipe_ranks"][0], self.told(*words)["pipe_ranks"][0]
        self.assertEqual(paged["between_steps"]["parameters"], 0)
        self.assertGreaterEqual(paged["file"], plain["between_steps"]["parameters"])
        self.assertGreaterEqual(paged["peak"]["buckets"], paged["file"])

    def test_zero_shares_states(self) -> None:
        def states(stage: int, data: int) -> dict:
            sizes = ("--nproc", 2 * data, "--set", f"zero_optimization.stage={stage}")
            return self.told(*sizes)["pipe_ranks"][0]["between_steps"]

        whole, shared, gradients = states(0, 2), states(1, 2), states(2, 2)
        self.assertEqual(whole["optimizer"] // whole["parameters"], 2)
        self.assertAlmostEqual(shared["optimizer"] / whole["optimizer"], 1 / 2, delta=0.02)
        self.assertAlmostEqual(gradients["gradients"] / whole["gradients"], 1 / 2, delta=0.02)
        self.assertEqual(shared["parameters"], gradients["parameters"])

    def test_the_optimizer_and_the_batch_count(self) -> None:
        plain = self.told()["pipe_ranks"][0]["peak"]
        sgd = self.told("--set", "optimizer.type=SGD")["pipe_ranks"][0]["peak"]
        self.assertEqual(sgd["optimizer"], 0)
        self.assertEqual(sgd["parameters"], plain["parameters"])
        self.assertEqual(plain["batch"], 2 * 8 * 2 * 8 * 32)

    def test_bad_input(self) -> None:
        name = self.write("gpt.json", json.dumps(CONFIG))
        self.refuse(
            re.escape("--set modell.layers=2: unknown key"),
            "memory",
            name,
            "--set",
            "modell.layers=2",
        )
        self.refuse(
            r"gpt\.json: world size 3 is not a multiple of mesh\.pipe 2",
            "memory",
            name,
            "--nproc",
            3,
        )
        self.refuse(
            r"gpt\.json: .*8 stages.*6 layers|gpt\.json: .*stages",
            "memory",
            name,
            "--set",
            "mesh.pipe=8",
        )
        self.refuse("none.json", "memory", "none.json")
        self.refuse("bad.json:1:2: ", "memory", self.write("bad.json", "{"))

    def test_ranks_that_share_layers_have_parts_of_them(self) -> None:
        write_llama(self.folder / "m")
        model = {"type": "hugging_face", "path": "m", "weights": "random", "sequence_length": 32}
        self.write("llama.json", json.dumps({**CONFIG, "model": model}))

        def told(tensor: int) -> dict:
            words = ("--json", "--set", f"mesh.tensor={tensor}")
            return json.loads(self.penstock("memory", "llama.json", *words).out)

        one, two = told(1)["pipe_ranks"], told(2)["pipe_ranks"]
        for whole, part in zip(one, two, strict=True):
            for column in ("parameters", "gradients", "optimizer", "activations", "messages"):
                share = part["peak"][column] / max(1, whole["peak"][column])
                self.assertLess(share, 0.75, column)
            self.assertEqual(part["peak"]["batch"], whole["peak"]["batch"])
        told_of = self.penstock("memory", "llama.json", "--set", "mesh.tensor=2").out
        self.assertIn("pipe 2 x data 1 x tensor 2", told_of)
        self.assertIn("; of ranks that share layers the first, which has most; ", told_of)
        why = r"mesh\.tensor = 3: ranks cannot share 4 heads of queries"
        self.refuse(why, "memory", "llama.json", "--set", "mesh.tensor=3")

    def test_what_is_not_counted_of_invariant_sums_is_told(self) -> None:
        name = self.write("sums.json", json.dumps({**CONFIG, "numerics": {"invariant": True}}))
        self.assertIn("partial sums of gradients", self.penstock("memory", name).err)

    def test_layers_that_ranks_share_are_refused(self) -> None:
        model = {"type": "hugging_face", "path": "m"}
        name = self.write("llama.json", json.dumps({"model": model, "mesh": {"tensor": 2}}))
        costs = self.write("costs.json", '{"forward": 1, "input": 1, "weight": 1}')
        plan = ["plan", "--world", 4, "--memory", "1GB", "--costs", costs]
        profile = ["one process runs whole layers", "profile"]
        costs_of = ["costs are those of whole layers\n  note: leave --costs out", *plan]
        for what, words in (("profile", profile), ("plan --costs", costs_of)):
            why, command, *more = words
            self.refuse(rf"^penstock: {what}: mesh\.tensor = 2: {why}", command, name, *more)


class ByShape(PlannerTest):
    def setUp(self) -> None:
        super().setUp()
        if is_built_for_cuda():
            self.skipTest("the virtual device needs a torch for CPUs")

    def write_model(self, name: str, config: dict) -> None:
        (self.folder / name).mkdir()
        self.write(f"{name}/config.json", json.dumps(config))

    def test_shapes_tell_what_layers_take_at_full_size(self) -> None:
        """In a run on processors; kernels that lay aside buffers of one size for all are small."""
        self.write_model("llama", WIDE_LLAMA)
        self.write_model("gpt2", WIDE_GPT2)
        llama, gpt2 = ({**FOLDER, "path": name} for name in ("llama", "gpt2"))
        bf16, shared = {"bf16": {"enabled": True}}, {"mesh": {"pipe": 2, "tensor": 2}}
        for name, changes in {
            "gpt": {"model": {**CONFIG["model"], "dropout": 0.1}},
            "mlp": {"model": {**CONFIG["model"], "type": "mlp"}},
            "gpt2": {"model": gpt2},
            "llama": {"model": llama, "schedule": {"name": "zbv"}},
            "documents": {
                "model": llama,
                "data": {"attend_across_documents": False, "document_end": 0},
            },
            "adapter": {"model": {**llama, "adapter": {"rank": 4, "targets": "q_proj"}}},
            "selective": {"model": {**llama, "activation_checkpoint": "selective"}, **bf16},
            "shared": {"model": llama, **shared, "pipeline": {"activation_checkpoint_interval": 1}},
            "shared bf16": {"model": llama, **shared, **bf16},
        }.items():
            self.check_shapes(name, changes)

    def check_shapes(self, name: str, changes: dict) -> None:
        self.write("model.json", json.dumps({**CONFIG, **changes}))
        shown, measured = (
            json.loads(self.penstock("memory", "model.json", "--json", *words).out)
            for words in ((), ("--measure",))
        )
        for by_shape, at_size in zip(shown["pipe_ranks"], measured["pipe_ranks"], strict=True):
            told, taken = by_shape["peak"]["total"], at_size["peak"]["total"]
            self.assertLess(told, 1.02 * taken, msg=name)
            self.assertGreater(told, 0.98 * taken - LAID_ASIDE, msg=name)
            of_rest = (each["between_steps"]["total"] for each in (by_shape, at_size))
            self.assertEqual(*of_rest, msg=name)

    def test_shapes_tell_it_of_every_family(self) -> None:
        """Of two of them in the quick tier."""
        gemma = {"head_dim": 32, "sliding_window": 64}
        for family, more in {
            "phi3": {"num_key_value_heads": 8, "partial_rotary_factor": 0.75},
            "granite": {"residual_multiplier": 0.2, "logits_scaling": 8.0},
            "olmo2": {},
            "smollm3": {},
            "gemma2": gemma,
            "gemma3_text": gemma,
        }.items():
            if family not in ("phi3", "gemma2") and not RUNS_WHOLE_SWEEPS:
                continue
            self.write_model(family, {**WIDE_LLAMA, "model_type": family, **more})
            model = {**FOLDER, "path": family}
            self.check_shapes(family, {"model": model})
            if family in ("phi3", "olmo2", "gemma2"):
                shared = {"model": model, "mesh": {"tensor": 2}, "bf16": {"enabled": True}}
                self.check_shapes(f"{family}, shared", shared)

    def test_the_largest_models_take_no_memory_to_tell(self) -> None:
        """Llama 3 405B, of config.json alone."""
        largest = {
            "vocab_size": 128256, "hidden_size": 16384, "intermediate_size": 53248,
            "num_hidden_layers": 126, "num_attention_heads": 128, "max_position_embeddings": 8192,
        }  # fmt: skip
        self.write_model("llama", {**WIDE_LLAMA, **largest, "num_key_value_heads": 8})
        model = {**FOLDER, "path": "llama", "weights": "folder", "sequence_length": 8192}
        mesh = {"pipe": 16, "data": 4, "tensor": 8}
        self.write("llama.json", json.dumps({**CONFIG, "model": model, "mesh": mesh}))
        limits = ["bash", "-c", 'ulimit -t 20 && exec "$0" "$@"', PENSTOCK]
        words = [*limits, "memory", "llama.json", "--json"]
        with subprocess.Popen(words, cwd=self.folder, stdout=subprocess.PIPE) as program:
            told = json.loads(program.stdout.read())
            _, status, used = os.wait4(program.pid, 0)
            program.returncode = status
        self.assertEqual(status, 0)
        self.assertLess(used.ru_maxrss, 2 * 2**20)  # KiB.
        parameters = sum(rank["between_steps"]["parameters"] for rank in told["pipe_ranks"])
        self.assertAlmostEqual(8 * parameters / (4 * 405.85e9), 1.0, delta=0.001)

    def test_long_measurements_say_where_they_are(self) -> None:
        self.write_model("llama", {**WIDE_LLAMA, "hidden_size": 512, "intermediate_size": 4096})
        model = {**FOLDER, "path": "llama", "sequence_length": 2048}
        self.write("llama.json", json.dumps({**CONFIG, "model": model}))
        quiet = self.penstock("memory", "llama.json")
        self.assertNotIn("measuring", quiet.err)
        self.assertIn("; layers by shape, on processors\n", quiet.out)
        told = self.penstock("memory", "llama.json", "--measure")
        self.assertRegex(told.err, r"^penstock: memory: measuring layer \"")
        self.assertIn("; layers measured\n", told.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
