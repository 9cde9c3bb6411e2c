"""penstock emulate: exact counts and operations, memory, what devices change, and bad input.

Needs the standard library, and a build with torch for CPUs.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import unittest
from typing import NamedTuple

from planning import PlannerTest, layers_of

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000,
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
BLOCKS, HIDDEN, INNER, VOCABULARY, SEQUENCE, SAMPLES, MICROBATCHES = 4, 256, 512, 1000, 512, 2, 4
KEYS = 2 * HIDDEN // 8  # Elements of a token's keys: two heads of eight.
CONFIG = {
    "train_batch_size": SAMPLES * MICROBATCHES, "train_micro_batch_size_per_gpu": SAMPLES,
    "bf16": {"enabled": True},
    "model": {"type": "hugging_face", "path": "model", "sequence_length": SEQUENCE},
}  # fmt: skip
PARAMETERS = (
    2 * VOCABULARY * HIDDEN + HIDDEN
    + BLOCKS * (2 * HIDDEN**2 + 2 * HIDDEN * KEYS + 3 * HIDDEN * INNER + 2 * HIDDEN)
)  # fmt: skip
H100_PEAK = 989e12
# So wide that kernels take longer than their launches.
WIDE = {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000,
        "num_attention_heads": 32, "num_key_value_heads": 8}  # fmt: skip


class Layout(NamedTuple):
    tensor: int
    pipe: int
    zero: int
    recomputed: str  # "none", "selective" or "full".


@functools.cache
def is_built_for_cuda() -> bool:
    program = "import torch.version; print(torch.version.cuda)"
    done = subprocess.run([os.environ["PENSTOCK_TORCH_PYTHON"], "-c", program],
                          capture_output=True, text=True, check=True, timeout=60)  # fmt: skip
    return done.stdout.strip() != "None"


def operations() -> float:
    """Of a step's products, forward and twice that backward; of attention, and 2.5 times that."""
    tokens = SAMPLES * SEQUENCE
    linears = 2 * tokens * HIDDEN * (2 * HIDDEN + 2 * KEYS + 3 * INNER)
    attention = 4 * SAMPLES * SEQUENCE**2 * HIDDEN / 2  # Half of the pairs of tokens.
    head = 2 * tokens * HIDDEN * VOCABULARY
    return MICROBATCHES * (3 * (BLOCKS * linears + head) + 3.5 * BLOCKS * attention)


class EmulateTest(PlannerTest):
    def setUp(self) -> None:
        super().setUp()
        if is_built_for_cuda():
            self.skipTest("the virtual device needs a torch for CPUs")
        (self.folder / "model").mkdir()
        self.write("model/config.json", json.dumps(LLAMA))  # No weights: it needs none.
        self.write("llama.json", json.dumps(CONFIG))

    def told(self, *words: object) -> dict:
        return json.loads(self.penstock("emulate", "llama.json", "--json", *words).out)


class Emulate(EmulateTest):
    def test_operations_are_those_of_the_shapes(self) -> None:
        for words in ((), ("--set", "mesh.pipe=2", "--set", "schedule.name=zbv")):
            told = self.told(*words)
            found = told["share_of_peak"] * told["step_s"] * H100_PEAK * len(told["ranks"])
            self.assertAlmostEqual(found / operations(), 1.0, places=4)

    def test_a_step_copies_its_batch_and_its_ends_and_waits_for_nothing_else(self) -> None:
        for name in ("1f1b", "zbv"):
            first, last = self.told("--set", "mesh.pipe=2", "--set", f"schedule.name={name}")[
                "ranks"
            ]
            for rank in (first, last):
                self.assertEqual(rank["scalars"], 0)
            # The batch, and what ends the step: the norm, what has been set, and the losses.
            first_has_last = name == "zbv"  # A V ends where it begins.
            self.assertEqual(first["copies_in"] + last["copies_in"], 2)
            self.assertEqual(first["copies_out"], 2 + first_has_last)
            self.assertEqual(last["copies_out"], 3 - first_has_last)
            hops = 2 if name == "1f1b" else 4  # There and back; a V passes twice.
            self.assertEqual(first["messages"] + last["messages"], hops * MICROBATCHES)
            row = 2 * SAMPLES * SEQUENCE * HIDDEN  # Of bf16.
            self.assertEqual(first["message_bytes"] + last["message_bytes"],
                             hops * MICROBATCHES * row)  # fmt: skip

    def test_kernels_do_not_grow_with_tokens_and_their_times_do(self) -> None:
        self.write("even.json", '{"like": "h100-sxm", "kernel_s": 1e-12}')
        words = ("--device", "even.json", "--set")
        short, long = (
            self.told(*words, f"model.sequence_length={n}")["ranks"][0] for n in (512, 2048)
        )
        self.assertEqual(short["kernels"], long["kernels"])
        self.assertAlmostEqual(long["products_s"] / short["products_s"], 4, places=4)
        self.assertAlmostEqual(long["attention_s"] / short["attention_s"], 16, places=4)

    def test_layers_launch_what_their_formula_counts(self) -> None:
        """Each block's products and attention, as `plan` takes them from the layers' shapes."""
        self.penstock("memory", "llama.json", "--set", "launch.device=cuda", "--layers",
                      "layers.json", "--tensor", "1,2")  # fmt: skip
        for size in json.loads((self.folder / "layers.json").read_text())["sizes"]:
            counted = sum(
                amount * count
                for layer in [*layers_of(size), size["loss"]]
                for step in ("forward_kernels", "backward_kernels")
                for kind, amount, count in layer[step]
                if kind != "other"
            )
            expected = operations() / MICROBATCHES / size["sharers"]
            self.assertAlmostEqual(counted / expected, 1.0, places=6)
            for layer in layers_of(size)[1:-2]:  # The halves are the whole, of the same products.
                found = [
                    sum(n * count for kind, n, count in layer[step] if kind != "other")
                    for step in ("backward_kernels", "input_kernels", "weight_kernels")
                ]
                self.assertEqual(found[0], found[1] + found[2])

    def planned(self, world: int, layout: Layout, *words: object) -> dict:
        """The candidate of `plan` with this layout, of one stage a rank."""
        only = ("--tensor", layout.tensor, "--zero", layout.zero, "--microbatch-sizes", SAMPLES)
        if layout.recomputed != "full":
            only += ("--no-recompute",)
        done = self.penstock("plan", "llama.json", "--world", world, "--top", 100, *only, *words,
                             "--format", "json")  # fmt: skip
        return next(
            each
            for each in json.loads(done.out)["candidates"]
            if each["pipe"] == layout.pipe and each["schedule"] == "1f1b"
            and (each["recompute_interval"] > 0) == (layout.recomputed == "full")
        )  # fmt: skip

    def test_a_plan_takes_as_long_as_the_emulated_step(self) -> None:
        """And as much memory: both within 3 %.

        A plan has no trainer.  It adds up layers by shape, exchanges beside what they run beside,
        pages as they come, and the kernels of a step's end.
        """
        self.write("model/config.json", json.dumps({**LLAMA, **WIDE}))
        self.write("large.json", '{"like": "h100-sxm", "memory_bytes": 1e12}')
        for layout in (
            Layout(tensor=1, pipe=1, zero=0, recomputed="none"),
            Layout(tensor=1, pipe=1, zero=3, recomputed="selective"),
            Layout(tensor=1, pipe=4, zero=1, recomputed="full"),
            Layout(tensor=1, pipe=2, zero=2, recomputed="none"),
            Layout(tensor=2, pipe=2, zero=2, recomputed="selective"),
            Layout(tensor=4, pipe=1, zero=1, recomputed="none"),
            Layout(tensor=8, pipe=1, zero=0, recomputed="selective"),
            Layout(tensor=2, pipe=1, zero=3, recomputed="full"),
        ):
            selective = "selective" if layout.recomputed == "selective" else "none"
            words = ("--device", "large.json", "--set", "train_batch_size=32",
                     "--set", "model.sequence_length=4096",
                     "--set", f"model.activation_checkpoint={selective}")  # fmt: skip
            plan = self.planned(8, layout, *words)
            run = {
                "mesh.pipe": layout.pipe,
                "mesh.tensor": layout.tensor,
                "zero_optimization.stage": layout.zero,
                "pipeline.partition": "bounds",
                "pipeline.bounds": json.dumps(plan["bounds"]),
                "pipeline.activation_checkpoint_interval": plan["recompute_interval"],
            }
            sets = [word for key, value in run.items() for word in ("--set", f"{key}={value}")]
            told = self.told("--hosts", "1x8", *words, *sets)
            self.assertAlmostEqual(plan["step"] / told["step_s"], 1.0, delta=0.03, msg=layout)
            replica = len(told["ranks"]) // layout.pipe
            for i, planned in enumerate(plan["peak"]):
                ranks = told["ranks"][i * replica : (i + 1) * replica]
                has = max(each["peak_bytes"] for each in ranks)
                self.assertAlmostEqual(planned / has, 1.0, delta=0.03, msg=layout)

    def test_sums_of_gradients_travel_beside_the_backward(self) -> None:
        """Half of what ZeRO 1 sends is the sums; updated parameters are gathered at the end."""
        self.write("model/config.json", json.dumps({**LLAMA, **WIDE}))
        words = ("--set", "mesh.data=4", "--set", "train_batch_size=16",
                 "--set", "model.sequence_length=2048")  # fmt: skip
        for zero, share in ((1, 0.6), (2, 0.6), (3, 0.7)):
            rank = self.told(*words, "--set", f"zero_optimization.stage={zero}")["ranks"][0]
            travels = rank["message_bytes"] / (450e9 * 0.55)
            self.assertLess(rank["message_wait_s"], share * travels, zero)

    def test_what_memory_tells_is_what_ranks_have(self) -> None:
        """Told by each layer's shapes and the plan; here all ranks go through a step."""
        for keys in (
            [],
            ["mesh.pipe=2"],
            ["mesh.tensor=4"],
            ["mesh.pipe=2", "mesh.tensor=2", "schedule.name=zbv"],
            ["mesh.data=2", "mesh.tensor=2", "zero_optimization.stage=3", "train_batch_size=16"],
            ["mesh.tensor=2", "pipeline.activation_checkpoint_interval=1"],
            ["mesh.tensor=2", "model.activation_checkpoint=selective"],
        ):
            words = [word for key in keys for word in ("--set", key)]
            on_device = ("--set", "launch.device=cuda", "--json")
            told = json.loads(self.penstock("memory", "llama.json", *on_device, *words).out)
            ranks = self.told(*words)["ranks"]
            replica = len(ranks) // len(told["pipe_ranks"])
            for i, rank in enumerate(told["pipe_ranks"]):
                has = max(each["peak_bytes"] for each in ranks[i * replica : (i + 1) * replica])
                self.assertAlmostEqual(rank["peak"]["total"] / has, 1.0, delta=0.02, msg=keys)

    def test_memory_is_that_of_states_and_activations(self) -> None:
        def peak(*words: str) -> int:
            return max(rank["peak_bytes"] for rank in self.told(*words)["ranks"])

        one = peak()
        # Weights and gradients of bf16; in float the masters and Adam's two moments.
        self.assertGreater(one, 16 * PARAMETERS)
        two = peak("--set", "mesh.data=2", "--set", "train_batch_size=16",
                   "--set", "zero_optimization.stage=1")  # fmt: skip
        self.assertLess(two, one - 2 * PARAMETERS)  # Half of the states, but for buckets.
        recomputed = peak("--set", "pipeline.activation_checkpoint_interval=1")
        selective = peak("--set", "model.activation_checkpoint=selective")
        self.assertLess(recomputed, selective)
        # Of each block and microbatch under way: two norms' outputs, SwiGLU's two halves.
        less = 2 * SAMPLES * SEQUENCE * BLOCKS * (2 * HIDDEN + 2 * INNER)
        self.assertAlmostEqual((one - selective) / less, 1.0, delta=0.1)

    def test_a_device_of_ones_own_is_what_its_file_says(self) -> None:
        self.write("slow.json", '{"like": "h100-sxm", "short_peak": 98.9e12, "kernel_s": 1e-9}')
        self.write("fast.json", '{"like": "h100-sxm", "kernel_s": 1e-9}')
        slow, fast = (
            self.told("--device", f"{name}.json")["ranks"][0]["products_s"]
            for name in ("slow", "fast")
        )
        self.assertAlmostEqual(slow / fast, 10, places=3)

    def test_slower_links_are_waited_for(self) -> None:
        self.write("far.json", '{"like": "h100-sxm", "link_bytes_per_s": 1e8}')
        words = ("--set", "mesh.pipe=2")
        near, far = self.told(*words), self.told(*words, "--device", "far.json")
        self.assertGreater(far["step_s"], 1.5 * near["step_s"])
        self.assertGreater(far["ranks"][0]["message_wait_s"], near["ranks"][0]["message_wait_s"])

    def test_hosts_are_as_far_apart_as_the_network_says(self) -> None:
        self.write("far.json", '{"like": "h100-sxm", "network_bytes_per_s": 1e8}')
        words = ("--device", "far.json", "--set", "mesh.pipe=2", "--set", "mesh.data=1", "--hosts")
        one, two = self.told(*words, "1x2"), self.told(*words, "2x1")
        self.assertGreater(two["step_s"], 1.5 * one["step_s"])
        self.refuse("--hosts has 4 devices, and --nproc says 2",
                    "emulate", "llama.json", "--nproc", 2, "--hosts", "2x2")  # fmt: skip
        self.refuse("--hosts", "emulate", "llama.json", "--hosts", "2x0")

    def test_the_table_has_what_json_has(self) -> None:
        told = self.told("--set", "mesh.pipe=2")
        out = self.penstock("emulate", "llama.json", "--set", "mesh.pipe=2").out.splitlines()
        self.assertRegex(
            out[0], r"^0\.\d{3} s a step, \d+ tokens a second, .* of the peak; pipe 2 x"
        )
        rows = [line.split() for line in out if line[:1].isdigit() and "tokens" not in line]
        self.assertEqual([row[0] for row in rows], ["0", "1", "0", "1"])
        for row, rank in zip(rows[:2], told["ranks"], strict=True):
            self.assertEqual(row[1], f"{rank['step_s']:.3f}")
            self.assertEqual(row[-1], str(rank["kernels"]))

    def test_bad_input_is_told(self) -> None:
        def refused(text: str, *words: str) -> None:
            result = self.penstock("emulate", "llama.json", *words, code=2)
            self.assertIn(text, result.err)

        refused('--device: no such device: "h100-sxn"; did you mean "h100-sxm"?',
                "--device", "h100-sxn")  # fmt: skip
        self.write("like.json", '{"like": "h100-sxn"}')
        refused('like.json:1:10: like: no such device: "h100-sxn"; did you mean "h100-sxm"?',
                "--device", "like.json")  # fmt: skip
        self.write("list.json", "[1]")
        refused("list.json: expected an object", "--device", "list.json")
        for figure in ('"product_share": 66', '"devices_per_host": 0.5', '"link_s": 0'):
            self.write("none.json", f'{{"like": "h100-sxm", {figure}}}')
            key = figure.partition(":")[0].strip('"')
            refused(f"{key}: expected a", "--device", "none.json")
        refused("1000 ranks: a process has 127 virtual devices at most", "--nproc", "1000",
                "--set", "train_batch_size=1000", "--set", "train_micro_batch_size_per_gpu=1",
                )  # fmt: skip
        self.write("odd.json", '{"like": "h100-sxm",\n "short_pek": 1}')
        refused('odd.json:2:2: unknown key "short_pek"; did you mean "short_peak"?',
                "--device", "odd.json")  # fmt: skip
        self.write("bare.json", '{"memory_bytes": 8e9}')
        refused("bare.json: float_peak is missing", "--device", "bare.json")
        refused("no such folder", "--set", "model.path=nowhere")

    def test_a_model_that_does_not_fit_says_what_is_live(self) -> None:
        self.write("tiny.json", '{"like": "h100-sxm", "memory_bytes": 4e7}')
        result = self.penstock("emulate", "llama.json", "--device", "tiny.json", code=1)
        self.assertRegex(
            result.err, r"the virtual device of rank 0 \(tiny.json\) has no more memory"
        )
        self.assertIn("live, by the operator that wrote it first: aten::", result.err)


class Recorded(EmulateTest):
    """One more step, as `penstock report` reads it: by the clocks of devices."""

    def events(self, *words: str) -> dict[str, tuple[int, int]]:
        """When each action's input was there and when it was over, by rank and action."""
        self.penstock("emulate", "llama.json", "--output", "emulated", *words)
        lines = (self.folder / "emulated" / "timeline.csv").read_text().splitlines()
        rows = [line.split(",") for line in lines if line[:1].isdigit()]
        return {f"{row[1]} {row[2]}": (int(row[4]), int(row[5])) for row in rows if len(row) == 7}

    def test_actions_end_when_the_device_has_done_them(self) -> None:
        self.write("model/config.json", json.dumps({**LLAMA, **WIDE}))
        told = self.told("--set", "mesh.pipe=2")
        times = self.events("--set", "mesh.pipe=2")
        for m in range(MICROBATCHES):
            for before, after in (
                (f"0 0F{m}", f"1 1F{m}"), (f"1 1F{m}", f"1 1B{m}"), (f"1 1B{m}", f"0 0B{m}"),
            ):  # fmt: skip
                self.assertLessEqual(times[before][1], times[after][0], (before, after))
        for rank, has in enumerate(told["ranks"]):
            spans = [times[f"{rank} {rank}{op}{m}"] for op in "FB" for m in range(MICROBATCHES)]
            computed = sum(end - ready for ready, end in spans) / 1e9
            # But for the norm and the update.
            kernels = has["products_s"] + has["attention_s"] + has["other_s"]
            products = has["products_s"] + has["attention_s"]
            self.assertLess(products, computed)
            self.assertLess(computed, kernels)
            self.assertLess(times[f"{rank} finish"][1] / 1e9, has["step_s"])

    def test_report_draws_it(self) -> None:
        self.events("--set", "mesh.pipe=2", "--set", "mesh.tensor=2")
        report = self.penstock("report", "emulated").out
        self.assertIn("emulated: 1f1b(ranks=2, stages=2, microbatches=4)", report)
        self.assertRegex(report, r"rank [0-3]: the [a-z -]+ behind piece \d of ")
        page = (self.folder / "emulated" / "report.html").read_text()
        self.assertIn('"name":"exchanges"', page)

    def test_a_folder_that_cannot_be_made(self) -> None:
        self.write("taken", "")
        self.refuse("cannot make the folder taken/emulated: Not a directory",
                    "emulate", "llama.json", "--output", "taken/emulated")  # fmt: skip


class Shared(EmulateTest):
    """Ranks that share layers: what two of them send follows from the layers' pieces."""

    # Of a block: its two halves each gather tokens and scatter a sum; in the backward they do the
    # same with gradients, and gather again what they have let go.
    IN_BLOCK = 2 * (2 + 2 + 1)
    IN_EMBEDDING = 1 + 1  # A sum is scattered, and its gradient gathered.
    IN_HEAD = 1 + 1 + 1  # Tokens are gathered, and again; their gradients' sum is scattered.
    PARTS = BLOCKS * IN_BLOCK + IN_EMBEDDING + IN_HEAD  # All of one size.
    IN_LOSS = 2  # For each token the largest logit, and two sums, all in float.
    TOKENS = SAMPLES * SEQUENCE
    PART_BYTES = 2 * TOKENS // 2 * HIDDEN
    LOSS_BYTES = 4 * TOKENS * (1 + 2)
    # Once a step, the gradients of norms, and behind each on how many ranks it is there.
    NORMS = 2 * BLOCKS + 1
    NORM_BYTES = 2 * NORMS * (HIDDEN + 1)

    def on(self, **mesh: int) -> dict:
        sets = [word for axis in mesh for word in ("--set", f"mesh.{axis}={mesh[axis]}")]
        batch = ("--set", f"train_batch_size={SAMPLES * MICROBATCHES * mesh.get('data', 1)}")
        return self.told(*sets, *batch)

    def assert_sent(self, ranks: list[dict], parts: int, sums: int) -> None:
        """By all of them together: so many parts a microbatch, and sums of norms a step."""
        messages, size = (sum(rank[key] for rank in ranks) for key in ("messages", "message_bytes"))
        self.assertEqual(messages, MICROBATCHES * (parts + self.IN_LOSS) + sums)
        self.assertEqual(
            size, MICROBATCHES * (parts * self.PART_BYTES + self.LOSS_BYTES) + self.NORM_BYTES
        )

    def test_two_ranks_send_what_their_pieces_say(self) -> None:
        for rank in self.on(tensor=2)["ranks"]:
            self.assert_sent([rank], self.PARTS, sums=1)
            self.assertEqual(rank["scalars"], 0)

    def test_stages_hand_over_parts(self) -> None:
        told = self.on(pipe=2, tensor=2)
        self.assertEqual((told["pipe"], told["data"], told["tensor"]), (2, 1, 2))
        there_and_back = 2
        for first in (0, 1):
            both = [told["ranks"][rank] for rank in (first, first + 2)]
            self.assert_sent(both, self.PARTS + there_and_back, sums=2)

    def test_passes_of_a_pair_hide_each_others_exchanges(self) -> None:
        """Ranks wait less for messages than where the same passes run one behind the other."""
        self.write("model/config.json", json.dumps({**LLAMA, **WIDE, "num_hidden_layers": 10}))
        sizes = ("--ranks", 2, "--microbatches", 8, "--format", "csv")
        paired = self.penstock("schedule", "dualpipev", *sizes).out
        pair = re.compile(r"\((\w+);(\w+)\)OVERLAP_F_B")
        self.write("paired.csv", paired)
        self.write("plain.csv", pair.sub(r"\1,\2", paired))
        words = ("--set", "mesh.pipe=2", "--set", "mesh.tensor=4", "--set", "train_batch_size=16",
                 "--set", "model.sequence_length=2048")  # fmt: skip
        waits = {}
        for program in ("paired", "plain"):
            told = self.told(*words, "--set", f"schedule.file={program}.csv")
            waits[program] = sum(rank["message_wait_s"] for rank in told["ranks"])
        self.assertLess(waits["paired"], 0.6 * waits["plain"])

    def test_replicas_sum_gradients_besides(self) -> None:
        one, both = self.on(tensor=2), self.on(tensor=2, data=2)
        self.assertEqual((both["pipe"], both["data"], both["tensor"]), (1, 2, 2))
        self.assertEqual(len(both["ranks"]), 4)
        for rank in both["ranks"]:
            # Of a rank's half of the gradients a half goes to be added, and a half comes back.
            more = rank["message_bytes"] - one["ranks"][0]["message_bytes"]
            self.assertAlmostEqual(more / PARAMETERS, 2 * (1 / 2) * (1 / 2 + 1 / 2), delta=0.01)

    def test_operations_and_memory_are_divided(self) -> None:
        one, two = self.on(tensor=1), self.on(tensor=2)
        found = two["share_of_peak"] * two["step_s"] * H100_PEAK * len(two["ranks"])
        self.assertAlmostEqual(found / operations(), 1.0, places=4)
        for rank in two["ranks"]:
            self.assertLess(rank["peak_bytes"], 0.6 * one["ranks"][0]["peak_bytes"])


if __name__ == "__main__":
    unittest.main()
