"""What becomes of each name of torch.distributed.pipelining and DeepSpeed, and who says so."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import penstock
from penstock._compatibility import fate, modules
from penstock._swap.script_names import uses_in
from penstock.pipelining import PipelineStage, ScheduleInterleaved1F1B
from penstock.pipelining import pipeline as pipeline_of

ROOT = Path(__file__).parents[3]
VERDICTS = {"works", "differs", "refused"}
NAMED = [(module, name) for module, each in modules().items() for name in each.names]
MEMBERS = [(module, name) for module, name in NAMED if "." in name]


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """By the peers' names of their classes."""
    config = {"train_batch_size": 1, "optimizer": {"type": "Adam"}}
    engine, *_ = penstock.initialize(model=torch.nn.Linear(2, 2), config=config)
    model = penstock.pipe.PipelineModule([torch.nn.Tanh()], num_stages=1, loss_fn=torch.sum)
    pipeline, *_ = penstock.initialize(model=model, config={"train_batch_size": 1})
    if not dist.is_initialized():
        store = f"file://{tmp_path_factory.mktemp('group')}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    stage = PipelineStage(torch.nn.Linear(2, 2), 0, 1, torch.device("cpu"))
    yield {
        "DeepSpeedEngine": engine,
        "PipelineEngine": pipeline,
        "PipelineStage": stage,
        "_PipelineSchedule": ScheduleInterleaved1F1B([stage], 2),
        "Pipe": pipeline_of(torch.nn.Linear(2, 2), (torch.zeros(1, 2),)),
    }
    engine.destroy()


def _here(module):
    return importlib.import_module(modules()[module].instead)


@pytest.mark.parametrize(("module", "name"), [each for each in NAMED if each not in MEMBERS])
def test_a_name_is_there_or_says_why_not(module, name):
    found = fate(module, name)
    assert found.verdict in VERDICTS
    if found.is_late:
        kind = getattr(_here(module), name)
        assert not isinstance(torch.nn.Linear(1, 1), kind)
        with pytest.raises(penstock.ConfigError, match=re.escape(found.note)):
            kind(3, a=4)
    elif found.verdict == "refused":
        assert not hasattr(_here(module), name)
        with pytest.raises(AttributeError, match=re.escape(f"penstock has no {name}: ")) as error:
            getattr(_here(module), name)
        assert any(
            str(error.value).endswith(fate(each, name).note)
            for each, of in modules().items()
            if of.instead == modules()[module].instead
        )
        with pytest.raises(ImportError) as imported:
            exec(f"from {modules()[module].instead} import {name}", {})
        assert str(imported.value) == str(error.value)
    else:
        # As an import statement finds it: a submodule may not be an attribute yet.
        namespace = {}
        exec(f"from {modules()[module].instead} import {name} as found", namespace)
        assert namespace["found"] is not None


@pytest.mark.parametrize(("module", "name"), MEMBERS)
def test_a_member_is_there_or_says_why_not(module, name, objects):
    owner, _, member = name.partition(".")
    found = fate(module, name)
    if found.verdict == "refused":
        assert not hasattr(objects[owner], member)
        with pytest.raises(AttributeError, match=re.escape(f"{owner} has no {member}: ")) as error:
            getattr(objects[owner], member)
        assert str(error.value).endswith(found.note)
    else:
        assert hasattr(objects[owner], member)


def test_a_pipelines_engine_has_the_members_of_the_other_one():
    of = "deepspeed.runtime.pipe.engine", "deepspeed.runtime.engine"
    mine, base = (fate(of[0], f"PipelineEngine.{name}") for name in ("mpu", "autotuning_metric"))
    assert mine.verdict == "refused"  # Its own row goes first.
    assert fate(of[1], "DeepSpeedEngine.mpu").verdict == "works"
    assert base == fate(of[1], "DeepSpeedEngine.autotuning_metric")
    assert base.verdict == "refused"
    assert fate(of[0], "PipelineEngine.nothing").verdict == "unknown"


def test_the_table_has_all_public_names_of_this_torch():
    for theirs in modules():
        if not theirs.startswith("torch.") or modules()[theirs].instead is None:
            continue
        module = importlib.import_module(theirs)
        own = {
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == theirs
        }
        for name in own | set(getattr(module, "__all__", [])):
            assert fate(theirs, name).verdict in VERDICTS, (theirs, name)


def test_the_table_names_nothing_that_this_torch_lacks():
    for module, name in NAMED:
        if not module.startswith("torch."):
            continue
        owner, _, member = name.rpartition(".")
        theirs = importlib.import_module(module)
        if owner:
            # A member that an object gets when it is made is a word of the module.
            assert re.search(rf"\b{member}\b", inspect.getsource(theirs)), (module, name)
            assert hasattr(theirs, owner), (module, name)
        else:
            assert hasattr(theirs, name), (module, name)


def test_what_is_refused_says_what_to_do():
    for name, module in modules().items():
        notes = [each.note for each in module.names.values() if each.verdict != "works"]
        if module.instead is None:
            assert module.rest.note, name
        assert all(len(note) > 8 and not note.endswith(".") for note in notes), name


def test_the_page_is_what_the_table_says():
    tool = ROOT / "tools/python/compatibility.py"
    ran = subprocess.run([sys.executable, tool, "--check"], capture_output=True, check=False)
    assert ran.returncode == 0, ran.stdout


SCRIPT = """\
import deepspeed
import deepspeed.comm as dist, torch
from deepspeed.ops.adam import FusedAdam as Adam
from torch.distributed.pipelining import Schedule1F1B, SplitPoint
from deepspeed.moe.layer import MoE
from . import deepspeed as mine

class Trainer:
    def __init__(self, model):
        self.engine, _, _, _ = deepspeed.initialize(model=model)
        self.other = deepspeed.initialize(model=model)[0]

    def step(self, loss):
        self.engine.backward(loss)
        self.engine.set_mom()
        self.other.no_sync().__enter__()
        self.engine.of_the_module()
        dist.all_reduce(loss, op=dist.ReduceOp.SUM)
        dist.barier()
        print(SplitPoint.BEGINNING, deepspeed.zero.Init, torch.ones(1))
        torch.distributed.pipelining.schedules._Action.from_str("0F0")
        return deepspeed.init_inference(
            deepspeed.initialize)
"""


def test_a_script_is_read():
    uses = {use.name: (use.fate.verdict, use.lines) for use in uses_in(SCRIPT, "script.py")}
    engine = "deepspeed.runtime.engine.DeepSpeedEngine"
    pipelining = "torch.distributed.pipelining"
    assert uses == {
        "deepspeed": ("works", [1]),
        "deepspeed.comm": ("works", [2]),
        "deepspeed.ops.adam.FusedAdam": ("differs", [3]),
        f"{pipelining}.Schedule1F1B": ("differs", [4]),
        f"{pipelining}.SplitPoint": ("works", [4]),
        "deepspeed.moe.layer.MoE": ("refused", [5]),
        "deepspeed.initialize": ("works", [10, 11, 23]),
        f"{engine}.backward": ("works", [14]),
        f"{engine}.set_mom": ("refused", [15]),
        f"{engine}.no_sync": ("differs", [16]),
        "deepspeed.comm.all_reduce": ("works", [18]),
        "deepspeed.comm.ReduceOp.SUM": ("works", [18]),
        "deepspeed.comm.barier": ("unknown", [19]),
        f"{pipelining}.SplitPoint.BEGINNING": ("works", [20]),
        "deepspeed.zero.Init": ("works", [20]),
        f"{pipelining}.schedules._Action.from_str": ("works", [21]),
        "deepspeed.init_inference": ("refused", [22]),
    }


OBJECTS = """
import deepspeed
from torch.distributed import pipelining as pp
from torch.distributed.pipelining import PipelineStage, pipeline
from torch.distributed.pipelining.schedules import get_schedule_class

class Model:
    def bakward(self):
        self.my_step = 1

def make(model, x, lr):
    stage: PipelineStage = PipelineStage(model, 0, 1, "cpu")
    schedule = pp.ScheduleZBVZeroBubble([stage], 4)
    schedule.steps_done = 0
    schedule.stp()
    schedule.unshard_ops
    stage.output_chunk.append(stage.output_chunks)
    pipe = pipeline(model, (x,))
    first = pipe.build_stage(0, "cpu")
    first.fwd_cache
    print(pipe.replicated_params)
    kind = get_schedule_class("1f1b")
    other = kind(first, 4)
    other.registr_custom_function()
    again = get_schedule_class("gpipe")(first, 4)
    again._step_microbatches([])

def train(model, loss):
    engine = None
    engine, optimizer, _, _ = deepspeed.initialize(model=model)
    engine.backwrd(loss)
    engine.bakward()
    engine.my_step
    engine.anything_of_the_module
    optimizer.stepp()
    first = "names"
    first.uper()
"""


def test_members_of_objects_are_told_where_it_is_certain():
    uses = {use.name: (use.fate.verdict, use.fate.note) for use in uses_in(OBJECTS, "script.py")}
    owners = ("DeepSpeedEngine", "PipelineStage", "_PipelineSchedule", "Pipe")
    found = {
        name.rpartition(".")[2]: told
        for name, told in uses.items()
        if name.rpartition(".")[0].rpartition(".")[2] in owners
    }
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        "unshard_ops": "refused",
        "output_chunk": "unknown",
        "output_chunks": "refused",
        "build_stage": "works",
        "replicated_params": "refused",
        "registr_custom_function": "unknown",
        "_step_microbatches": "refused",
        "backwrd": "unknown",
    }
    assert found["output_chunk"][1] == "PipelineStage has output_chunks"
    assert found["backwrd"][1] == "DeepSpeedEngine has backward"
    assert found["registr_custom_function"][1] == "_PipelineSchedule has register_custom_function"


def test_an_import_that_has_a_way_out_is_still_read():
    text = """
try:
    import deepspeed.comm as dist
except ImportError:
    import torch.distributed as dist
dist.barier()
"""
    assert [(use.name, use.lines) for use in uses_in(text, "script.py")] == [
        ("deepspeed.comm", [3]),
        ("deepspeed.comm.barier", [6]),
    ]


def test_libraries_that_call_deepspeed_are_found():
    text = """
from transformers import HfArgumentParser, Seq2SeqTrainingArguments as Arguments, TrainingArguments
from transformers.integrations import HfDeepSpeedConfig
from accelerate.utils import DeepSpeedPlugin
from trl import SFTConfig
args = TrainingArguments("out", deepspeed="ds.json", use_cpu=True)
more = SFTConfig("out", deepspeed=options.deepspeed)
none = TrainingArguments("out", deepspeed=None)
read = HfArgumentParser((Model, TrainingArguments))
if rank == 0:
    model.save_pretrained("out")
    tokenizer.save_pretrained("out")
if accelerator.is_main_process:
    accelerator.unwrap_model(net).save_pretrained("out")
model.save_pretrained("out")
"""
    found = {(use.name, *use.lines): use.fate.verdict for use in uses_in(text, "script.py")}
    assert found == {
        ("HfDeepSpeedConfig", 3): "works",
        ("DeepSpeedPlugin", 4): "works",
        ("TrainingArguments(deepspeed=)", 6): "works",
        ("TrainingArguments(use_cpu=True)", 6): "differs",
        ("SFTConfig(deepspeed=)", 7): "works",
        ("HfArgumentParser, for --deepspeed FILE", 9): "works",
        ("model.save_pretrained() by one rank", 11): "differs",
        ("a model.save_pretrained() by one rank", 14): "differs",
    }
    alone = text.replace("from t", "from .t").replace("from acc", "from .acc")
    assert uses_in(alone, "script.py") == []


def _check(*words, cwd):
    command = [sys.executable, "-m", "penstock.swap", "--check", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_the_command_tells_line_by_line(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = _check("script.py", cwd=tmp_path)
    assert ran.returncode == 1, ran.stderr
    lines = ran.stdout.splitlines()
    assert "script.py:10 (also 11, 23): deepspeed.initialize: works" in lines
    assert any(
        line.startswith("script.py:22: deepspeed.init_inference: refused: engines train")
        for line in lines
    )
    assert "script.py:19: deepspeed.comm.barier: unknown: deepspeed.comm has barrier" in lines
    assert lines[-1].endswith("17 uses of torch.distributed.pipelining and DeepSpeed: "
                              "works 10, differs 3, refused 3, unknown 1")  # fmt: skip


def test_the_command_is_content_where_all_works(tmp_path):
    (tmp_path / "script.py").write_text("print('never')\nimport deepspeed\ndeepspeed.initialize\n")
    ran = _check("script.py", cwd=tmp_path)
    assert ran.returncode == 0
    assert "never" not in ran.stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.py", None, "penstock.swap: absent.py: No such file or directory"),
        ("broken.py", b"import deepspeed\nif (\n", "penstock.swap: broken.py:2: no Python: "),
        ("latin.py", b"# \xe9\n", "penstock.swap: latin.py: 'utf-8' codec"),
        ("null.py", b"x = 1\0\n", "penstock.swap: null.py: no Python: "),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    ran = _check(name, cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.startswith(message), ran.stderr
    assert "Traceback" not in ran.stderr


def test_check_takes_one_script(tmp_path):
    ran = _check("a.py", "b.py", cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr == "usage: python -m penstock.swap --check SCRIPT\n"


def test_a_swapped_import_of_what_is_lacking_says_why(tmp_path):
    script = tmp_path / "script.py"
    for line, words in [
        ("import deepspeed.domino", "deepspeed.domino is not in penstock: engines have no tensor"),
        ("from deepspeed.domino.layer import A", "deepspeed.domino is not in penstock"),
        ("from deepspeed.moe.layer import MoE; MoE(4)", "penstock has no MoE: there is no expert"),
        ("from deepspeed import init_inference", "penstock has no init_inference: engines train"),
    ]:
        script.write_text(line)
        command = [sys.executable, "-m", "penstock.swap", script]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        assert words in ran.stderr.splitlines()[-1], ran.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "from penstock.zero.partition_parameters import AllGatherHandle",
            "has no AllGatherHandle: ",
        ),
        ("from penstock.pipelining.stage import _RecvInfo as r", "how torch's stages describe"),
        ("from penstock import initialize, init_inference", "engines train"),
        ("from penstock.zero import Inti", "cannot import name 'Inti' from 'penstock.zero'"),
    ],
)
def test_an_import_without_swap_says_why_too(line, words):
    with pytest.raises(ImportError, match=re.escape(words)):
        exec(line, {})


def test_who_asks_carefully_is_told_no():
    """hasattr() and getattr() with a default, also in the frame of an import statement."""
    from penstock.pipelining import stage

    assert not hasattr(stage, "_RecvInfo")
    assert getattr(stage, "_RecvInfo", 7) == 7
    try:
        from penstock.pipelining.stage import _RecvInfo
    except ImportError as error:
        assert error.name == "penstock.pipelining.stage"
        assert not hasattr(stage, "_RecvInfo")
    else:
        raise AssertionError(_RecvInfo)


def test_members_that_the_table_has_are_of_classes_that_are_there():
    for module, name in MEMBERS:
        assert inspect.isclass(getattr(_here(module), name.partition(".")[0]))
