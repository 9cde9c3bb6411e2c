"""Reads checkpoints of DeepSpeed: ZeRO 0 to 3, pipelines, and universal ones.

    TAG/mp_rank_00_model_states.pt                     module, counters, client_state; of a stage
    TAG/layer_00-model_states.pt                       weights of a pipeline's layer
    TAG/zero_pp_rank_0_mp_rank_00_optim_states.pt      flat masters and states of a replica
    TAG/zero_pp_rank_0_mp_rank_00_model_states.pt      the same of ZeRO 3, with buffers
    TAG/zero/NAME/fp32.pt, exp_avg.pt ..               a universal checkpoint, by parameter

Source: files that DeepSpeed 0.19 has written, and their structure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from penstock._engines.importing.imported_checkpoint import Imported, load_plain
from penstock.errors import CheckpointError

__all__ = ["is_deepspeed", "read_deepspeed"]

_INTERNAL = {
    *("module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes"),
    *("shared_params", "frozen_param_fragments", "lr_scheduler", "data_sampler", "random_ltd"),
    *("sparse_tensor_module_names", "skipped_steps", "global_steps", "global_samples"),
    *("dp_world_size", "mp_world_size", "checkpoint_parallel_dimensions", "ds_config"),
    *("ds_version", "num_experts", "universal_checkpoint_info", "autotp_uc_info"),
}
_MASTER = "fp32"
Flat = dict[str, torch.Tensor]
"""A name's pieces, one after the other: of its master (fp32), and of what the optimizer keeps."""


def is_deepspeed(folder: Path) -> bool:
    """Whether the folder is a tag of DeepSpeed's."""
    return any(folder.glob("*mp_rank_*_model_states.pt"))


def read_deepspeed(folder: Path) -> Imported:
    """Raises CheckpointError for what cannot be read, or is not taken over."""
    try:
        return _read(folder)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        what = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{folder} is not as DeepSpeed writes it: {what}") from error


def _read(folder: Path) -> Imported:
    _check_files(folder)
    stages = [_load(path) for path in sorted(folder.glob("mp_rank_*_model_states.pt"))]
    replicas = [
        _load(path) for path in sorted(folder.glob("zero_pp_rank_*_model_states.pt"), key=_ranks)
    ]
    first = (stages or replicas or [None])[0]
    if first is None:
        raise CheckpointError(f"{folder} is no checkpoint of DeepSpeed: it has no model states")
    layers = {
        int(path.name[6:].split("-")[0]): _load(path)
        for path in sorted(folder.glob("layer_*-model_states.pt"))
    }
    found = Imported(int(first["global_steps"]), f"DeepSpeed {first.get('ds_version', '')}".strip())
    _take_common(first, found)
    _check_parts(folder, first, layers)
    updates = [
        _load(path) for path in sorted(folder.glob("*zero_pp_rank_*_optim_states.pt"), key=_ranks)
    ]
    _take_scale(updates, found)
    if (folder / "zero").is_dir():
        _take_modules(stages or replicas, layers, found)
        _take(_of_universal(folder / "zero"), layers, found)
    elif replicas:
        _take_modules(replicas, layers, found)
        _take_whole(_of_zero_3(replicas, updates), replicas[0]["param_shapes"], found)
        _take_frozen(replicas, found)
    else:
        _take_modules(stages, layers, found)
        if updates:
            _take(_of_slices(updates), layers, found)
        else:
            _take_optimizers(stages, layers, found)
    for update in updates[:1]:
        state = update["optimizer_state_dict"]
        base = state.get("base_optimizer_state", state.get("optimizer_state_dict", {}))
        found.set_groups(base.get("param_groups", []), _names_by_group(first))
    found.left_out.append("random numbers and the place in the data, which it does not have")
    return found


def _names_by_group(first: Mapping[str, Any]) -> list[list[str]] | None:
    """The parameters' names of each group of a ZeRO optimizer, where it says so."""
    shapes = first.get("param_shapes")
    return [list(each) for each in shapes] if isinstance(shapes, list) else None


def _check_files(folder: Path) -> None:
    """Raises CheckpointError for parts of other kinds, and for files that are missing."""
    for pattern, what in (
        ("*_expert_*", "has experts (MoE)"),
        ("layer_*-model_*-model_states.pt", "is of a model in tensor-parallel parts"),
        ("layer_*-model_[0-9]*", "is of a model in tensor-parallel parts"),
    ):
        if found := next(folder.glob(pattern), None):
            raise CheckpointError(f"{folder} {what}, which are not read: {found.name}")
    numbers = sorted(int(path.name[8:10]) for path in folder.glob("mp_rank_*_model_states.pt"))
    if numbers != list(range(len(numbers))):
        raise CheckpointError(f"{folder} has model states of ranks {numbers}: some are missing")


def _check_parts(folder: Path, first: Mapping[str, Any], layers: Mapping[int, Any]) -> None:
    sizes = first.get("checkpoint_parallel_dimensions") or {}
    ranks = int(first.get("mp_world_size") or 1)
    stages = int(sizes.get("pp_degree", ranks if layers else 1))
    if sizes.get("tp_degree", 1) > 1 or (ranks > 1 and not layers):
        raise CheckpointError(f"{folder} is of a model in tensor-parallel parts, which is not read")
    if any(first.get("num_experts") or []):
        raise CheckpointError(f"{folder} has experts (MoE), which are not read")
    replicas = int(first.get("dp_world_size") or 1)
    models = list(folder.glob("mp_rank_*_model_states.pt"))
    if models and len(models) < stages:
        raise CheckpointError(f"{folder} has model states of {len(models)} of {stages} stages")
    updates = {_ranks(path) for path in folder.glob("*zero_pp_rank_*_optim_states.pt")}
    of_models = {_ranks(path) for path in folder.glob("zero_pp_rank_*_model_states.pt")}
    needed = {(stage, replica) for stage in range(stages) for replica in range(replicas)}
    for has, what in ((updates, "optim"), (of_models, "model")):
        for stage, replica in sorted(needed - has) if has else ():
            name = f"zero_pp_rank_{replica}_mp_rank_{stage:02d}_{what}_states.pt"
            raise CheckpointError(f"{folder} has no {name}, and has those of other ranks")
    if (of_models and not updates) or (
        first.get("optimizer") is None
        and not updates
        and _is_zero(first)
        and not (folder / "zero").is_dir()
    ):
        raise CheckpointError(f"{folder} has no *_optim_states.pt, which ZeRO writes")


def _is_zero(first: Mapping[str, Any]) -> bool:
    section = (first.get("ds_config") or {}).get("zero_optimization") or {}
    return int(section.get("stage", 0)) > 0


def _load(path: Path) -> Any:
    return load_plain(path, "deepspeed")


def _ranks(path: Path) -> tuple[int, int]:
    """The stage, then the replica, by a file's name."""
    found = re.search(r"zero_pp_rank_(\d+)_mp_rank_(\d+)", path.name)
    return (int(found[2]), int(found[1])) if found else (0, 0)


def _take_common(first: Mapping[str, Any], found: Imported) -> None:
    found.counters["samples"] = int(first.get("global_samples", 0))
    found.texts["skipped steps"] = str(int(first.get("skipped_steps", 0)))
    found.client_state = {key: value for key, value in first.items() if key not in _INTERNAL}
    course = first.get("lr_scheduler")
    if course is not None:
        kind = first.get("ds_config", {}).get("scheduler", {}).get("type")
        state = dict(course)
        if set(state) == {"last_batch_iteration"}:
            state = {"last_epoch": state["last_batch_iteration"] + 1}
        found.lr_scheduler = {"type": kind, "state": state}


def _take_scale(updates: list[Any], found: Imported) -> None:
    """Takes over a loss scale that moves."""
    for update in updates[:1]:
        scaler = update["optimizer_state_dict"].get("loss_scaler")
        if update["optimizer_state_dict"].get("dynamic_loss_scale") and scaler is not None:
            clean = scaler.cur_iter - scaler.last_overflow_iter - 1
            found.texts["gradient scale"] = (
                f"{float(scaler.cur_scale)!r} {int(scaler.cur_hysteresis)} {max(0, int(clean))}"
            )


def _take_modules(models: list[Any], layers: Mapping[int, Any], found: Imported) -> None:
    """Weights as the model has them, and buffers; masters replace them later."""
    for model in models:
        shared = model.get("shared_params") or {}
        found.shared.update(shared)
        for name, value in (model.get("module") or {}).items():
            if isinstance(value, torch.Tensor) and name not in shared and value.numel() > 0:
                found.weights.setdefault(name, value)
    for layer, state in layers.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                found.weights[f"{layer}.{name}"] = value
            else:
                found.left_out.append(f"{layer}.{name}, an extra state")


def _of_slices(updates: list[Any]) -> dict[str, Flat]:
    """The states of ZeRO 1 and 2: each replica has slices of a flat tensor by group."""
    pieces: dict[str, dict[str, list[torch.Tensor]]] = {}
    steps: dict[str, Any] = {}
    seen: dict[str, int] = {}  # The stage that a name is taken of: tied ones are in several.
    for number, update in enumerate(updates):
        state = update["optimizer_state_dict"]
        stage = number // max(1, int(state["partition_count"][0]))
        masters = state["single_partition_of_fp32_groups"]
        kept = state["base_optimizer_state"]["state"]
        for group, slices in enumerate(state["param_slice_mappings"]):
            for name, place in slices.items():
                if seen.setdefault(name, stage) != stage:
                    continue
                of_name = pieces.setdefault(name, {})
                for key, flat in {_MASTER: masters[group], **kept.get(group, {})}.items():
                    if isinstance(flat, torch.Tensor) and flat.numel() > 1:
                        piece = flat.reshape(-1)[place.start : place.start + place.numel]
                        of_name.setdefault(key, []).append(piece)
                    else:
                        steps.setdefault(name, {})[key] = flat
    return {
        name: {key: torch.cat(each) for key, each in of_name.items()} | steps.get(name, {})
        for name, of_name in pieces.items()
    }


def _of_zero_3(replicas: list[Any], updates: list[Any]) -> dict[str, Flat]:
    """The states of ZeRO 3: equal shares of each parameter, the last one filled up."""
    shapes = [item for group in replicas[0]["param_shapes"] for item in group.items()]
    flats: list[dict[str, torch.Tensor]] = []
    steps: dict[str, Any] = {}
    for update in updates:
        state = update["optimizer_state_dict"]
        kept = state["optimizer_state_dict"]["state"]
        masters = state["fp32_flat_groups"]
        of_rank = {_MASTER: torch.cat([each.reshape(-1) for each in masters])}
        for key, value in (kept.get(0) or {}).items():
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                of_rank[key] = torch.cat([kept[i][key].reshape(-1) for i in range(len(masters))])
            else:
                steps[key] = value
        flats.append(of_rank)
    found = {}
    offset = 0
    for name, shape in shapes:
        share = -(-shape.numel() // len(flats))
        found[name] = {
            key: torch.cat([each[key][offset : offset + share] for each in flats])[: shape.numel()]
            for key in flats[0]
        } | dict(steps)
        offset += share
    return found


def _of_universal(folder: Path) -> dict[str, Flat]:
    found: dict[str, Flat] = {}
    for path in sorted(each for each in folder.iterdir() if each.is_dir()):
        of_name = {}
        for file in sorted(path.glob("*.pt")):
            content = _load(file)
            of_name[file.stem] = content["param"] if isinstance(content, dict) else content
        found[path.name] = of_name
    return found


def _take(flat: dict[str, Flat], layers: Mapping[int, Any], found: Imported) -> None:
    """Masters and states, whose shapes are those of the weights."""
    names = _names_in_layers(flat, layers, found)
    for known, states in flat.items():
        name = names.get(known, known)
        weight = found.weights.get(name)
        if weight is None:
            raise CheckpointError(f"there are masters of {known}, and no weight of that name")
        _take_states(name, states, weight.shape, found)


def _take_whole(flat: dict[str, Flat], shapes: list[Any], found: Imported) -> None:
    """Takes weights and states of ZeRO 3, whose modules have no weights."""
    for group in shapes:
        for name, shape in group.items():
            _take_states(name, flat[name], shape, found)


def _take_states(name: str, states: Mapping[str, Any], shape: torch.Size, found: Imported) -> None:
    for key, value in states.items():
        is_by_element = isinstance(value, torch.Tensor) and value.numel() == shape.numel()
        if is_by_element and (value.dim() > 0 or len(shape) == 0):
            value = value.reshape(shape)
        elif key == _MASTER:
            raise CheckpointError(
                f"the master of {name} has {value.numel()} elements, must have {shape.numel()}"
            )
        if key == _MASTER:
            found.weights[name] = value
        else:
            found.states.setdefault(name, {})[key] = value


def _take_frozen(replicas: list[Any], found: Imported) -> None:
    shapes = replicas[0].get("frozen_param_shapes") or {}
    for name, shape in shapes.items():
        parts = [each["frozen_param_fragments"][name].reshape(-1) for each in replicas]
        found.weights[name] = torch.cat(parts)[: shape.numel()].reshape(shape)


def _names_in_layers(
    flat: Mapping[str, Flat], layers: Mapping[int, Any], found: Imported
) -> dict[str, str]:
    """A pipeline's tied parameters are called by their key; here, by their layer, whose file has
    the same values."""
    names: dict[str, str] = {}
    for known, states in flat.items():
        if not known.startswith("tied_modules.") or known in found.weights:
            continue
        suffix = known.split(".", 2)[2]
        master = states[_MASTER].reshape(-1)
        for layer, state in layers.items():
            weight = state.get(suffix)
            is_it = (
                weight is not None
                and f"{layer}.{suffix}" not in flat
                and weight.numel() == master.numel()
                and torch.equal(master.to(weight.dtype), weight.reshape(-1))
            )
            if is_it:
                names[known] = f"{layer}.{suffix}"
                break
        else:
            raise CheckpointError(f"no file of a layer has the values of {known}")
    return names


def _take_optimizers(stages: list[Any], layers: Mapping[int, Any], found: Imported) -> None:
    """Takes states without ZeRO, by the parameters' numbers, whose order is the model's."""
    if all(stage.get("optimizer") is None for stage in stages):
        found.left_out.append("the optimizer, which it does not have")
        return
    taken: set[str] = set()
    for stage in stages:
        optimizer = stage["optimizer"]
        if "state" not in optimizer:
            raise CheckpointError(
                "its masters are those of DeepSpeed's fp16 or bf16 optimizer without ZeRO, which "
                "are not read: save it with ZeRO 1"
            )
        groups = optimizer["param_groups"]
        if len(groups) > 1:
            raise CheckpointError(
                f"the optimizer has states by number, in the order of {len(groups)} parameter "
                f"groups, and nothing says which parameters these have: save it with ZeRO 1"
            )
        states = [optimizer["state"][i] for i in sorted(optimizer["state"])]
        names = _names_of(states, stage, layers, taken, found)
        for name, state in zip(names, states, strict=True):
            taken.add(name)
            _take_states(name, state, found.weights[name].shape, found)
        found.set_groups(groups)


def _names_of(
    states: list[Any], stage: Any, layers: Mapping[int, Any], taken: set[str], found: Imported
) -> list[str]:
    """The names that have the states' shapes, in the model's order; of a pipeline's stage, its
    tied layers come first, and then layers that follow each other."""
    shapes = [_shape_of(state) for state in states]
    buffers = set(stage.get("buffer_names") or [])
    names = [name for name in found.weights if name not in buffers]
    if not layers:
        names = [name for name in names if name not in (stage.get("frozen_param_shapes") or {})]
        candidates = [names]
        if len(names) > len(shapes):
            candidates = [list(each) for each in _without(names, len(names) - len(shapes))]
    else:
        candidates = list(_of_stage(names, taken, len(shapes)))
    fits = {
        tuple(each) for each in candidates if [found.weights[name].shape for name in each] == shapes
    }
    if len(fits) != 1:
        raise CheckpointError(
            f"the optimizer has states of {len(shapes)} parameters by number, and "
            f"{'no' if not fits else 'more than one'} choice of weights has their shapes: save it "
            f"with ZeRO 1"
        )
    return list(fits.pop())


def _shape_of(state: Mapping[str, Any]) -> torch.Size:
    tensors = [each for each in state.values() if isinstance(each, torch.Tensor) and each.dim()]
    return tensors[0].shape if tensors else torch.Size()


def _without(names: list[str], count: int) -> Iterator[list[str]]:
    """Some in a row may be frozen."""
    for first in range(len(names) - count + 1):
        yield names[:first] + names[first + count :]


def _of_stage(names: list[str], taken: set[str], count: int) -> Iterator[list[str]]:
    """Some tied ones, of any layer, and then those of the next layers."""
    for tied in range(count + 1):
        for first in range(len(names) - tied + 1):
            head = names[first : first + tied]
            rest = [name for name in names if name not in taken and name not in head]
            if len(rest) >= count - tied:
                yield head + rest[: count - tied]
            if tied == 0:
                break
