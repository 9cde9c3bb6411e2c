"""penstock.configuration: sizes of a batch, and what a configuration may hold."""

import pytest
from penstock.configuration import read

from penstock import ConfigError


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
        (
            {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4},
            "train_batch_size 10 is no multiple of train_micro_batch_size_per_gpu 4 x data 2",
        ),
        ({"train_batch_size": 0}, "train_batch_size is 0, must be an integer, at least 1"),
        ({"train_batch_size": "8"}, "train_batch_size is '8'"),
        ({"train_batch_size": True}, "train_batch_size is True"),
    ],
)
def test_sizes_that_do_not_fit_are_never_rounded(sizes, words):
    with pytest.raises(ConfigError) as caught:
        read(sizes).batch(replicas=2)
    assert words in str(caught.value)


def test_what_fits_is_said():
    config = read(
        {
            "train_batch_size": 10,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
        }
    )
    with pytest.raises(ConfigError, match=r"10 != .* 4 x .* 2 x data 1\n  note: .* 8 works"):
        config.batch(replicas=1)


def test_all_keys_that_are_wrong_are_said():
    with pytest.raises(ConfigError) as caught:
        read({"optimiser": {}, "fp16": {"enabel": True}, "bf16": True, "prescale_gradients": True})
    text = str(caught.value)
    for words in (
        'unknown key "optimiser"; did you mean "optimizer"?',
        'unknown key "enabel" in fp16; did you mean "enabled"?',
        "bf16 is True, must be an object",
        "prescale_gradients is True, and penstock has only false",
    ):
        assert words in text


def test_numbers_of_json():
    config = read({"zero_optimization": {"reduce_bucket_size": 5e8}, "gradient_clipping": 1})
    assert config.integer("reduce_bucket_size", 0, section="zero_optimization") == 500_000_000
    assert config.number("gradient_clipping", 0.0) == 1.0
    assert config.flag("enabled", False, section="fp16") is False
