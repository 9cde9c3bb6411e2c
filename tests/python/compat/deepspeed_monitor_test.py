"""The boards of an engine: DeepSpeed's keys tensorboard, wandb and csv_monitor, on two ranks."""

import csv
import sys
import tempfile
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist

import penstock
from penstock import CommError, ConfigError
from penstock.monitor.config import DeepSpeedMonitorConfig, get_monitor_config
from penstock.monitor.monitor import MonitorMaster, csvMonitor
from penstock.pipe import PipelineModule
from penstock.runtime.config import DeepSpeedConfig

WORLD_SIZE = 2
SAMPLES = 8  # Of a step: 2 a microbatch, 2 microbatches, 2 replicas.


def shared_folder():
    """The same for all ranks."""
    found = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    return found[0]


def config_of(folder, **more):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
        "csv_monitor": {"enabled": True, "output_path": folder, "job_name": "job"},
        **more,
    }


def table(folder, name, job="job"):
    with Path(folder, job, f"Train_Samples_{name}.csv").open(newline="") as file:
        header, *rows = list(csv.reader(file))
    assert header == ["step", name]
    return [(int(step), float(value)) for step, value in rows]


def tables(folder):
    return sorted(path.name for path in Path(folder, "job").iterdir())


def train(engine, steps):
    """Returns by step the mean of this rank's losses."""
    losses = []
    for step in range(2 * steps):
        inputs = torch.full((2, 3), float(step + dist.get_rank()))
        loss = engine(inputs).square().mean()
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
    return [(losses[2 * i] + losses[2 * i + 1]) / 2 for i in range(steps)]


def check_rank_0_writes_each_step_by_samples(group):
    folder = shared_folder()
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 0.01}}
    torch.manual_seed(1)
    engine, *_ = penstock.initialize(
        model=torch.nn.Linear(3, 1), config=config_of(folder, scheduler=schedule)
    )
    rates = []
    expected = []
    for _ in range(3):
        expected += train(engine, 1)
        rates.append(engine.get_lr()[0])
    dist.barrier()
    assert engine.monitor.enabled
    assert engine.monitor.is_writing == (dist.get_rank() == 0)
    steps = [SAMPLES, 2 * SAMPLES, 3 * SAMPLES]
    assert table(folder, "lr") == list(zip(steps, rates, strict=True))
    if dist.get_rank() == 0:
        found = table(folder, "train_loss")
        assert [step for step, _ in found] == steps
        assert [value for _, value in found] == pytest.approx(expected, rel=1e-6)
    assert tables(folder) == ["Train_Samples_lr.csv", "Train_Samples_train_loss.csv"]


def check_fp16_has_its_loss_scale(group):
    folder = shared_folder()
    half = {"enabled": True, "initial_scale_power": 4}
    engine, *_ = penstock.initialize(
        model=torch.nn.Linear(3, 1), config=config_of(folder, fp16=half)
    )
    for _ in range(2):
        engine.backward(engine(torch.ones(2, 3, dtype=torch.half)).float().mean())
        engine.step()
    dist.barrier()
    assert table(folder, "loss_scale") == [(SAMPLES, 16.0)]


def check_a_second_run_adds_to_the_files(group):
    folder = shared_folder()
    for _ in range(2):
        engine, *_ = penstock.initialize(model=torch.nn.Linear(3, 1), config=config_of(folder))
        train(engine, 1)
        engine.destroy()
    dist.barrier()
    assert table(folder, "lr") == [(SAMPLES, 0.5), (SAMPLES, 0.5)]


def check_a_backward_of_the_scripts_own_has_no_loss(group):
    folder = shared_folder()
    engine, *_ = penstock.initialize(model=torch.nn.Linear(3, 1), config=config_of(folder))
    for _ in range(2):
        engine(torch.ones(2, 3)).mean().backward()
        engine.step()
    dist.barrier()
    assert tables(folder) == ["Train_Samples_lr.csv"]


def check_a_pipeline_has_its_loss_and_that_of_evaluations(group):
    folder = shared_folder()
    torch.manual_seed(3)
    layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)]
    model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss)
    engine, *_ = penstock.initialize(model=model, config=config_of(folder))
    data = [(torch.ones(2, 3), torch.zeros(2, 1))] * 2
    losses = [engine.train_batch(iter(data)).item() for _ in range(2)]
    evaluated = engine.eval_batch(iter(data)).item()
    dist.barrier()
    assert table(folder, "lr") == [(4, 0.5), (8, 0.5)]
    found = table(folder, "train_loss")
    assert [step for step, _ in found] == [4, 8]
    assert [value for _, value in found] == pytest.approx(losses, rel=1e-6)
    assert table(folder, "eval_loss") == [(8, pytest.approx(evaluated, rel=1e-6))]


def check_a_missing_package_is_an_error_on_all_ranks(group):
    sys.modules["wandb"] = None  # As import has it where there is no such package.
    try:
        wandb = {"wandb": {"enabled": True}}
        error = ConfigError if dist.get_rank() == 0 else CommError
        with pytest.raises(error, match="needs the package wandb: pip install wandb"):
            penstock.initialize(
                model=torch.nn.Linear(3, 1), config=config_of(shared_folder(), **wandb)
            )
    finally:
        del sys.modules["wandb"]


def check_a_folder_that_cannot_be_made_is_an_error_on_all_ranks(group):
    folder = shared_folder()
    if dist.get_rank() == 0:
        Path(folder, "job").write_text("")
    dist.barrier()
    error = ConfigError if dist.get_rank() == 0 else CommError
    with pytest.raises(error, match=r"csv_monitor\.output_path = .*cannot make the folder"):
        penstock.initialize(model=torch.nn.Linear(3, 1), config=config_of(folder))


def check_a_file_that_cannot_be_written_ends_no_training(group):
    folder = shared_folder()
    engine, *_ = penstock.initialize(model=torch.nn.Linear(3, 1), config=config_of(folder))
    if dist.get_rank() == 0:
        Path(folder, "job").rmdir()
    before = engine.module.weight.detach().clone()
    train(engine, 2)
    assert engine.global_steps == 2
    assert not torch.equal(before, engine.module.weight)
    assert not engine.monitor.is_writing


def check_a_checkpoint_goes_on_under_another_job_name(group):
    folder = shared_folder()
    engine, *_ = penstock.initialize(model=torch.nn.Linear(3, 1), config=config_of(folder))
    train(engine, 1)
    engine.save_checkpoint(Path(folder, "saved"))
    other = {"csv_monitor": {"enabled": True, "output_path": folder, "job_name": "other"}}
    engine, *_ = penstock.initialize(model=torch.nn.Linear(3, 1), config=config_of(folder, **other))
    engine.load_checkpoint(Path(folder, "saved"))
    train(engine, 1)
    dist.barrier()
    assert table(folder, "lr", job="other") == [(2 * SAMPLES, 0.5)]


test_check = ranks.tests_of(__file__, WORLD_SIZE)

KEYS = {
    "tensorboard": {"enabled": True, "output_path": "a", "job_name": "b"},
    "wandb": {"enabled": False, "group": "g", "team": "t", "project": "p"},
}


def test_sections_are_objects_of_deepspeeds_names():
    made = DeepSpeedMonitorConfig(**KEYS)
    assert (made.tensorboard.output_path, made.tensorboard.job_name) == ("a", "b")
    assert (made.wandb.group, made.wandb.team, made.wandb.project) == ("g", "t", "p")
    assert made.enabled and not made.wandb.enabled and not made.csv_monitor.enabled
    assert made.csv_monitor.job_name == "DeepSpeedJobName"
    assert not get_monitor_config({"train_batch_size": 1}).enabled
    whole = DeepSpeedConfig({"train_batch_size": 1, **KEYS})
    assert whole.monitor_config.tensorboard == made.tensorboard


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"tensorboard": {"enabled": True, "job": "x"}}, 'unknown key "job" in tensorboard'),
        ({"wandb": {"enabled": 3}}, "wandb.enabled: expected true or false"),
        ({"comet": {"enabled": True}}, "use tensorboard, wandb or csv_monitor"),
    ],
)
def test_what_is_refused_is_refused_by_name(section, words):
    with pytest.raises(ConfigError, match=words):
        DeepSpeedMonitorConfig(**section)


def test_a_script_writes_events_of_its_own(tmp_path):
    section = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    monitor = MonitorMaster(DeepSpeedMonitorConfig(csv_monitor=section))
    assert isinstance(monitor.csv_monitor, csvMonitor)
    monitor.write_events([("Train/Samples/my value", 1.5, 8), ("Train/Samples/my value", 2, 16)])
    text = (tmp_path / "job" / "Train_Samples_my_value.csv").read_text()
    assert text.split() == ["step,my", "value", "8,1.5", "16,2"]


def test_event_files_hold_what_is_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    section = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    monitor = MonitorMaster(DeepSpeedMonitorConfig(tensorboard=section))
    monitor.write_events([("Train/Samples/lr", 0.25, 8), ("Train/Samples/lr", 0.5, 16)])
    monitor.close()
    events = EventAccumulator(str(tmp_path / "job"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("Train/Samples/lr")]
    assert found == [(8, 0.25), (16, 0.5)]


def test_an_offline_run_of_weights_and_biases_is_made(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    section = {"enabled": True, "project": "river", "group": "g"}
    monitor = MonitorMaster(DeepSpeedMonitorConfig(wandb=section))
    monitor.write_events([("Train/Samples/lr", 0.25, 8), ("Train/Samples/train_loss", 2.0, 8)])
    monitor.close()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="needs the package tensorboard: pip install tensorboard"):
        MonitorMaster(DeepSpeedMonitorConfig(tensorboard={"enabled": True}))


if __name__ == "__main__":
    ranks.main(globals())
