"""What an engine's configuration says, by the methods that DeepSpeed's engine has for it.

    >>> engine.zero_reduce_bucket_size()
    1048576

Each gives the value that the engine goes by.  Where a key has no effect here it is the value that
was given, or DeepSpeed's default.
Knows no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.configuration import STAGE3

if TYPE_CHECKING:
    from penstock.configuration import Configuration

__all__ = ["ConfigurationGetters"]

_Getter = Callable[["ConfigurationGetters"], Any]


def _of_zero(key: str) -> _Getter:
    """key: of zero_optimization, as an attribute of DeepSpeedZeroConfig."""

    def getter(of: ConfigurationGetters) -> Any:
        from penstock._engines.settings.zero_section import get_zero_config

        used = of.config.settings["zero_optimization"]
        value = used.get(f"stage3_{key}" if key in STAGE3 else key)
        if value is None or isinstance(value, Mapping):
            return getattr(get_zero_config(of.config), key)
        return value

    getter.__doc__ = f"`{key}` of zero_optimization."
    return getter


def _of_key(path: str, default: Any) -> _Getter:
    """path: of a key, with dots between sections."""
    *sections, key = path.split(".")

    def getter(of: ConfigurationGetters) -> Any:
        values: Mapping[str, Any] = of.config
        for each in sections:
            values = values.get(each, {})
        return values.get(key, default)

    getter.__doc__ = f"`{path}`, or {default!r}."
    return getter


def _never(why: str) -> _Getter:
    def getter(of: ConfigurationGetters) -> bool:
        del of
        return False

    getter.__doc__ = f"False: {why}."
    return getter


class ConfigurationGetters:
    """A base of engines.

    config: as it was read.
    """

    config: Configuration

    zero_allgather_bucket_size = _of_zero("allgather_bucket_size")
    zero_allgather_partitions = _of_zero("allgather_partitions")
    zero_allgather_sequential = _of_zero("allgather_sequential")
    zero_contiguous_gradients = _of_zero("contiguous_gradients")
    zero_elastic_checkpoint = _of_zero("elastic_checkpoint")
    zero_hpz_partition_size = _of_zero("zero_hpz_partition_size")
    zero_ignore_unused_parameters = _of_zero("ignore_unused_parameters")
    zero_legacy_stage1 = _of_zero("legacy_stage1")
    zero_load_from_fp32_weights = _of_zero("load_from_fp32_weights")
    zero_log_trace_cache_warnings = _of_zero("log_trace_cache_warnings")
    zero_max_live_parameters = _of_zero("max_live_parameters")
    zero_max_reuse_distance = _of_zero("max_reuse_distance")
    zero_model_persistence_threshold = _of_zero("model_persistence_threshold")
    zero_module_granularity_threshold = _of_zero("module_granularity_threshold")
    zero_multi_rank_bucket_allreduce = _of_zero("use_multi_rank_bucket_allreduce")
    zero_offload_optimizer = _of_zero("offload_optimizer")
    zero_offload_param = _of_zero("offload_param")
    zero_overlap_comm = _of_zero("overlap_comm")
    zero_param_persistence_threshold = _of_zero("param_persistence_threshold")
    zero_prefetch_bucket_size = _of_zero("prefetch_bucket_size")
    zero_quantized_gradients = _of_zero("zero_quantized_gradients")
    zero_quantized_nontrainable_weights = _of_zero("zero_quantized_nontrainable_weights")
    zero_quantized_weights = _of_zero("zero_quantized_weights")
    zero_reduce_bucket_size = _of_zero("reduce_bucket_size")
    zero_reduce_scatter = _of_zero("reduce_scatter")
    zero_round_robin_gradients = _of_zero("round_robin_gradients")
    zero_sub_group_size = _of_zero("sub_group_size")
    is_sanity_checks_enabled = _of_zero("enable_sanity_checks")

    communication_data_type = property(_of_key("communication_data_type", None))
    dataloader_drop_last = _of_key("dataloader_drop_last", False)
    dump_state = _of_key("dump_state", False)
    gradient_predivide_factor = _of_key("gradient_predivide_factor", 1.0)
    memory_breakdown = _of_key("memory_breakdown", False)
    use_node_local_storage = _of_key("checkpoint.use_node_local_storage", False)
    wall_clock_breakdown = _of_key("wall_clock_breakdown", False)
    zero_allow_untested_optimizer = _of_key("zero_allow_untested_optimizer", False)
    zero_force_ds_cpu_optimizer = _of_key("zero_force_ds_cpu_optimizer", True)

    autotuning_enabled = _never("`penstock plan` chooses a layout")
    bf16_master_weights_and_gradients = _never("masters are of 32 bits")
    bf16_optimizer_states = _never("an optimizer's states are of 32 bits")
    curriculum_learning_enabled = _never("every step trains on whole samples")
    data_efficiency_enabled = _never("every step trains the whole model on whole samples")
    data_sampling_enabled = _never("a loader draws its samples")
    flops_profiler_enabled = _never("an engine counts no operations")
    fp16_auto_cast = _never("inputs keep their types")
    fp16_master_weights_and_gradients = _never("masters are of 32 bits")
    is_deepcompile_active = _never("compile() is torch's")
    is_deepcompile_enabled = _never("compile() is torch's")
    load_universal_checkpoint = _never("any layout loads any other one's checkpoint")
    random_ltd_enabled = _never("every step trains the whole model")
    torch_autocast_enabled = _never("a model is of one type")

    def fp16_enabled(self) -> bool:
        """What the configuration says."""
        return bool(self.config.settings["fp16"]["enabled"])

    def bfloat16_enabled(self) -> bool:
        """What the configuration says."""
        return bool(self.config.settings["bf16"]["enabled"])

    def optimizer_name(self) -> str | None:
        """What the configuration says, in lower case; None where it says none."""
        name = self.config.section("optimizer").get("type")
        return None if name is None else str(name).lower()

    def optimizer_params(self) -> Mapping[str, Any]:
        """What the configuration says."""
        found: Mapping[str, Any] = self.config.section("optimizer").get("params", {})
        return found

    def scheduler_name(self) -> str | None:
        """What the configuration says; None where it says none."""
        return self.config.section("scheduler").get("type")

    def scheduler_params(self) -> Mapping[str, Any]:
        """What the configuration says."""
        found: Mapping[str, Any] = self.config.section("scheduler").get("params", {})
        return found

    def zero_optimization_stage(self) -> int:
        """0 to 3."""
        return int(self.config.settings["zero_optimization"]["stage"])

    def zero_optimization(self) -> bool:
        """Whether replicas share anything."""
        return self.zero_optimization_stage() > 0

    def zero_optimization_partition_gradients(self) -> bool:
        """Whether they share gradients."""
        return self.zero_optimization_stage() >= 2

    def zero_optimization_partition_weights(self) -> bool:
        """Whether they share parameters."""
        return self.zero_optimization_stage() == 3

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        """True: whatever is saved has whole parameters."""
        return True

    def postscale_gradients(self) -> bool:
        """Whether gradients are divided after they are summed."""
        return not self.config.get("prescale_gradients", False)

    def zero_cpu_offload(self) -> bool:
        """Whether masters and states of the optimizer are in host memory by the configuration."""
        used = self.config.settings["zero_optimization"]["offload_optimizer"]
        return bool(used["device"] == "cpu")

    def checkpoint_tag_validation_enabled(self) -> bool:
        """True: ranks whose tags differ save nothing, and are told."""
        return True

    def checkpoint_tag_validation_fail(self) -> bool:
        """True: that is an error."""
        return True
