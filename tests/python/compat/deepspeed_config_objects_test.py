"""A configuration as objects, as scripts for DeepSpeed read it; and what is refused by name."""

from __future__ import annotations

import argparse
import sys
import warnings

import pytest

import penstock
from penstock import ConfigError
from penstock.runtime.config import DeepSpeedConfig
from penstock.runtime.zero.config import DeepSpeedZeroConfig, ZeroStageEnum, get_zero_config
from penstock.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
    OffloadDeviceEnum,
)


def test_defaults_are_deepspeed_s():
    config = DeepSpeedZeroConfig()
    assert config.stage == ZeroStageEnum.disabled == 0
    assert (config.reduce_bucket_size, config.sub_group_size) == (5e8, 1e9)
    assert (config.param_persistence_threshold, config.prefetch_bucket_size) == (1e5, 5e7)
    assert config.model_persistence_threshold == sys.maxsize
    assert config.contiguous_gradients and not config.pipeline_loading_checkpoint
    assert config.offload_param is None and config.offload_optimizer is None


@pytest.mark.parametrize(("stage", "overlaps"), [(0, False), (1, False), (2, False), (3, True)])
def test_messages_overlap_in_stage_3_unless_it_is_said(stage, overlaps):
    assert DeepSpeedZeroConfig(stage=stage).overlap_comm is overlaps
    assert DeepSpeedZeroConfig(stage=stage, overlap_comm=not overlaps).overlap_comm is not overlaps


@pytest.mark.parametrize(
    "name",
    [
        "prefetch_bucket_size",
        "param_persistence_threshold",
        "max_reuse_distance",
        "module_granularity_threshold",
        "model_persistence_threshold",
        "max_live_parameters",
    ],
)
def test_a_key_of_stage_3_is_an_attribute_without_that(name):
    assert getattr(DeepSpeedZeroConfig(**{f"stage3_{name}": 12345}), name) == 12345
    assert getattr(DeepSpeedZeroConfig(**{name: 12345.0}), name) == 12345


def test_older_keys_are_taken_and_say_the_newer_one():
    with pytest.warns(UserWarning, match="cpu_offload is deprecated: use offload_optimizer"):
        config = DeepSpeedZeroConfig(cpu_offload=True)
    assert isinstance(config.offload_optimizer, DeepSpeedZeroOffloadOptimizerConfig)
    assert config.offload_optimizer.device is OffloadDeviceEnum.cpu
    with pytest.warns(UserWarning, match="cpu_offload_param is deprecated: use offload_param"):
        config = DeepSpeedZeroConfig(stage=3, cpu_offload_param=True)
    assert isinstance(config.offload_param, DeepSpeedZeroOffloadParamConfig)
    assert config.offload_param.device == "cpu"
    with pytest.warns(UserWarning, match="use stage3_gather_16bit_weights_on_model_save"):
        config = DeepSpeedZeroConfig(stage3_gather_fp16_weights_on_model_save=True)
    assert config.gather_16bit_weights_on_model_save
    with pytest.warns(UserWarning, match="deprecated"):
        assert DeepSpeedZeroConfig(cpu_offload=False).offload_optimizer is None


def test_sections_are_objects():
    config = DeepSpeedZeroConfig(stage=3, offload_param={}, offload_optimizer={"device": "cpu"})
    assert config.offload_param == DeepSpeedZeroOffloadParamConfig()
    assert config.offload_param.device is OffloadDeviceEnum.none
    assert not config.offload_optimizer.pipeline
    again = DeepSpeedZeroConfig(
        stage=3,
        offload_optimizer=DeepSpeedZeroOffloadOptimizerConfig(device="cpu", pipeline_read=True),
    )
    assert again.offload_optimizer.pipeline
    with pytest.raises(AttributeError, match="zero_optimization has no 'buckets'"):
        config.buckets  # noqa: B018
    assert not hasattr(config, "buckets")
    assert "stage=<ZeroStageEnum.weights: 3>" in repr(config)


def test_it_is_part_of_a_configuration():
    config = DeepSpeedConfig({"train_batch_size": 2, "zero_optimization": {"stage": 2}})
    assert config.zero_config.stage == config.zero_optimization_stage == 2
    assert config.zero_enabled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not DeepSpeedConfig({"train_batch_size": 2}).zero_enabled
    assert get_zero_config({"zero_optimization": True}).stage == 1


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"stage": 4}, r"zero_optimization.stage = 4: must be in \[0, 3\]"),
        ({"stage": "three"}, "expected an integer"),
        ({"bucket": 1}, 'unknown key "bucket" in zero_optimization'),
        ({"zero_hpz_partition_size": 2}, "shards are over all data-parallel ranks"),
        ({"mics_shard_size": 2}, "mics_shard_size = 2: shards are over all data-parallel ranks"),
        ({"mics_hierarchical_params_gather": True}, "shards are over all data-parallel ranks"),
        ({"zero_quantized_weights": True}, "nothing is quantized"),
        ({"zeropp_loco_param": {"err_beta": 0.8}}, "zeropp_loco_param.err_beta.*is quantized"),
        ({"zenflow": {"topk_ratio": 0.1}}, "zenflow.topk_ratio.*in their own step"),
    ],
)
def test_what_is_refused_is_refused_by_name(section, words):
    for config in ({"train_batch_size": 1, "zero_optimization": section},):
        with pytest.raises(ConfigError, match=words):
            penstock.configuration.read(config)
    with pytest.raises(ConfigError, match=words):
        DeepSpeedZeroConfig(**section)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"autotuning": {"enabled": True}}, "nothing is tuned by trial; use penstock"),
        ({"comet": {"enabled": True}}, "use tensorboard, wandb or csv_monitor"),
    ],
)
def test_sections_that_are_refused_say_what_to_use(section, words):
    with pytest.raises(ConfigError, match=words):
        penstock.configuration.read({"train_batch_size": 1, **section})


def test_a_command_line_names_the_configuration(tmp_path):
    parser = penstock.add_config_arguments(argparse.ArgumentParser())
    file = tmp_path / "config.json"
    file.write_text('{"train_batch_size": 3}')
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", str(file)])
    assert args.deepspeed
    import torch

    engine, *_ = penstock.initialize(args, model=torch.nn.Linear(2, 2))
    assert engine.train_batch_size() == 3
    assert parser.parse_args([]).deepspeed_config is None
