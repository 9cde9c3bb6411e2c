"""`config check` said "would start" of what the launcher of `penstock train` then refused: no
batch size, sizes that no number of ranks fits, a schedule that there is not or that does not fit
the mesh, a folder that is missing.  It asks the launcher's own check now.

Random configurations are put to both.  The launcher is a copy that stands alone: what it finds
right ends with the runtime program that it does not find, so nothing is trained.
PENSTOCK_FUZZ_SEED=N replays one, PENSTOCK_FUZZ_CASES=N runs more.
"""

import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CASES = int(os.environ.get("PENSTOCK_FUZZ_CASES", "30"))
ONE = os.environ.get("PENSTOCK_FUZZ_SEED")

# The first two values of each are right by themselves.
KEYS = {
    "model.layers": [2, 0, -1, "x"],
    "model.hidden": [16, 32, 30, 0],
    "model.heads": [4, 2, 3],
    "model.type": ["gpt", "mlp", "rnn"],
    "model.dropout": [0, 0.1, 1],
    "mesh.pipe": [1, 2, 4, 0],
    "mesh.data": [1, None, 3],
    "mesh.context": [1, 1, 2],
    "mesh.tensor": [1, 1, 2, 0],
    "schedule": ["1f1b", "gpipe", "zbv", "interleaved_1f1b", "1f1c", "forward_only", "no.csv"],
    "schedule.stages_per_rank": [1, None, 2, 0],
    "optimizer.type": ["AdamW", "Adam", "SGD", "adam", "Lamb"],
    "optimizer.params.lr": [0.1, 1, -1, "x"],
    "optimizer.params.adam_w_mode": [True, False],
    "optimizer.params.momentum": [0.9, 0, 1],
    "optimizer.params.weight_decay": [0.1, 0, -1],
    "scheduler.type": ["Constant", "WarmupCosineLR", "Foo"],
    "scheduler.params.warmup_num_steps": [2, 0, -1],
    "scheduler.params.total_num_steps": [10, None, 1],
    "pipeline.partition": ["uniform", "parameters", "bounds", "type:Block", "type:(", "best"],
    "pipeline.bounds": [[0, 2, 4], [0, 4], [1, 2], []],
    "pipeline.activation_checkpoint_interval": [1, 0, -1],
    "pipeline.checkpointable_layers": ["Block", "", "("],
    "zero_optimization.stage": [0, 1, 3, 4],
    "zero_optimization.offload_optimizer.device": ["cpu", "none", "nvme"],
    "zero_optimization.offload_optimizer.nvme_path": ["/tmp", "/", "/no/such"],
    "zero_optimization.offload_param.device": ["none", "cpu", "nvme"],
    "bf16.enabled": [True, False, 1],
    "fp16.enabled": [False, True, "true"],
    "fp16.loss_scale": [8, 0, -1],
    "data_types.grad_accum_dtype": ["fp32", None, "bf16"],
    "numerics.invariant": [False, True],
    "data.path": ["/dev/null", "", "/no/such"],
    "data.format": ["auto", "text", "uint8"],
    "data.validation": ["", "/dev/null", "/no/such"],
    "model.vocabulary": [256, 300, 0],
    "steps_per_print": [1, "Infinity", 0],
    "run.steps": [1, 9, 0],
    "launch.transport": ["shm", "auto", "x"],
    "gradient_clipping": [1, 0, -1],
    "prescale_gradients": [False, True],
}
SIZES = [
    {"train_batch_size": 24},
    {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8},
    {"train_batch_size": 24, "gradient_accumulation_steps": 4},
    {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4},
    {"train_batch_size": 7, "gradient_accumulation_steps": 2},
    {"gradient_accumulation_steps": 2},
]


def put(config, path, value):
    *sections, key = path.split(".")
    for section in sections:
        if not isinstance(config.get(section, {}), dict):
            return
        config = config.setdefault(section, {})
    if value is not None:
        config.setdefault(key, value)


def configuration_of(seed):
    draw = random.Random(seed)
    good = draw.random() < 0.75
    config = dict(draw.choice(SIZES[:3] if good else SIZES))
    for path in draw.sample(sorted(KEYS), draw.randint(0, 4)):
        put(config, path, draw.choice(KEYS[path][: 2 if good else None]))
    return config


def complaint(text):
    """The first line of an error, without program, file and place."""
    return re.sub(r"^(penstock: )?(\S+\.json(:\d+:\d+)?: )?", "", text.splitlines()[0])


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return shutil.copy(Path(os.environ["PENSTOCK_BUILD"], "bin", "penstock"), folder)


@pytest.mark.parametrize("seed", [int(ONE)] if ONE else range(CASES))
def test_both_judge_a_configuration_alike(seed, launcher, tmp_path):
    text = json.dumps(configuration_of(seed), indent=1)
    file = tmp_path / "c.json"
    file.write_text(text)
    checked = run(launcher, "config", "check", "--for", "train", "--json", file)
    judgement = json.loads(checked.stdout)["train"]
    started = run(launcher, "train", file, "--run", tmp_path / "run")
    lines = [each for each in started.stderr.splitlines() if "penstock: warning: " not in each]
    starts = "penstock-runtime" in lines[0]
    story = f"seed {seed}\n{text}\ncheck: {checked.stdout}\ntrain: {started.stderr}"
    assert judgement["ok"] is starts, story
    refused = [key["key"] for key in judgement["keys"] if key["verdict"] == "refused"]
    if refused:
        assert refused[0] in complaint(lines[0]) or refused[0].endswith(
            tuple(re.findall(r'unknown key "(\w+)"', lines[0])) or "."
        ), story
    elif not starts:
        assert complaint(judgement["objection"]) == complaint(lines[0]), story
