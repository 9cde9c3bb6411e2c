"""What a configuration may ask for, and a pipeline's engine does not do.

Keys and values have been read (penstock.configuration); knows no ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._engines.pipeline.pipeline_module import PipelineModule
    from penstock.configuration import Configuration

__all__ = ["refuse"]


def refuse(config: Configuration, model: PipelineModule) -> None:
    """Raises ConfigError for the first of it."""
    pipeline = config.section("pipeline")
    for key, has, argument in [
        ("stages", model.num_stages, "num_stages"),
        ("seed_layers", model.seed_layers, "seed_layers"),
    ]:
        if pipeline.get(key, "auto") not in ("auto", has):
            raise ConfigError(
                f"{config.name}: pipeline.{key} is {pipeline[key]!r}, and the PipelineModule was "
                f"made otherwise: say it there, as {argument}"
            )
