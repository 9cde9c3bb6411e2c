"""Sections of a configuration as classes of scripts' own, and their schedules by command line."""

from __future__ import annotations

import argparse
import logging

import pytest
import torch

import penstock
from penstock.errors import AssertedError
from penstock.runtime import lr_schedules

pydantic = pytest.importorskip("pydantic")

from penstock.runtime.config_utils import DeepSpeedConfigModel  # noqa: E402
from penstock.runtime.precision_config import (  # noqa: E402
    DeepSpeedFP16Config,
    get_bfloat16_config,
    get_float16_config,
)


class Inner(DeepSpeedConfigModel):
    depth: int = 1


class Section(DeepSpeedConfigModel):
    depth: int = 2
    layers: int | None = pydantic.Field(
        None,
        json_schema_extra={
            "deprecated": True,
            "new_param": "depth",
            "new_param_fn": lambda layers: layers // 2,
            "deprecated_msg": "in 2031",
        },
    )
    inner: Inner = Inner()
    inside: int | None = pydantic.Field(
        None, json_schema_extra={"deprecated": True, "new_param": "inner.depth"}
    )
    old: int = pydantic.Field(
        0, json_schema_extra={"deprecated": True, "new_param": "depth", "set_new_param": False}
    )
    width: int = pydantic.Field(8, alias="hidden")


def test_a_deprecated_field_goes_to_the_one_in_its_place(caplog):
    with caplog.at_level(logging.WARNING, "penstock"):
        assert Section(layers=12).depth == 6
        assert Section(inside=7).inner.depth == 7
        assert Section(old=3).depth == 2
    assert [each.split(":")[0] for each in caplog.messages] == [
        f"{name} is deprecated" for name in ("layers", "inside", "old")
    ]
    assert "use depth in 2031" in caplog.messages[0]
    with pytest.raises(AssertionError, match="layers is deprecated, and depth") as raised:
        Section(layers=12, depth=3)
    assert isinstance(raised.value, penstock.ConfigError)


def test_fields_are_checked_by_name_and_alias():
    assert Section(hidden=4).width == Section(width=4).width == 4
    assert Section(depth="auto").depth == 2
    section = Section()
    for wrong in (lambda: Section(deepth=1), lambda: Section(strict=True, depth="auto")):
        with pytest.raises(pydantic.ValidationError):
            wrong()
    with pytest.raises(pydantic.ValidationError):
        section.depth = "deep"


@pytest.mark.parametrize("key", ["loss_scale", "loss_scale_window", "min_loss_scale"])
def test_a_loss_scale_is_a_finite_number(key):
    for wrong, told in ((True, "a number"), ([], "a number"), (float("nan"), "finite"), (-1, "at")):
        with pytest.raises(pydantic.ValidationError, match=f"fp16.{key} is "):
            DeepSpeedFP16Config(**{key: wrong})
        if wrong != -1:
            with pytest.raises(pydantic.ValidationError, match=f"must be {told}"):
                DeepSpeedFP16Config(**{key: wrong})
    assert getattr(DeepSpeedFP16Config(**{key: "2"}), key) == 2
    if key == "loss_scale":
        assert DeepSpeedFP16Config(loss_scale=0).loss_scale == 0
    else:
        with pytest.raises(pydantic.ValidationError, match="more than 0"):
            DeepSpeedFP16Config(**{key: 0})


def test_precision_by_section():
    fp16 = get_float16_config({"fp16": {"enabled": True, "hysteresis": 3}})
    assert fp16.enabled and not get_float16_config({}).enabled
    assert fp16.dynamic_loss_scale_args() == {
        "init_scale": 65536,
        "scale_window": 1000,
        "delayed_shift": 3,
        "consecutive_hysteresis": False,
        "min_scale": 1,
    }
    for key in ("bf16", "bfloat16"):
        assert get_bfloat16_config({key: {"enabled": True}}).enabled


def section_of(*words):
    parser = lr_schedules.add_tuning_arguments(argparse.ArgumentParser())
    return lr_schedules.get_config_from_args(parser.parse_args(words))


@pytest.mark.parametrize("name", lr_schedules.VALID_LR_SCHEDULES)
def test_a_schedule_by_command_line_is_one_that_trains(name):
    section, reason = section_of("--lr_schedule", name)
    assert reason is None
    if name == "WarmupDecayLR" or name == "WarmupCosineLR":
        section["params"]["total_num_steps"] = 5000
    engine, _, _, scheduler = penstock.initialize(
        model=torch.nn.Linear(2, 2),
        config={"train_batch_size": 1, "optimizer": {"type": "Adam"}, "scheduler": section},
    )
    assert type(scheduler) is getattr(lr_schedules, name)
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.step()
    rate, why = lr_schedules.get_lr_from_config(section)
    assert (rate is None) == (name == "WarmupCosineLR") == (name in why)


def test_options_are_keys_of_their_schedule_alone():
    section, _ = section_of("--lr_schedule", "LRRangeTest", "--lr_range_test_staircase")
    assert section["params"] == {
        "lr_range_test_min_lr": 0.001,
        "lr_range_test_step_rate": 1.0,
        "lr_range_test_step_size": 1000,
        "lr_range_test_staircase": True,
    }
    section, _ = section_of("--lr_schedule", "OneCycle", "--cycle_first_stair_count", "5")
    assert section["params"]["cycle_first_stair_count"] == 5
    assert "cycle_second_stair_count" not in section["params"]
    assert section["params"]["cycle_momentum"] is False
    assert section_of()[0] is None and "--lr_schedule" in section_of()[1]
    assert "Cosine" in section_of("--lr_schedule", "Cosine")[1]
    assert lr_schedules.get_lr_from_config({"type": "OneCycle"}) == (
        None,
        "the section scheduler has no params",
    )


def test_what_deepspeed_asserts_is_an_assertion_error():
    config = {"train_batch_size": 1, "optimizer": {"type": "Adam"}}
    with pytest.raises(AssertionError, match="needs a model"):
        penstock.initialize(config=config)
    with pytest.raises(AssertionError, match="needs a config"):
        penstock.initialize(model=torch.nn.Linear(2, 2))
    assert issubclass(AssertedError, penstock.ConfigError)


def test_an_older_command_line_and_hjson_name_a_configuration(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"train_batch_size": 1, "optimizer": {"type": "Adam"}}')
    args = argparse.Namespace(deepscale_config=str(path))
    engine = penstock.initialize(args=args, model=torch.nn.Linear(2, 2))[0]
    assert engine.train_batch_size() == 1
    path.write_text("{\n  # One sample.\n  train_batch_size: 1\n  optimizer: {type: Adam}\n}\n")
    pytest.importorskip("hjson")
    engine = penstock.initialize(config=str(path), model=torch.nn.Linear(2, 2))[0]
    assert engine.optimizer_name() == "adam"
    path.write_text("{train_batch_size: 1\n train_batch_size: 2}")
    with pytest.raises(penstock.ParseError, match=r"config\.json:1"):
        penstock.initialize(config=str(path), model=torch.nn.Linear(2, 2))
