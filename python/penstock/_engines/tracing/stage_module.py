"""One stage of a traced model, as a module that runs its share of the traced operations.

_splitting makes it; the runtime runs it as it runs any module.  Parameters and buffers are those of
the traced model, by the names that they have there, and the very same objects: a parameter that two
stages use is in both.  Between stages go tensors by position; the first stage takes the arguments
of the model; the last one gives the tensors of its result, each once: one alone as it is, several
as a tuple.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from penstock._engines.tracing.training_mode import fixed_flags

__all__ = ["Arguments", "StageModule"]


@dataclass(frozen=True)
class Arguments:
    """What the model was traced with: its arguments must be like these.

    values: flat, positional ones first; a tensor as its shape, in which None may vary, else itself.
    positional: the names of those that were given by position, as far as they have some.
    order: the names of all, in the order in which the model takes them by position.
    """

    tree: pytree.TreeSpec
    values: tuple[Any, ...]
    names: tuple[str, ...]
    positional: tuple[str, ...]
    order: tuple[str, ...]

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments in the order of the trace; a ValueError for others than were traced.

        Each may be given by position or by its name, however it was traced.
        """
        traced = self.tree.child(1).context if self.tree.num_children == 2 else []
        args, kwargs = self._as_traced(args, kwargs)
        if set(kwargs) != set(traced):
            raise ValueError(
                f"the model was traced with the keyword arguments {_listed(traced)}, it is given "
                f"{_listed(kwargs)}"
            )
        flat, tree = pytree.tree_flatten((args, {name: kwargs[name] for name in traced}))
        if tree != self.tree:
            raise ValueError(f"the model was traced with arguments {self.tree}, it is given {tree}")
        for value, expected, name in zip(flat, self.values, self.names, strict=True):
            _check_like(value, expected, name)
        return flat

    def _as_traced(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments by position and by name, as the trace had them; others stay as they are."""
        count = len(self.positional)
        named = dict(zip(self.order[count:], args[count:], strict=False))
        more = args[:count] + args[count + len(named) :]
        both = [name for name in (*self.positional[: len(args)], *named) if name in kwargs]
        if both:
            raise ValueError(f"{_listed(both)} is given by position and by name")
        by_name = {**named, **kwargs}
        for name in self.positional[len(args) :]:
            if name not in by_name:
                break
            more = (*more, by_name.pop(name))
        return more, by_name


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "(none)"


def _check_like(value: Any, expected: Any, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        if value != expected:
            raise ValueError(f"{name} was {expected!r} when the model was traced, it is {value!r}")
        return
    shape = tuple(value.shape)
    fits = len(shape) == len(expected) and all(
        there is None or here == there for here, there in zip(shape, expected, strict=False)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in expected)
        raise ValueError(f"{name} has shape {shape}, the traced model takes ({wanted})")


class StageModule(nn.Module):
    """A stage: `forward` takes what the stage before gives, and gives what the next one takes.

    The first stage hands on what later ones need of the model's keyword arguments; those that a
    later stage is given are ignored, since a rank gives them to all its stages.

    stage_graph: its operations, as an fx graph.
    stage_inputs: the names of what it takes: of the values in the trace of the whole model.
    tied_parameters: of its parameters that other stages have, too, by name, all their stages.
    """

    stage_graph: fx.Graph
    stage_inputs: tuple[str, ...]
    tied_parameters: dict[str, tuple[int, ...]]

    def __init__(
        self,
        graph: fx.Graph,
        attributes: Mapping[str, tuple[Any, bool]],
        training: Mapping[str, bool],
        *,
        arguments: Arguments | None,
    ) -> None:
        """attributes: tensors and modules by path, and of a buffer whether it is saved.

        training: by path, which modules of the model train; each turns its dropout.
        arguments: of the first stage.
        """
        super().__init__()
        for path in dict.fromkeys(str(node.target) for node in graph.find_nodes(op="get_attr")):
            holder, name = _container(self, path.rpartition(".")[0]), path.rpartition(".")[2]
            if path in attributes:
                _put(holder, name, *attributes[path])
        for path, module in self.named_modules():
            module.training = training.get(path, training[""])
        self.stage_graph = graph
        self.stage_inputs = tuple(node.name for node in graph.find_nodes(op="placeholder"))
        self.tied_parameters = {}
        self._arguments = arguments
        self._run = _function_of(graph)

    def train(self, mode: bool = True) -> StageModule:
        """Turns dropout and batch norm; a ValueError where the trace has them in one mode."""
        if (not mode) in fixed_flags(self, self.stage_graph):
            raise ValueError(
                "the stage has dropout or batch norm that stays in "
                f"{'evaluation' if mode else 'training'} mode: the model was traced in it, or they "
                "stand in a block under autocast or no_grad; trace it after "
                f"model.{'train' if mode else 'eval'}(), or put autocast around the step"
            )
        super().train(mode)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._arguments is not None:
            args = tuple(self._arguments.flatten(args, kwargs))
        elif len(args) != len(self.stage_inputs):
            raise ValueError(
                f"the stage takes {len(self.stage_inputs)} tensors ({_listed(self.stage_inputs)}), "
                f"it is given {len(args)}"
            )
        outputs = self._run(self, *args)
        return outputs[0] if len(outputs) == 1 else outputs

    def print_readable(self) -> str:
        """Prints its operations as Python, and returns them."""
        code = str(self.stage_graph.python_code("self").src)
        print(code)
        return code


_numbers = itertools.count()


def _function_of(graph: fx.Graph) -> Callable[..., Any]:
    """The operations as a function of the module that has the tensors, and its inputs."""
    code = graph.python_code("self")
    file = f"<penstock stage {next(_numbers)}>"
    scope = dict(code.globals)
    exec(compile(code.src, file, "exec"), scope)
    # So that a traceback shows the line.
    linecache.cache[file] = (len(code.src), None, code.src.splitlines(keepends=True), file)
    function: Callable[..., Any] = scope["forward"]
    return function


def _container(root: nn.Module, path: str) -> nn.Module:
    """The module at `path`, made where there is none; "" is the root."""
    for name in path.split(".") if path else ():
        if name not in root._modules:
            root.add_module(name, nn.Module())
        root = root.get_submodule(name)
    return root


def _put(holder: nn.Module, name: str, value: Any, persistent: bool) -> None:
    if isinstance(value, nn.Module):
        holder.add_module(name, value)
    elif isinstance(value, nn.Parameter):
        holder.register_parameter(name, value)
    else:
        holder.register_buffer(name, value, persistent)
