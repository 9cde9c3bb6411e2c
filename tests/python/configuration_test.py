"""penstock.configuration: sizes of a batch, and what a configuration may hold."""

import pytest

from penstock import ConfigError
from penstock.configuration import read


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((16, None, 4), (16, 2, 4)),
        ((16, 2, None), (16, 2, 4)),
        ((None, 2, 4), (16, 2, 4)),
        ((16, 2, 4), (16, 2, 4)),
        ((16, None, None), (16, 8, 1)),
        ((None, 3, None), (6, 3, 1)),
        (("auto", 2, 4), (16, 2, 4)),
    ],
)
def test_two_sizes_give_the_third(given, expected):
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    batch = read(dict(zip(names, given, strict=True))).batch(replicas=2)
    assert tuple(getattr(batch, name) for name in names) == expected


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"gradient_accumulation_steps": 4}, "train_batch_size or train_micro_batch_size_per_gpu"),
        ({"train_batch_size": "auto"}, "train_batch_size or train_micro_batch_size_per_gpu"),
        (
            {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4},
            "train_batch_size = 10: must be a multiple of train_micro_batch_size_per_gpu 4; use 8 "
            "or 12",
        ),
        (
            {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 4},
            "config: train_batch_size 12 is not a multiple of train_micro_batch_size_per_gpu 4 x "
            "data 2"
            "\n  note: train_batch_size 8 or 16 works",
        ),
        ({"train_batch_size": 0}, "config: train_batch_size = 0: must be in [1, "),
        ({"train_batch_size": "8"}, 'train_batch_size: expected an integer, found "8"'),
        ({"train_batch_size": True}, "train_batch_size: expected an integer, found true"),
    ],
)
def test_sizes_that_do_not_fit_are_never_rounded(sizes, words):
    with pytest.raises(ConfigError) as caught:
        read(sizes).batch(replicas=2)
    assert words in str(caught.value)


def test_what_fits_is_said():
    config = read(
        {
            "train_batch_size": 16,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
        }
    )
    with pytest.raises(ConfigError, match=r"16 != .* 4 x .* 2 x data 1\n  note: .* 8 works"):
        config.batch(replicas=1)


def test_all_keys_that_are_wrong_are_said():
    with pytest.raises(ConfigError) as caught:
        read({"optimiser": {}, "fp16": {"enabel": True}, "bf16": True, "sparse_gradients": True})
    text = str(caught.value)
    for words in (
        'unknown key "optimiser"; did you mean "optimizer"?',
        'unknown key "enabel" in fp16; did you mean "enabled"?',
        "bf16: expected an object, found true",
        "sparse_gradients = true: gradients are dense",
    ):
        assert words in text


def test_what_a_file_says_has_a_place(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{\n "train_batch_size": 2, // Of all ranks.\n "fp16": {"enabel": true}\n}')
    with pytest.raises(ConfigError, match=r'ds\.json:3:11: unknown key "enabel" in fp16'):
        read(file)
    file.write_text('{"train_batch_size": 2, "schedule": {"name": "zbv"}, "aio": {"x": [1, 2.5]}}')
    assert dict(read(file)) == {
        "train_batch_size": 2,
        "schedule": {"name": "zbv"},
        "aio": {"x": [1, 2.5]},
    }


def test_what_is_left_open_is_absent():
    config = read(
        {
            "train_batch_size": 2,
            "fp16": None,
            "zero_optimization": {"stage": "auto", "reduce_bucket_size": None},
            "optimizer": {"type": "Adam", "params": {"foreach": None}},
        }
    )
    assert dict(config) == {
        "train_batch_size": 2,
        "zero_optimization": {},
        "optimizer": {"type": "Adam", "params": {"foreach": None}},
    }


ASKED_FOR = {
    "": "train_batch_size steps_per_print gradient_clipping dataloader_drop_last",
    "pipeline": "activation_checkpoint_interval",
    "zero_optimization": "stage reduce_bucket_size stage3_max_live_parameters "
    "stage3_prefetch_bucket_size stage3_param_persistence_threshold "
    "stage3_model_persistence_threshold",
    "bf16": "enabled",
    "fp16": "enabled loss_scale initial_scale_power loss_scale_window hysteresis "
    "consecutive_hysteresis min_loss_scale",
}


@pytest.mark.parametrize("section", ASKED_FOR)
def test_engines_can_use_every_value_that_is_taken(section):
    from penstock._engines.parameters.precision import gradient_scale_of, type_of
    from penstock._engines.parameters.zero_settings import ZeroSettings

    taken = 0
    for key in ASKED_FOR[section].split():
        for value in (True, False, None, 0, 1, -1, 2.5, 4, 1e9, "auto", "1", [], {}, {"x": 1}):
            values = {key: value}
            try:
                config = read({section: values} if section else values, needs_sizes=False)
            except ConfigError as error:
                assert key in str(error)
                continue
            taken += 1
            assert ZeroSettings.of(config).stage in range(4)
            type_of(config)
            assert gradient_scale_of(config).value > 0
            settings = config.settings
            assert settings["steps_per_print"] >= 0
            assert settings["train_batch_size"] is None or settings["train_batch_size"] > 0
            assert settings["gradient_clipping"] >= 0
            assert settings["dataloader_drop_last"] in (True, False)
            assert settings["pipeline"]["activation_checkpoint_interval"] >= 0
    assert taken >= 3 * len(ASKED_FOR[section].split())


def test_numbers_of_json():
    config = read(
        {"zero_optimization": {"reduce_bucket_size": 5e8}, "gradient_clipping": 1},
        needs_sizes=False,
    )
    assert config.settings["zero_optimization"]["reduce_bucket_size"] == 500_000_000
    assert config.settings["gradient_clipping"] == 1.0
    assert config.settings["fp16"]["enabled"] is False


def test_what_is_not_given_has_the_defaults_of_the_table():
    settings = read({"fp16": {"enabled": True}}, needs_sizes=False).settings
    assert settings["fp16"] == {
        "enabled": True,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
    }
    zero = settings["zero_optimization"]
    assert zero["stage"] == 0
    assert zero["stage3_max_live_parameters"] == 10**9
    assert zero["stage3_prefetch_bucket_size"] == 5 * 10**7
    assert zero["stage3_param_persistence_threshold"] == 10**5
    assert zero["stage3_model_persistence_threshold"] is None
    assert zero["offload_param"] == {"device": "none", "nvme_path": None}
    assert settings["data_types"] == {"grad_accum_dtype": None}
    assert settings["train_batch_size"] is None
    assert settings["steps_per_print"] == 0
