"""The tracer frontend: a model split into stages without being taken apart by hand.

    >>> pipe = pipeline(model, mb_args=(x,), split_spec={"layers.2": SplitPoint.BEGINNING})
    >>> pipe.num_stages
    2
    >>> taken_by_stage_1 = pipe.get_stage_module(0)(x)

torch.export traces the model with the arguments of one microbatch; where stages begin is said by
split points at its modules, by pipe_split() in its forward, or by a policy that marks the graph.
Stages keep the names of the parameters.  Sizes of the arguments may vary from microbatch to
microbatch wherever the model does not compute with their values.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from penstock._compatibility import published_as, refusal
from penstock._engines.torch_schedules.stage import _PipelineStage, build_stage
from penstock._engines.tracing.graph import remove_assertions
from penstock._engines.tracing.splitting import Made, split_into_stages
from penstock._engines.tracing.stage_module import Arguments, StageModule
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "Pipe",
    "PipeInfo",
    "SplitPoint",
    "TraceError",
    "annotate_split_points",
    "pipe_split",
    "pipeline",
]

_torch: Any = torch  # Stands where torch itself is not typed.
_library = _torch.library.Library("penstock", "DEF")
_library.define("pipe_split() -> ()")
_library.impl("pipe_split", lambda: None, "BackendSelect")
fx.node.has_side_effect(torch.ops.penstock.pipe_split.default)


def pipe_split() -> None:
    """Begins the next stage, in a model's forward.  Does nothing when the model runs."""
    torch.ops.penstock.pipe_split()


class SplitPoint(Enum):
    """The place at a module where a stage ends."""

    BEGINNING = 1
    END = 2


class TraceError(ConfigError):
    """A model that torch.export cannot trace: what broke, where, and how to split it by hand."""


@dataclass
class PipeInfo:
    """What is known of a traced model beside its stages."""

    graph: fx.Graph
    num_stages: int
    tied_parameters: dict[str, tuple[int, ...]]
    has_loss_and_backward: bool = False


class _Stages(nn.Module):
    """The stages as submod_0, submod_1 ..., one after the other.

    result: the model's, flat, as split_into_stages() gives it.
    """

    def __init__(self, stages: list[StageModule], result: list[Any]) -> None:
        super().__init__()
        for number, stage in enumerate(stages):
            self.add_module(f"submod_{number}", stage)
        self._result = result

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        first, *rest = self.children()
        value = first(*args, **kwargs)
        for stage in rest:
            value = stage(*value) if isinstance(value, tuple) else stage(value)
        made = value if isinstance(value, tuple) else (value,)
        return tuple(made[each.place] if isinstance(each, Made) else each for each in self._result)


class Pipe(nn.Module):
    """A model split into stages; called, it runs them one after the other, and gives a flat tuple
    of what the model gives.

    split_gm: the stages as its modules submod_0, submod_1 ...
    tied_parameters: by name, the stages of each parameter that more than one stage has.  They share
    one object in this process; its gradient is the sum over those stages.
    """

    split_gm: nn.Module
    tied_parameters: dict[str, tuple[int, ...]]

    def __init__(self, stages: list[StageModule], result: list[Any], graph: fx.Graph) -> None:
        super().__init__()
        self.split_gm = _Stages(stages, result)
        self.tied_parameters = {
            name: where for stage in stages for name, where in stage.tied_parameters.items()
        }
        self._info = PipeInfo(graph, len(stages), self.tied_parameters)

    def __getattr__(self, name: str) -> Any:
        reason = refusal("penstock.pipelining._tracer", f"Pipe.{name}")
        if reason is not None:
            raise AttributeError(reason)
        return super().__getattr__(name)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        flat: tuple[Any, ...] = self.split_gm(*args, **kwargs)
        return flat

    @property
    def num_stages(self) -> int:
        return self._info.num_stages

    def get_stage_module(self, stage_idx: int) -> StageModule:
        """The module of a stage."""
        if not 0 <= stage_idx < self.num_stages:
            raise ValueError(f"stage_idx is {stage_idx}, must be in 0 to {self.num_stages - 1}")
        stage = self.split_gm.get_submodule(f"submod_{stage_idx}")
        assert isinstance(stage, StageModule)
        return stage

    def build_stage(
        self,
        stage_index: int,
        device: torch.device,
        group: ProcessGroup | DeviceMesh | None = None,
    ) -> _PipelineStage:
        """The stage as a schedule runs it; build_stage() where its module is wrapped first."""
        return build_stage(
            self.get_stage_module(stage_index), stage_index, self._info, device, group
        )

    def info(self) -> PipeInfo:
        """What build_stage() takes."""
        return self._info

    def print_readable(self) -> None:
        """Prints the operations of each stage as Python."""
        for number in range(self.num_stages):
            print(f"# stage {number}")
            self.get_stage_module(number).print_readable()


def pipeline(
    module: nn.Module,
    mb_args: tuple[Any, ...],
    mb_kwargs: dict[str, Any] | None = None,
    split_spec: dict[str, SplitPoint] | None = None,
    split_policy: Callable[[fx.GraphModule], fx.GraphModule] | None = None,
) -> Pipe:
    """Traces a model and splits it; split points with no operation between them are one.

    mb_args, mb_kwargs: the arguments of one microbatch.
    split_spec: by the name of a submodule, where at it a stage ends; beside pipe_split() in the
    model.
    split_policy: takes the traced graph and puts calls of pipe_split in.

    Raises TraceError for a model that cannot be traced, ValueError for an unknown submodule and for
    a number that one stage computes and another needs.
    """
    if split_spec is not None and split_policy is not None:
        raise ValueError("pipeline: there are a split_spec and a split_policy, give one of them")
    given = _distinct((tuple(mb_args), dict(mb_kwargs or {})))
    with _split_points(module, split_spec or {}), _without_caches(module):
        program = _export(module, *given)
    traced: fx.GraphModule = program.module()
    arguments = _arguments_of(module, traced, program.call_spec.in_spec, given)
    remove_assertions(traced)
    if split_policy is not None:
        traced = split_policy(traced)
    stages, result = split_into_stages(traced, module, arguments)
    return Pipe(stages, result, traced.graph)


def annotate_split_points(mod: nn.Module, spec: Mapping[str, SplitPoint]) -> None:
    """Puts pipe_split() before or behind the forward of submodules, for good."""
    for name, point in spec.items():
        submodule = _submodule(mod, name)
        submodule.forward = _with_split(submodule.forward, point)


@contextlib.contextmanager
def _split_points(module: nn.Module, spec: Mapping[str, SplitPoint]) -> Iterator[None]:
    """The same while the model is traced."""
    before = {name: vars(_submodule(module, name)).get("forward") for name in spec}
    try:
        annotate_split_points(module, spec)
        yield
    finally:
        for name, forward in before.items():
            submodule = module.get_submodule(name)
            if forward is not None:
                submodule.forward = forward
            elif "forward" in vars(submodule):
                del submodule.forward


@contextlib.contextmanager
def _without_caches(module: nn.Module) -> Iterator[None]:
    """Hugging Face models, while they are traced: keys and values for a next token are no tensors.

    An argument use_cache of the model says otherwise.
    """
    configs: list[Any] = [getattr(each, "config", None) for each in module.modules()]
    caching = {id(each): each for each in configs if getattr(each, "use_cache", None) is True}
    for config in caching.values():
        config.use_cache = False
    try:
        yield
    finally:
        for config in caching.values():
            config.use_cache = True


def _submodule(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError:
        known = [path for path, _ in module.named_modules() if path]
        near = difflib.get_close_matches(name, known, 3)
        hint = f"; the nearest: {', '.join(near)}" if near else ""
        raise ValueError(
            f"split_spec has {name!r}, which is no submodule of {type(module).__name__}{hint}"
        ) from None


def _with_split(forward: Callable[..., Any], point: SplitPoint) -> Callable[..., Any]:
    if not isinstance(point, SplitPoint):
        raise TypeError(f"split_spec has {point!r}, must be SplitPoint.BEGINNING or SplitPoint.END")

    def split(*args: Any, **kwargs: Any) -> Any:
        if point is SplitPoint.BEGINNING:
            pipe_split()
        result = forward(*args, **kwargs)
        if point is SplitPoint.END:
            pipe_split()
        return result

    return split


def _distinct(given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """The arguments, each a tensor of its own: torch.export takes one given twice for one."""
    seen: set[int] = set()

    def distinct(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and id(value) in seen:
            return value.detach().clone().requires_grad_(value.requires_grad)
        seen.add(id(value))
        return value

    return pytree.tree_map(distinct, given)


def _export(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The traced model, with sizes that may vary where that can be."""
    sizes = _torch.export.ShapesCollection()
    for value in pytree.tree_leaves((args, kwargs)):
        if isinstance(value, torch.Tensor):
            sizes[value] = dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO)
    try:
        return _torch.export.export(module, args, kwargs, dynamic_shapes=sizes)
    except Exception:  # The second attempt, with fixed sizes, says what is wrong with the model.
        try:
            return torch.export.export(module, args, kwargs)
        except Exception as error:
            raise _explained(module, error) from error


def _explained(module: nn.Module, error: Exception) -> TraceError:
    what = str(error).strip().partition("\n")[0]
    notes = [
        "the other way is a module for each stage, written by hand, in a PipelineStage "
        "(docs/migrating_from_torch.md)"
    ]
    torch_folder = Path(torch.__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if torch_folder not in file.parents and file != Path(__file__):
            notes.insert(0, f"at {file}:{frame.lineno} in {frame.name}: {frame.line}")
            break
    kind = type(module).__name__
    return TraceError(
        f"pipeline: {kind} cannot be traced: {type(error).__name__}: {what}", tuple(notes)
    )


def _arguments_of(
    module: nn.Module,
    traced: fx.GraphModule,
    tree: pytree.TreeSpec,
    given: tuple[tuple[Any, ...], dict[str, Any]],
) -> Arguments:
    """What the arguments of every microbatch must be like."""
    values: list[Any] = []
    leaves = pytree.tree_flatten_with_path(given)[0]
    for node, (_, value) in zip(traced.graph.find_nodes(op="placeholder"), leaves, strict=True):
        if isinstance(value, torch.Tensor):
            shape = node.meta["val"].shape
            values.append(tuple(map(_fixed, shape)))
        else:
            values.append(value)
    positional = _positional_names(module)
    order = [name for name in positional[len(given[0]) :] if name in given[1]]
    by_position = positional[: len(given[0])]
    return Arguments(
        tree,
        tuple(values),
        tuple(_name_of(path) for path, _ in leaves),
        tuple(by_position),
        (*by_position, *order) if len(by_position) == len(given[0]) else tuple(by_position),
    )


def _positional_names(module: nn.Module) -> list[str]:
    """The names of its forward's parameters that take one argument by position or by name."""
    parameters = inspect.signature(module.forward).parameters.values()
    return [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]


def _fixed(size: Any) -> int | None:
    """The size, if the trace holds for no other."""
    return size if isinstance(size, int) else size.node.maybe_as_int()


def _name_of(path: tuple[Any, ...]) -> str:
    """ "args[0]" or "kwargs['y']"."""
    return ("args" if path[0].idx == 0 else "kwargs") + pytree.keystr(path[1:])


published_as("penstock.pipelining._tracer", globals())
