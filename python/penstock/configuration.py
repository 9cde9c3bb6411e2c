"""Training configurations in DeepSpeed's form: a dict, or a JSON file.

    >>> batch = read({"train_batch_size": 32, "gradient_accumulation_steps": 4}).batch(replicas=2)
    >>> batch.train_micro_batch_size_per_gpu
    4

Every engine reads its configuration here.  A key that penstock does not know is an error, and so is
one that asks for what penstock lacks, and a value of another kind than the key's; the table is that
of `penstock config check` (penstock/plan/config/initialize_fields.h, deepspeed_rows.cpp).  Errors
are penstock.ConfigError, which is a ValueError, and say all that is wrong at once.  Knows no
engines: what one of them lacks, it says.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import _planning
from penstock._foreign_files import read_foreign
from penstock._json_values import as_json
from penstock.errors import ConfigError, ParseError

__all__ = ["Batch", "Configuration", "read"]

_log = logging.getLogger("penstock")


@dataclass(frozen=True)
class Batch:
    """Sizes of a step: samples over all ranks, samples of a microbatch, microbatches."""

    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int


_BYTES_MOST = 1 << 20  # kBytesMax in penstock/core/json/tree.h.
_OF_ONE_RANK = ("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state")


@dataclass(frozen=True, eq=False)
class Configuration(Mapping[str, Any]):
    """What was read, of the keys' kinds; a mapping of what was given, as DeepSpeed's engine.config.

    given: that mapping, without what is "auto" or None.
    settings: all keys that engines use, by section, with the defaults of those that are not given.
    name: of where it came from, for messages.  judged: what the reader made of it.
    """

    given: Mapping[str, Any]
    settings: Mapping[str, Any]
    name: str
    judged: _planning.ReadConfiguration

    def __getitem__(self, key: str) -> Any:
        return self.given[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)

    def section(self, key: str) -> Mapping[str, Any]:
        """What was given of a section; empty where it is absent."""
        found: Mapping[str, Any] = self.given.get(key, {})
        return found

    def facts(self) -> list[tuple[str, str]]:
        """What all ranks must have in common: JSON by the keys' paths.

        Paths of files are left out, which may be a rank's own, and what only says what is printed.
        """
        found: list[tuple[str, str]] = []

        def add(path: str, value: Any) -> None:
            if isinstance(value, Mapping):
                for key in sorted(value):
                    add(f"{path}.{key}" if path else str(key), value[key])
            elif not path.endswith("path") and path not in _OF_ONE_RANK:
                found.append(
                    (f"config {path}", json.dumps(value, default=lambda each: type(each).__name__))
                )

        add("", self.given)
        return found

    def tell_what_has_no_effect(
        self,
        *,
        is_pipeline: bool,
        has_optimizer: bool,
        has_scheduler: bool,
        others: Sequence[str] = (),
    ) -> None:
        """Writes to the log which keys have no effect on such an engine, and why.

        has_optimizer, has_scheduler: were given as arguments.  others: lines about the model's own.
        """
        of_keys = self.judged.warnings(
            is_pipeline=is_pipeline, has_optimizer=has_optimizer, has_scheduler=has_scheduler
        )
        for line in (*of_keys, *others):
            _log.warning("%s", line)

    def batch(self, replicas: int) -> Batch:
        """The three sizes, of which two give the third; a size alone takes one microbatch a step.

        Raises ConfigError where they do not fit, with what would.
        """
        try:
            return Batch(*self.judged.batch(replicas))
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error.message}", error.notes) from None


def read(config: Mapping[str, Any] | str | Path, *, needs_sizes: bool = True) -> Configuration:
    """A configuration from a dict, or from a JSON file, or, with the package hjson, an Hjson file.

    config: values of a dict may be anything that stands for a value of JSON: numbers of numpy,
        enums, paths, tensors of one element, types of torch.
    needs_sizes: those of a batch must be there, or follow.
    Raises ParseError for what is no JSON, or has a key twice, and ConfigError for a file that
    cannot be read, and for all keys that are unknown or ask for what penstock lacks.
    """
    if isinstance(config, Mapping):
        name = "config"
        values: Mapping[str, Any] | None = _with_whole_names(config) or config
    else:
        name = str(config)
        values = _with_whole_names(_values_in(name))
    if values is not None:
        judged = _planning.parse_configuration(as_json(values, name), needs_sizes)
    else:
        judged = _from_file(name, needs_sizes)
    return Configuration(_given(judged.values), json.loads(judged.settings), name, judged)


def _from_file(name: str, needs_sizes: bool) -> _planning.ReadConfiguration:
    try:
        return _planning.read_configuration(name, needs_sizes)
    except ParseError as error:
        found = _from_hjson(_text_of(name, error), error)
    try:
        return _planning.parse_configuration(as_json(found, name), needs_sizes)
    except ConfigError as error:
        raise type(error)(f"{name}: {error.message}", error.notes) from None


def _from_hjson(text: str, of_json: ParseError) -> dict[str, Any]:
    """Values of a file that is no JSON; of_json is raised where it is no Hjson either, or none is
    there.

    Hjson has comments, and keys and texts without quotes.
    """
    try:
        hjson = importlib.import_module("hjson")
    except ImportError:
        raise of_json from None

    def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise of_json
        return found

    try:
        found = hjson.loads(text, object_pairs_hook=once)
    except ValueError:
        raise of_json from None
    if not isinstance(found, dict):
        raise of_json
    return found


STAGE3 = {
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
    "gather_16bit_weights_on_model_save",
    "module_granularity_threshold",
    "use_all_reduce_for_fetch_params",
    "allgather_sequential",
    "partition_stream_chunk_size",
}
"""Keys of zero_optimization that begin with "stage3_", without it: DeepSpeed takes either."""


def _with_whole_names(config: Any) -> dict[str, Any] | None:
    """The values with keys of STAGE3 as the reader knows them; None: none needs a change."""
    section = config.get("zero_optimization") if isinstance(config, Mapping) else None
    if not isinstance(section, Mapping):
        return None
    short = {key for key in STAGE3 & section.keys() if f"stage3_{key}" not in section}
    if not short:
        return None
    whole = {f"stage3_{key}" if key in short else key: value for key, value in section.items()}
    return {**config, "zero_optimization": whole}


def _values_in(path: str) -> Any:
    """The values of a file; None of one that the reader has to object to."""
    try:
        return json.loads(read_foreign(path, _BYTES_MOST).decode("utf-8"))
    except ValueError:  # ConfigError, too.
        return None


def _text_of(path: str, of_json: ParseError) -> str:
    """The text of a file that is no JSON; of_json is raised where it cannot be read again."""
    try:
        return read_foreign(path, _BYTES_MOST).decode("utf-8")
    except ValueError:
        raise of_json from None


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not None or "auto"; arguments of classes are what they are."""
    return {
        key: _given(value) if isinstance(value, Mapping) and key != "params" else value
        for key, value in values.items()
        if value is not None and value != "auto"
    }
