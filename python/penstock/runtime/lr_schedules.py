"""DeepSpeed's place for courses of the learning rate, and its words for their keys."""

from penstock._compatibility import refuse_in
from penstock._engines.settings.tuning_arguments import (
    add_tuning_arguments,
    get_config_from_args,
    get_lr_from_config,
    override_1cycle_params,
    override_lr_range_test_params,
    override_params,
    override_warmupCosineLR_params,
    override_warmupLR_params,
    parse_arguments,
)
from penstock.lr_schedules import LRRangeTest, OneCycle, WarmupCosineLR, WarmupDecayLR, WarmupLR

__all__ = [
    "LRRangeTest",
    "OneCycle",
    "WarmupCosineLR",
    "WarmupDecayLR",
    "WarmupLR",
    "add_tuning_arguments",
    "get_config_from_args",
    "get_lr_from_config",
    "override_1cycle_params",
    "override_lr_range_test_params",
    "override_params",
    "override_warmupCosineLR_params",
    "override_warmupLR_params",
    "parse_arguments",
]

refuse_in(globals())

LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR = "LRRangeTest", "OneCycle", "WarmupLR"
WARMUP_DECAY_LR, WARMUP_COSINE_LR = "WarmupDecayLR", "WarmupCosineLR"
LR_SCHEDULE = "lr_schedule"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
WARMUP_LOG_RATE, WARMUP_LINEAR_RATE = "log", "linear"

# Each key by its own name, in capital letters.
_KEYS = """
    lr_range_test_min_lr lr_range_test_step_rate lr_range_test_step_size lr_range_test_staircase
    cycle_first_step_size cycle_first_stair_count cycle_second_step_size cycle_second_stair_count
    decay_step_size cycle_min_lr cycle_max_lr decay_lr_rate cycle_momentum cycle_min_mom
    cycle_max_mom decay_mom_rate warmup_min_lr warmup_max_lr warmup_num_steps warmup_type
    warmup_min_ratio cos_min_ratio total_num_steps
"""
globals().update({key.upper(): key for key in _KEYS.split()})
