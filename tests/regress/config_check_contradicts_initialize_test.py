"""`config check --for initialize` said "would start" of what initialize() refused: Adam with a
weight decay, a scheduler of no such class, an argument that the class lacks.  They had two tables.

Random configurations are put to both, as files and as dicts.  A failure prints the seed and the
text; PENSTOCK_FUZZ_SEED=N replays one, PENSTOCK_FUZZ_CASES=N runs more.
"""

import contextlib
import inspect
import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest
import torch

import penstock
from penstock import _planning, lr_schedules
from penstock.pipe import PipelineModule

PENSTOCK = Path(os.environ["PENSTOCK_BUILD"], "bin", "penstock")
CASES = int(os.environ.get("PENSTOCK_FUZZ_CASES", "30"))
ONE = os.environ.get("PENSTOCK_FUZZ_SEED")

FLAGS = [True, False, "auto", None, 1, "yes"]
NUMBERS = [0, 0.5, 1e-3, 2, -1, "0.1", True, None, [1]]
SIZES = [0, 1, 5e8, 1000, 2.5, -3, "auto", None, "many"]
KEYS = {
    "steps_per_print": [1, 0, 2000, "Infinity", -1, 1.5, "auto", None, True],
    "gradient_clipping": [*NUMBERS, "auto"],
    "dataloader_drop_last": FLAGS,
    "wall_clock_breakdown": [False, True],
    "prescale_gradients": [False, True],
    "communication_data_type": [None, "fp32", "fp16"],
    "zero_optimization.stage": [0, 1, 2, 3, 3, 4, -1, "2", "auto", True],
    "zero_optimization.reduce_bucket_size": SIZES,
    "zero_optimization.stage3_max_live_parameters": SIZES,
    "zero_optimization.stage3_param_persistence_threshold": SIZES,
    "zero_optimization.overlap_comm": FLAGS,
    "zero_optimization.contiguous_gradients": FLAGS,
    "zero_optimization.offload_optimizer.device": ["none", "cpu", "nvme", "tape", None],
    "zero_optimization.offload_param.device": ["none", "cpu", "nvme"],
    "zero_optimization.overlap_com": [True],
    "zero_optimization": ["auto", 3],
    "fp16.enabled": FLAGS,
    "fp16.loss_scale": [0, 128, -1, "auto", "0"],
    "fp16.initial_scale_power": [16, 0, 200, 1.5, "auto"],
    "fp16.loss_scale_window": [1000, 0],
    "fp16.hysteresis": [2, 0],
    "fp16.min_loss_scale": [1, 0],
    "bf16.enabled": FLAGS,
    "bf16.bf16_master_weights_and_grads": [False, True],
    "data_types.grad_accum_dtype": [None, "fp32", "bf16"],
    "pipeline.stages": ["auto", 1],
    "pipeline.partition": ["best", "uniform"],
    "pipeline.activation_checkpoint_interval": [0, 1, 2, -1, "1"],
    "schedule": ["1f1b", "gpipe", "ScheduleGPipe", "1f1c", "forward_only", 3],
    "schedule.stages_per_rank": [1, 0, "two"],
    "activation_checkpointing.partition_activations": [False, True],
    "checkpoint.tag_validation": ["Warn", "Fail"],
    "tensorboard.enabled": [False, True, 1],
    "csv_monitor.job_name": ["a", None, 1],
    "wandb.team": ["a", None, ""],
    "comet.enabled": [False, True],
    "flops_profiler.enabled": [False, True],
    "seed": [1],
    "optimiser": [{}],
    "data_types": [1],
}
OPTIMIZERS = ["Adam", "adam", "AdamW", "SGD", "sgd", "Adagrad", "RMSprop", "NAdam", "RAdam", "ASGD"]
OPTIMIZERS += [
    "Adadelta",
    "Adamax",
    "Rprop",
    "Adafactor",
    "LBFGS",
    "SparseAdam",
    "Lamb",
    "OneBitAdam",
]
OPTIMIZERS += ["Foo", "Optimizer", "_Adam", 3, "", None, "auto"]
OPTIMIZER_PARAMS = {
    "lr": NUMBERS,
    "weight_decay": NUMBERS,
    "betas": [[0.9, 0.999], [0.9], [0, 1], 0.9, [0.9, "x"]],
    "eps": [1e-8, -1],
    "momentum": [0, 0.9, 1.5, -1],
    "nesterov": [True, False],
    "dampening": [0, 0.5],
    "adam_w_mode": [True, False, "no"],
    "torch_adam": [True, False],
    "bias_correction": [True, False],
    "amsgrad": [True, False, 1],
    "fused": [True, None],
    "foreach": [True, None, "x"],
    "capturable": [False, True],
    "differentiable": [False, True],
    "max_grad_norm": [1],
    "rho": [0.9, 2],
    "etas": [[0.5, 1.2], [1.5, 2]],
    "beta": [1],
}
SCHEDULERS = {
    "WarmupLR": ["warmup_num_steps", "warmup_type", "warmup_max_lr", "warmup_min_lr"],
    "WarmupDecayLR": ["total_num_steps", "warmup_num_steps"],
    "WarmupCosineLR": ["total_num_steps", "cos_min_ratio", "warmup_min_ratio"],
    "LRRangeTest": ["lr_range_test_step_size", "lr_range_test_staircase"],
    "StepLR": ["step_size", "gamma"],
    "MultiStepLR": ["milestones", "gamma"],
    "ExponentialLR": ["gamma"],
    "LinearLR": ["start_factor", "total_iters"],
    "ConstantLR": ["factor"],
    "PolynomialLR": ["power", "total_iters"],
    "CosineAnnealingLR": ["T_max", "eta_min"],
    "CosineAnnealingWarmRestarts": ["T_0", "T_mult"],
    "OneCycleLR": [
        "max_lr",
        "total_steps",
        "epochs",
        "steps_per_epoch",
        "pct_start",
        "cycle_momentum",
    ],
    "CyclicLR": ["base_lr", "max_lr", "cycle_momentum", "mode"],
    "LambdaLR": ["lr_lambda"],
    "ReduceLROnPlateau": ["mode"],
    "Foo": [],
    "Tensor": [],
    "_LRScheduler": [],
}
SCHEDULER_VALUES = [10, 1e1, 0.5, 0, -1, 1, True, False, "log", "cycle", [2, 4], None, "triangular"]
SIZES_OF_BATCHES = [
    {"train_batch_size": 4},
    {"train_batch_size": 4, "gradient_accumulation_steps": 2},
    {"train_micro_batch_size_per_gpu": 2},
    {"train_batch_size": 4, "train_micro_batch_size_per_gpu": "auto"},
    {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
    {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4},
    {"gradient_accumulation_steps": 2},
    {"train_batch_size": 0},
    {"train_batch_size": "8"},
]


def put(config, path, value):
    *sections, key = path.split(".")
    for section in sections:
        if not isinstance(config.get(section, {}), dict):
            return
        config = config.setdefault(section, {})
    config.setdefault(key, value)


def configuration_of(seed):
    draw = random.Random(seed)
    good = draw.random() < 0.7
    config = dict(draw.choice(SIZES_OF_BATCHES[:5] if good else SIZES_OF_BATCHES))
    for path in draw.sample(sorted(KEYS), draw.randint(0, 4)):
        values = KEYS[path]
        put(config, path, draw.choice(values[:2] if draw.random() < 0.7 else values))
    if draw.random() < 0.85:
        section = {"type": draw.choice(OPTIMIZERS[:10] if good else OPTIMIZERS)}
        for name in draw.sample(sorted(OPTIMIZER_PARAMS), draw.randint(0, 3)):
            values = OPTIMIZER_PARAMS[name]
            put(section, f"params.{name}", draw.choice(values[:2] if good else values))
        put(config, "optimizer", section)
    if draw.random() < 0.5:
        kind = draw.choice(sorted(SCHEDULERS))
        section = {"type": kind}
        for name in SCHEDULERS[kind]:
            if draw.random() < 0.8:
                put(section, f"params.{name}", draw.choice(SCHEDULER_VALUES[: 2 if good else None]))
        put(config, "scheduler", section)
    return config


def first_key(text):
    """The key that a complaint names first."""
    text = re.sub(r"^.*?(\.json|config)(:\d+:\d+)?: ", "", text)
    unknown = re.match(r'unknown key "([^"]+)"(?: in ([\w.]+))?', text)
    if unknown:
        return f"{unknown[2]}.{unknown[1]}" if unknown[2] else unknown[1]
    return re.match(r"[\w.]+", text)[0]


def judged_by_check(file):
    result = subprocess.run(
        [PENSTOCK, "config", "check", "--for", "initialize", "--json", file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    judgement = json.loads(result.stdout)["initialize"]
    assert judgement["ok"] is (result.returncode == 0), result
    if judgement["ok"]:
        return "starts"
    refused = [key["key"] for key in judgement["keys"] if key["verdict"] == "refused"]
    return refused[0] if refused else first_key(judgement["objection"])


def judged_by_initialize(config, is_pipeline):
    layers = [torch.nn.Linear(2, 2) for _ in range(4)]
    if is_pipeline:
        model = PipelineModule(layers, num_stages=1, loss_fn=torch.nn.functional.mse_loss)
    else:
        model = torch.nn.Sequential(*layers)
    try:
        engine, optimizer, _, _ = penstock.initialize(model=model, config=config)
    except penstock.ConfigError as error:
        return first_key(str(error).splitlines()[0])
    if optimizer is not None and not is_pipeline:
        # What starts also steps.
        inputs = torch.ones(2, 2).to(next(model.parameters()).dtype)
        for _ in range(engine.gradient_accumulation_steps()):
            engine.backward(engine(inputs).float().square().mean())
            engine.step()
    return "starts"


SEEDS = [int(ONE)] if ONE else range(CASES)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_judge_a_configuration_alike(seed, tmp_path):
    config = configuration_of(seed)
    text = json.dumps(config, indent=1)
    file = tmp_path / "ds.json"
    file.write_text(text)
    by_check = judged_by_check(str(file))
    for given in (str(file), config):
        by_initialize = judged_by_initialize(given, is_pipeline=seed % 2 == 1)
        same = by_check == by_initialize
        if isinstance(given, dict):  # Without places, problems are in the table's order.
            same = (by_check == "starts") is (by_initialize == "starts")
        assert same, f"seed {seed}: config check: {by_check}, initialize: {by_initialize}\n{text}"


def test_the_fuzz_has_both_verdicts_and_many_keys():
    kept = [configuration_of(seed) for seed in range(200)]
    assert len({key for config in kept for key in config}) > 15


def reads(section, name, params):
    _planning.parse_configuration(json.dumps({section: {"type": name, "params": params}}), False)


# Arguments that are for a script to give, not for a configuration.
OF_SCRIPTS = {"self", "params", "optimizer", "scale_fn", "scale_mode", "decoupled_weight_decay"}


def defaults_of(kind):
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {
        each.name: each.default
        for each in parameters
        if each.name not in OF_SCRIPTS and each.default is not inspect.Parameter.empty
    }


def classes_of(module, base):
    for name, kind in vars(module).items():
        is_kind = isinstance(kind, type) and issubclass(kind, base) and kind is not base
        if is_kind and not name.startswith("_"):
            yield name, kind


def test_the_table_knows_every_class_and_argument_of_torch_and_penstock():
    schedulers = dict(classes_of(torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler))
    schedulers |= {name: getattr(lr_schedules, name) for name in lr_schedules.__all__}
    optimizers = dict(classes_of(torch.optim, torch.optim.Optimizer))
    needed = {
        "T_max": 1, "T_0": 1, "gamma": 1, "step_size": 1, "milestones": [1], "total_num_steps": 9,
        "base_lr": 0, "max_lr": 1, "cycle_min_lr": 0, "cycle_max_lr": 1,
    }  # fmt: skip
    taken = 0
    for section, classes in (("optimizer", optimizers), ("scheduler", schedulers)):
        for name, kind in classes.items():
            names = inspect.signature(kind.__init__).parameters
            params = {key: value for key, value in needed.items() if key in names}
            if section == "scheduler" and name == "OneCycleLR":
                params["total_steps"] = 9
            try:
                reads(section, name, params)
            except penstock.ConfigError as error:
                assert "must be" not in str(error), f"{name} is not in the table"
                continue
            for argument, default in defaults_of(kind).items():
                if (name, argument) in {("Adafactor", "eps"), ("OneCycleLR", "total_steps")}:
                    continue
                reads(section, name, {**params, argument: default})
                taken += 1
            with pytest.raises(penstock.ConfigError, match=f"{name} has no such argument"):
                reads(section, name, {**params, "no_such": 1})
    assert taken > 100


@contextlib.contextmanager
def said(words):
    with pytest.raises(penstock.ConfigError) as caught:
        yield
    assert words in str(caught.value), caught.value


def test_what_fails_is_said_with_the_key():
    for words, section, name, params in [
        ('optimizer.type = "Foo": must be Adam, AdamW, SGD', "optimizer", "Foo", {}),
        ('scheduler.type = "Foo": must be WarmupLR', "scheduler", "Foo", {}),
        ("optimizer.params.betas: SGD has no such argument", "optimizer", "SGD", {"betas": [0, 0]}),
        ("params.nesterov = true: needs momentum", "optimizer", "SGD", {"nesterov": True}),
        ("scheduler.params.step_size is missing", "scheduler", "StepLR", {}),
        ("scheduler.params.T_0 = 0: must be at least 1", "scheduler",
         "CosineAnnealingWarmRestarts", {"T_0": 0}),
    ]:  # fmt: skip
        with said(words):
            reads(section, name, params)
