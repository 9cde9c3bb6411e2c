"""Input that is wrong: the exit code, and that the message says what, where and what is allowed.

Needs the standard library only.
Takes over 10 s: many commands, half of which start ranks.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import unittest
from pathlib import Path

import support
from support import PENSTOCK, ProcessTest

SOON = 60  # Seconds: no rank was waited for, which lasts startup_seconds, 300, or as a test says.

# A text, and what the error has to say about it.
CONFIGS = {
    "empty": ("", r":1:1: the text is empty"),
    "cut": ('{"seed": 1', r":1:11: unexpected end of input"),
    "list": ("[]", r":1:1: the config: expected an object, found a list"),
    "trailing comma": ('{"seed": 1,}', r":1:11: trailing comma"),
    "no comma": ('{"seed": 1 "steps_per_print": 1}', r":1:12: .*expected ',' or '}'"),
    "single quotes": ("{'seed': 1}", r":1:2: a string takes double quotes"),
    "text after the end": ('{"seed": 1} x', r":1:13: unexpected \"x\""),
    "byte order mark": ("\ufeff{}", r":1:1: the file starts with a byte order mark"),
    "not UTF-8": (b'{"data": {"path": "\xff"}}', r":1:\d+: .*UTF-8"),
    "not a number": ('{"gradient_clipping": NaN}', r":1:23: JSON has no number NaN"),
    "key twice": ('{"seed": 1, "seed": 2}', r':1:13: duplicate key "seed"'),
    "misspelt key": ('{"train_batch_sise": 8}', r':1:2: .*did you mean "train_batch_size"\?'),
    "misspelt inner key": (
        '{"model": {\n "layer": 2}}',
        r':2:2: unknown key "layer" in model; did you mean "layers"\?',
    ),
    "misspelt DeepSpeed key": (
        '{"activation_checkpointng": {}}',
        r'did you mean "activation_checkpointing"\?',
    ),
    "key in the wrong place": ('{"lr": 1}', r':1:2: .*did you mean "optimizer.params.lr"\?'),
    "text for a number": (
        '{"train_batch_size": "8"}',
        r':1:22: train_batch_size: expected an integer, found "8"',
    ),
    "true for a number": ('{"seed": true}', r":1:10: seed: expected an integer, found true"),
    "fraction": ('{"model": {"layers": 1.5}}', r"model.layers: expected an integer, found 1.5"),
    "zero": ('{"train_batch_size": 0}', r"train_batch_size = 0: must be in \[1, \d+\]"),
    "negative": (
        '{"optimizer": {"params": {"lr": -1}}}',
        r"optimizer.params.lr = -1: must be at least 0",
    ),
    "too large": (
        '{"seed": 99999999999999999999}',
        r"seed = 9+: must be at most 9223372036854775807",
    ),
    "unknown choice": (
        '{"optimizer": {"type": "Adm"}}',
        r'= "Adm": expected "AdamW", "Adam" or "SGD"',
    ),
    "short list": ('{"optimizer": {"params": {"betas": [0.9]}}}', r"expected a list of 2 numbers"),
    "heads": (
        '{"model": {"hidden": 30, "heads": 4}}',
        r"must divide model.hidden = 30; use 3 or 5",
    ),
    "bad expression": ('{"pipeline": {"partition": "type:("}}', r"not a regular expression"),
    "no batch size": ("{}", r"gives no batch size: set train_batch_size"),
}


class BadInputTest(ProcessTest):
    def assert_refused(self, result: support.Result, pattern: str, code: int = 2) -> None:
        """One error, in words, and nothing left behind."""
        self.assert_code(result, code)
        self.assertRegex(result.err, pattern)
        causes = support.root_causes(result.err)
        self.assertEqual(len(causes), 1, f"one line that says why, in:\n{result.err}")
        for noise in ("terminate called", "Exception raised from", "frame #", "/__w/", "[W", "[E"):
            self.assertNotIn(noise, result.err)
        self.assertLess(len(result.err), 2500, "short enough to be read")
        self.assert_nothing_left()

    def refuse(self, pattern: str, *words: object, code: int = 2, **changes: object) -> None:
        self.assert_refused(self.train(self.config(**changes), *words), pattern, code)


class Configs(BadInputTest):
    def test_missing(self) -> None:
        result = self.train(Path("nowhere.json"))
        self.assert_refused(result, r'config "nowhere.json": cannot be read: No such file')

    def test_a_pipe_that_nobody_writes_to(self) -> None:
        os.mkfifo(self.folder / "pipe")
        result = self.train(self.folder / "pipe")
        self.assert_refused(result, r'config ".*pipe": cannot be read: a pipe that nobody writes')

    def test_a_directory(self) -> None:
        self.assert_refused(self.train(self.temporary), r": cannot be read: Is a directory")

    def test_malformed_or_misspelt(self) -> None:
        for name, (text, pattern) in CONFIGS.items():
            with self.subTest(name):
                path = self.folder / "bad.json"
                path.write_bytes(text if isinstance(text, bytes) else text.encode())
                result = self.train(path)
                self.assert_refused(result, pattern)
                self.assertIn("bad.json", result.err)
                self.assertLess(result.seconds, SOON, "said before anything is started")

    def test_overrides(self) -> None:
        self.refuse(r'model.layes=3: .*did you mean "model.layers"\?', "--set", "model.layes=3")
        self.refuse(r"expected KEY=VALUE, for example", "--set", "model.layers")
        both = r'unknown key "barr"\n  note: --set fooo=1: unknown key "fooo"'
        self.refuse(both, "--set", "fooo=1", "--set", "barr=2")
        self.refuse(r"--steps: run.steps = 0: must be in \[1,", "--steps", 0)


class Data(BadInputTest):
    def test_missing(self) -> None:
        self.refuse(
            r'data path "no.txt" does not exist \(looked at /.*/no.txt\)', "--data", "no.txt"
        )

    def test_empty_directory(self) -> None:
        (self.folder / "none").mkdir()
        self.refuse(r'data path "none" holds no text\n.*give a text file', "--data", "none")

    def test_smaller_than_a_batch(self) -> None:
        self.text.write_text("a few words\n")
        self.refuse(
            r"is too small: 12 bytes of training text in 1 file, needs 129\n.*train_batch_size 8 x "
            r"model.sequence_length 16",
            *("--run", "small"),
        )
        self.assertFalse((self.folder / "small").exists(), "nothing was written")

    def test_unreadable(self) -> None:
        # Root may read every file; this one, nobody.
        self.refuse(r'"/proc/1/mem": cannot be read: ', "--data", "/proc/1/mem")

    def test_every_rank_finds_the_same(self) -> None:
        self.text.write_text("")
        result = self.train(self.config())
        self.assert_refused(result, "holds no text")
        self.assertEqual(result.err.count("holds no text"), 1, result.err)


class Offload(BadInputTest):
    def refuse_folder(
        self, pattern: str, section: str = "offload_optimizer", **values: object
    ) -> support.Result:
        zero = {"stage": 3, section: {"device": "nvme", **values}}
        result = self.train(self.config(zero_optimization=zero))
        self.assert_refused(result, pattern)
        return result

    def test_before_a_rank_is_started(self) -> None:
        for pattern, values in (
            (r"nvme_path is missing: device \"nvme\" needs the folder", {}),
            (r'nvme_path: there is no folder "none"', {"nvme_path": "none"}),
        ):
            for section in ("offload_optimizer", "offload_param"):
                message = rf"zero_optimization\.{section}\.{pattern}"
                self.assertLess(self.refuse_folder(message, section, **values).seconds, SOON)

    def test_a_folder_in_which_ranks_can_make_no_file(self) -> None:
        pattern = r': cannot make a file in the folder "/proc": .*\n.*may write to'
        self.refuse_folder("optimizer states" + pattern, nvme_path="/proc")
        self.refuse_folder("parameters" + pattern, "offload_param", nvme_path="/proc")

    def test_of_parameters_that_are_always_whole(self) -> None:
        zero = {"stage": 2, "offload_param": {"device": "nvme", "nvme_path": "."}}
        self.assert_refused(
            self.train(self.config(zero_optimization=zero)),
            r'offload_param\.device = "nvme": needs zero_optimization\.stage 3, and not 2',
        )


class Sizes(BadInputTest):
    def test_world_size_that_the_mesh_does_not_divide(self) -> None:
        self.refuse(r"world size 3 != mesh.pipe 2 x mesh.data 2; use 4 processes", "--nproc", 3)
        self.refuse(r"world size 3 .*mesh.pipe 2", "--nproc", 3, mesh={"data": None})

    def test_world_size_under_another_launcher(self) -> None:
        variables = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
        result = self.train(self.config(), **variables, MASTER_PORT="29533")
        self.assert_refused(result, r"world size 3 != mesh.pipe 2 x mesh.data 2")
        self.assertLess(result.seconds, SOON, "waits for no other rank")

    def test_more_stages_than_layers(self) -> None:
        self.refuse(
            r"cannot cut 3 layers into 4 stages: .*use 1 to 3 stages",
            mesh={"pipe": 4, "data": 1},
            model={"layers": 1},
        )

    def test_microbatches_that_do_not_divide_the_batch(self) -> None:
        self.refuse(
            r"train_batch_size 8 != .*_per_gpu 1 x gradient_accumulation_steps 3 x data 2.*\n"
            r"  note: train_batch_size 6 works",
            gradient_accumulation_steps=3,
        )
        self.refuse(
            r"train_batch_size 9 is not a multiple of train_micro_batch_size_per_gpu 1 x data 2",
            train_batch_size=9,
        )

    def test_nproc(self) -> None:
        for number in (0, "x", 2.5):
            pattern = rf'--nproc: expected an integer from 1 to 4096, found "{number}"'
            self.refuse(pattern, "--nproc", number)
        ranks = r"mesh.pipe 2 x mesh.data 5000 are more ranks than one machine starts \(4096\)"
        self.refuse(ranks, "--set", "mesh.data=5000", "--run", "many")


class Schedules(BadInputTest):
    def test_unknown_name(self) -> None:
        self.refuse(r'"1f1c"; did you mean "1f1b"\?\n.*gpipe, 1f1b', schedule={"name": "1f1c"})

    def file(self, text: str, pattern: str) -> None:
        (self.folder / "order.csv").write_text(text)
        self.refuse(pattern, schedule={"file": "order.csv"})

    def test_file_that_is_not_there(self) -> None:
        self.refuse(r'"no.csv": cannot be read: No such file', schedule={"file": "no.csv"})

    def test_file_of_garbage(self) -> None:
        self.file("0F0,water\n1F0,1B0\n", r'order.csv:1:5: .*"water"')

    def test_file_with_a_wrong_number_of_rows(self) -> None:
        cells = ",".join(f"0{op}{m}" for op in "FB" for m in range(4))
        self.file(f"{cells}\n", r'schedule file "order.csv" has 1 rows?, the mesh has 2')

    def test_what_cannot_train_starts_no_rank(self) -> None:
        no_backward = r"schedule forward_only has no backward: it cannot train"
        result = self.train(self.config(), "--set", "schedule=forward_only", "--run", "none")
        self.assert_refused(result, no_backward)
        self.assertFalse((self.folder / "none").exists(), "said before anything is made")

    def test_file_in_an_impossible_order(self) -> None:
        cells = ",".join(f"0{op}{m}" for op in "FB" for m in range(4))
        last = ",".join(f"1{op}{m}" for op in "BF" for m in range(4))
        self.file(f"{cells}\n{last}\n", r"1B0 .*\[S\d+\]")


class Environment(BadInputTest):
    def test_a_device_that_is_not_there(self) -> None:
        torch = os.environ["PENSTOCK_TORCH_PYTHON"]
        has_cuda = subprocess.run([torch, "-c", "import torch; assert torch.cuda.is_available()"],
                                  capture_output=True).returncode == 0  # fmt: skip
        if has_cuda:
            self.skipTest("there is a CUDA device")
        result = self.train(self.config(launch={"device": "cuda"}))
        self.assert_refused(
            result, r"launch.device = cuda: torch [\w.+]+ (is built without|sees no)"
        )
        self.assertIn("launch.device = auto", result.err)

    def test_port_taken(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            holder = rf"port {port} on 127.0.0.1 is taken by process \d+ \(python3?"
            self.refuse(holder, "--master-port", port)
            variables = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
            result = self.train(self.config(), **variables, MASTER_PORT=str(port))
            self.assert_refused(result, holder)

    def refuse_variables(self, pattern: str, *words: object, **variables: str) -> None:
        result = self.train(self.config(), *words, **variables)
        self.assert_refused(result, pattern)
        self.assertLess(result.seconds, SOON)

    def test_rank_variables_that_contradict_each_other(self) -> None:
        self.refuse_variables(r"WORLD_SIZE is not set\n  note: found RANK=1", RANK="1")
        self.refuse_variables(r"RANK is not set", WORLD_SIZE="4")
        self.refuse_variables(
            r"RANK=5 of WORLD_SIZE=4: ranks go from 0 to 3", RANK="5", WORLD_SIZE="4"
        )
        self.refuse_variables(r"MASTER_PORT=999999: must be", **hand(MASTER_PORT="999999"))
        self.refuse_variables(
            r"--nproc 4 is for starting ranks, but this process is rank 0 of 4 already",
            "--nproc",
            4,
            **hand(),
        )

    def test_a_port_where_another_launcher_chose_one(self) -> None:
        pattern = r"--master-port 1234 is for starting ranks, .*\n.*leave --master-port out"
        self.refuse_variables(pattern, "--master-port", 1234, **hand())

    def test_ranks_that_never_come(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = self.config(launch={"startup_seconds": 2})
        result = self.train(config, "--run", "alone", **hand(MASTER_PORT=str(port)))
        pattern = rf"waited 2 s at 127.0.0.1:{port} for ranks 1, 2, 3 of 4"
        self.assert_refused(result, pattern, code=4)
        self.assertLess(result.seconds, SOON)

    def test_a_stranger_at_the_master_port(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            port = silent.getsockname()[1]
            config = self.config(launch={"startup_seconds": 2})
            variables = hand(RANK="1", MASTER_PORT=str(port))
            result = self.train(config, "--run", "strange", **variables)
        self.assert_refused(
            result, rf"rank 1 could not reach the store at 127.0.0.1:{port}: .*", code=4
        )
        self.assertLess(result.seconds, SOON)

    def test_no_runtime_program(self) -> None:
        alone = self.folder / "bin" / "penstock"
        alone.parent.mkdir()
        alone.write_bytes(PENSTOCK.read_bytes())
        alone.chmod(0o755)
        result = self.run_words(alone, "train", self.config())
        missing = r'cannot find ".*/libexec/penstock-runtime", .*torch\n.*build it with `make`'
        self.assert_refused(result, missing, code=1)


def hand(**changes: str) -> dict[str, str]:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29534"}
    return {"RANK": "0", "WORLD_SIZE": "4", **address, **changes}


class Folders(BadInputTest):
    """Root ignores permissions, so these are folders that nobody can make or write to."""

    def test_run_directory_under_a_file(self) -> None:
        under = self.text / "run"
        self.refuse(
            r'make the run directory ".*/text.txt/run": Not a dir.*\n.*--run', "--run", under
        )

    def test_where_no_rank_starts_no_folder_is_left(self) -> None:
        self.refuse(r'host "localhost": must be an IPv4', "--host", "localhost", "--run", "a/b")
        self.assertFalse((self.folder / "a").exists())
        (self.folder / "mine").mkdir()
        self.refuse(r'"localhost"', "--host", "localhost", "--run", "mine", "--save", "weights")
        self.assertTrue((self.folder / "mine").exists(), "it was there")
        self.assertFalse((self.folder / "weights").exists())

    def test_run_directory_that_takes_no_files(self) -> None:
        self.refuse(r'cannot write to the run directory "/proc/1": ', "--run", "/proc/1")

    def test_folder_for_weights_is_tried_before_training(self) -> None:
        result = self.train(self.config(), "--save", self.text / "weights")
        self.assert_refused(result, r'make the folder for the weights ".*Not a dir.*\n.*--save')
        self.assertNotIn("step 1", result.err)


class Numerics(BadInputTest):
    def test_loss_that_is_not_finite(self) -> None:
        config = self.config(run={"steps": 50}, optimizer={"params": {"lr": 1e30}})
        result = self.train(config, "--run", "nan")
        self.assert_code(result, 6)
        causes = support.root_causes(result.err)
        self.assertEqual(len(causes), 1, result.err)
        self.assertRegex(causes[0], r"step 2: the loss of 8 of 8 microbatches is not finite")
        self.assertRegex(result.err, r"note: lower optimizer.params.lr, or set gradient_clipping")
        self.assertRegex(result.err, r"note: 3 other ranks reported the same")
        self.assertEqual(len(support.raw_lines(self.folder / "nan")), 1, "the step before is kept")
        self.assert_nothing_left()


class CommandLine(BadInputTest):
    def refuse_words(self, pattern: str, *words: object) -> None:
        self.assert_refused(self.run_words(PENSTOCK, *words), pattern)

    def test_unknown_words(self) -> None:
        self.refuse_words(
            r"which command\? there are train, evaluate, generate, launch, run, schedule"
        )
        self.refuse_words(r'unknown command "rain"; did you mean "train"\?', "rain", "a.json")
        self.refuse_words(r'"--stepz"; did you mean "--steps"\?', "train", "a.json", "--stepz", 3)
        self.refuse_words(r'unexpected word "b.json"', "train", "a.json", "b.json")
        self.refuse_words(r'unexpected word "b" after --', "train", "a.json", "--", "b")
        self.refuse_words(r"--steps needs a value", "train", "a.json", "--steps")
        self.refuse_words(r"config is required", "train")

    def test_launch(self) -> None:
        self.refuse_words(r"no program to launch\n.*comes after --", "launch", "--nproc", 2)
        self.refuse_words(r'"nowhere": no such program', "launch", "--nproc", 2, "--", "nowhere")
        integer = r'--nproc: expected an integer from 1 to 4096, found "-1"'
        self.refuse_words(integer, "launch", "--nproc", "-1", "--", "true")
        beat = ("launch", "--nproc", 1, "--heartbeat", "2e9", "--", "true")
        self.refuse_words(r"--heartbeat 2e\+09: must be above 0 and at most 1e\+09", *beat)

    def test_schedule(self) -> None:
        sizes = ("--ranks", 2, "--microbatches", 3)
        self.refuse_words(r'"1f1c"; did you mean "1f1b"\?', "schedule", "1f1c", *sizes)
        self.refuse_words(r"NAME is required with --ranks", "schedule", *sizes)
        self.refuse_words(r"--ranks is required", "schedule", "1f1b", "--microbatches", 3)
        self.refuse_words(r"--microbatches is required", "schedule", "zbv", "--ranks", 2)
        self.refuse_words(r"sizes that work: microbatches=4", "schedule", "dualpipev", *sizes)
        self.refuse_words(r"--format: xml not in", "schedule", "1f1b", *sizes, "--format", "xml")
        self.refuse_words(
            r'cannot write "/proc/1/x"', "schedule", "1f1b", *sizes, "-o", "/proc/1/x"
        )


class Output(ProcessTest):
    def piped_to_head(self, *words: object) -> tuple[int, str]:
        """The exit code and stderr of a program whose reader goes after the first line."""
        program = subprocess.Popen(
            [str(word) for word in words],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        program.stdout.readline()
        program.stdout.close()
        err = program.stderr.read().decode(errors="replace")
        program.stderr.close()
        return program.wait(support.PATIENCE), err

    def test_closed_stdout_of_a_schedule(self) -> None:
        # Far more than a pipe holds.
        sizes = ("--ranks", 64, "--microbatches", 512)
        code, err = self.piped_to_head(PENSTOCK, "schedule", "1f1b", *sizes)
        self.assertIn(code, (0, 1, -13), err)
        self.assertNotIn("terminate", err)

    def test_closed_stdout_of_a_run(self) -> None:
        code, err = self.piped_to_head(PENSTOCK, "train", self.config(), "--run", "piped")
        self.assertEqual(code, 0, err)
        self.assertTrue(re.search(r"step 5/5 ", err))
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main(verbosity=2)
