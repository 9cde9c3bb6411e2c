"""penstock.initialize: an engine for a model, by what the model is.

An engine is a class of its own, which reads its configuration with penstock.configuration; this
module chooses.  Imports torch when it is called, and not before.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock._compatibility import published_as
from penstock._distributed import init_distributed
from penstock.errors import AssertedError, ConfigError

__all__ = ["add_config_arguments", "initialize"]


def initialize(
    args: Any = None,
    model: Any = None,
    optimizer: Any = None,
    model_parameters: Iterable[Any] | None = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int | None = None,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    config: Mapping[str, Any] | str | Path | None = None,
    mesh_param: Any = None,
    config_params: Mapping[str, Any] | str | Path | None = None,
) -> tuple[Any, Any, Any, Any]:
    """An engine that trains `model`, its optimizer, its loader of training_data, its scheduler.

    Collective over all ranks; joins torch.distributed, unless that has been done.

    model: a torch.nn.Module, over replicas; a penstock.pipe.PipelineModule, in stages.
    config: a dict, or the path of a JSON file (penstock.configuration); config_params and
        args.deepspeed_config say it, too, and args.deepscale_config, its older name.
    optimizer, model_parameters, lr_scheduler, training_data, collate_fn: as the engine says
        (penstock.zero.engine.Engine, penstock.pipe.PipelineEngine).
    distributed_port, dist_init_required: as of penstock.init_distributed().
    mpu, mesh_param: must be None.

    The optimizer is None if neither the configuration nor an argument names one: such an engine
    evaluates only.  The loader is None without training_data, and the scheduler if there is none.
    Raises ConfigError for a model of another kind, and as the engine does.
    """
    found = [each for each in (config, config_params, _of(args)) if each is not None]
    if not found:
        raise AssertedError("initialize() needs a config: a dict, or the path of a JSON file")
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
        if value is not None:
            raise ConfigError(
                f"{name} must be None: replicas are all ranks, and a PipelineModule says its "
                f"topology itself"
            )
    init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    engine = _engine_for(model)(
        model,
        found[0],
        optimizer=optimizer,
        model_parameters=model_parameters,
        lr_scheduler=lr_scheduler,
        training_data=training_data,
        collate_fn=collate_fn,
    )
    from penstock._engines.update.optimizers import NoOptimizer

    made = None if isinstance(engine.optimizer, NoOptimizer) else engine.optimizer
    return engine, made, engine.training_dataloader, engine.lr_scheduler


def _engine_for(model: Any) -> type[Any]:
    from torch.nn import Module

    from penstock._engines.module.module_engine import Engine
    from penstock._engines.pipeline.pipeline_engine import PipelineEngine
    from penstock._engines.pipeline.pipeline_module import PipelineModule

    if model is None:
        raise AssertedError("initialize() needs a model: a torch.nn.Module, by the name model")
    if isinstance(model, PipelineModule):
        return PipelineEngine
    if isinstance(model, Module):
        return Engine
    raise ConfigError(
        f"model is a {type(model).__name__}, must be a torch.nn.Module",
        ("a Hugging Face folder is trained by penstock.Trainer",) if _is_path(model) else (),
    )


def _is_path(model: Any) -> bool:
    return isinstance(model, str | Path)


def add_config_arguments(parser: ArgumentParser) -> ArgumentParser:
    """Adds --deepspeed, which changes nothing, and --deepspeed_config, which initialize() reads."""
    group = parser.add_argument_group("penstock", "read by penstock.initialize()")
    group.add_argument("--deepspeed", action="store_true", help="taken, and not used")
    group.add_argument("--deepspeed_config", help="path of a configuration in JSON")
    return parser


def _of(args: Any) -> str | None:
    """The file that a command line of DeepSpeed's names; deepscale_config is its older word."""
    found = [getattr(args, name, None) for name in ("deepspeed_config", "deepscale_config")]
    path = next((each for each in found if each is not None), None)
    return None if path is None else str(path)


published_as("penstock", globals())
