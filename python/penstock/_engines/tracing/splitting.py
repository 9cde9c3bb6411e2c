"""Splits the graph of a traced model into stages.

_tracer traces and marks; here each operation goes to the stage in which the model runs it, and each
value to the stages that need it.  What is made of constants, buffers and sizes alone (positions,
masks, rotary embeddings) is made again where it is needed; all else is handed on from stage to
stage, through those that do not need it, too.  Knows no ranks and no schedules.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from penstock._engines.tracing.graph import is_pure, mutated_roots, name_list_items
from penstock._engines.tracing.stage_module import Arguments, StageModule
from penstock._engines.tracing.training_mode import follow_training, training_flags

__all__ = ["Made", "split_into_stages"]

_SIZE = torch.ops.aten.sym_size.int
_MARKERS = ("penstock.pipe_split.default", "pippy._pipe_split.default")


def _is_marker(node: fx.Node) -> bool:
    """Whether a stage ends here: a call of pipe_split, torch's own too."""
    return node.op == "call_function" and str(node.target) in _MARKERS


@dataclass(frozen=True)
class Made:
    """What a model's last stage makes, in its flat result: the one at `place`."""

    place: int


def split_into_stages(
    traced: fx.GraphModule, model: nn.Module, arguments: Arguments
) -> tuple[list[StageModule], list[Any]]:
    """The stages between the markers in a flat graph of ATen operations; and the model's result.

    model: what was traced, whose names parameters and buffers keep.
    The result is flat: what is made as Made, all else itself.
    Raises ValueError for a value that crosses into another stage and is no tensor, and for a marker
    in a block under no_grad or autocast.
    """
    _check_blocks(traced)
    name_list_items(traced.graph)
    traced.graph.eliminate_dead_code()
    follow_training(traced.graph, model)
    attributes = _attributes_of(traced, model)
    split = _Split(traced.graph, attributes)
    stages = [
        StageModule(
            split.graph_of(stage),
            attributes,
            training_flags(model),
            arguments=arguments if stage == 0 else None,
        )
        for stage in range(split.count)
    ]
    _tie(stages)
    places = {value: Made(place) for place, value in enumerate(split.results)}
    result = [places[each] if isinstance(each, fx.Node) else each for each in split.output_values]
    return stages, result


def _check_blocks(traced: fx.GraphModule) -> None:
    """Blocks under no_grad or autocast are graphs of their own, and stay whole."""
    for path, block in traced.named_modules():
        if path and isinstance(block, fx.GraphModule) and any(map(_is_marker, block.graph.nodes)):
            raise ValueError(
                "a split point is in a block of the model that runs under autocast or no_grad, "
                "which cannot be split: put autocast around the step instead"
            )


def _tie(stages: list[StageModule]) -> None:
    """Says of each stage which of its parameters others have, too."""
    holders: dict[str, list[int]] = {}
    for number, stage in enumerate(stages):
        for name, _ in stage.named_parameters():
            holders.setdefault(name, []).append(number)
    for stage in stages:
        for name, _ in stage.named_parameters():
            if len(holders[name]) > 1:
                stage.tied_parameters[name] = tuple(holders[name])


def _attributes_of(traced: fx.GraphModule, model: nn.Module) -> dict[str, tuple[Any, bool]]:
    """What the graph takes from the model, and whether it is saved, by path.

    A tensor of several names goes by the first that the model has for it.
    """
    names: dict[int, str] = {}
    for tensors in (model.named_parameters(), model.named_buffers()):
        for name, tensor in tensors:
            names.setdefault(id(tensor), name)
    saved = traced.state_dict().keys()
    attributes = {}
    for node in traced.graph.find_nodes(op="get_attr"):
        path = str(node.target)
        if path.rpartition(".")[2] == "training":
            continue
        value = operator.attrgetter(path)(traced)
        node.target = names.get(id(value), path)
        attributes[node.target] = (value, path in saved)
    return attributes


@dataclass(frozen=True)
class _Needs:
    """What an operation is made of: values that have a stage, and sizes of such values."""

    values: frozenset[fx.Node] = frozenset()
    sizes: frozenset[fx.Node] = frozenset()

    def __or__(self, other: _Needs) -> _Needs:
        return _Needs(self.values | other.values, self.sizes | other.sizes)


class _Split:
    """Decides which stage runs what and takes what."""

    def __init__(self, graph: fx.Graph, attributes: Mapping[str, tuple[Any, bool]]) -> None:
        self.count = 1
        self._placeholders = list(graph.find_nodes(op="placeholder"))
        self._output = next(iter(graph.find_nodes(op="output")))
        # The model's flat result, and what is made of it, each once.
        values: Any = self._output.args[0]
        self.output_values = list(values)
        made = (each for each in self.output_values if isinstance(each, fx.Node))
        self.results = list(dict.fromkeys(made))
        self._order = {node: i for i, node in enumerate(graph.nodes)}
        self._mutated = mutated_roots(graph)
        # Of what runs in one stage alone, and of the model's arguments; all else is made again.
        self._home: dict[fx.Node, int] = {}
        self._needs_of: dict[fx.Node, _Needs] = {}
        self._place(graph, attributes)
        self._inputs = self._hand_on()

    def _place(self, graph: fx.Graph, attributes: Mapping[str, tuple[Any, bool]]) -> None:
        stage = 0
        again: set[fx.Node] = set()
        written = {node.target for node in self._mutated if node.op == "get_attr"}
        for node in graph.nodes:
            if _is_marker(node):
                stage += 1
            elif node.op == "placeholder":
                self._home[node] = 0
            elif node.op == "get_attr":
                value = attributes.get(str(node.target), (None, False))[0]
                if not isinstance(value, nn.Parameter) and node.target not in written:
                    again.add(node)
            elif node.op != "output":
                if self._is_made_again(node, again):
                    again.add(node)
                else:
                    first = node.args[0] if node.target is operator.getitem else None
                    self._home[node] = self._home[first] if isinstance(first, fx.Node) else stage
        # A stage without operations is none.
        used = sorted({home for node, home in self._home.items() if node.op != "placeholder"})
        for node, home in self._home.items():
            self._home[node] = 0 if node.op == "placeholder" else used.index(home)
        self.count = max(1, len(used))

    def _is_made_again(self, node: fx.Node, again: set[fx.Node]) -> bool:
        if node in self._mutated or not is_pure(node):
            return False
        return _is_size(node) or all(each in again for each in node.all_input_nodes)

    def _needs(self, node: fx.Node) -> _Needs:
        """The needs of `node`, seen through what is made again."""
        needs = _Needs()
        for each in node.all_input_nodes:
            if each in self._home:
                needs |= _Needs(values=frozenset({each}))
            elif _is_size(each) and each.args[0] in self._home:
                needs |= _Needs(sizes=frozenset({each}))
            elif each.op != "get_attr":
                if each not in self._needs_of:
                    self._needs_of[each] = self._needs(each)
                needs |= self._needs_of[each]
        return needs

    def _hand_on(self) -> list[list[fx.Node]]:
        """The values that each stage takes, in the order of the trace; found from the last on."""
        inputs: list[list[fx.Node]] = []
        taken: set[fx.Node] = set()
        for stage in reversed(range(1, self.count)):
            needs = _Needs(values=frozenset(taken))
            for node in self._run_by(stage):
                needs |= self._needs(node)
            taken = {node for node in needs.values if self._home[node] < stage}
            for size in sorted(needs.sizes, key=self._order.__getitem__):
                if self._home[_source(size)] < stage and _like(size, taken) is None:
                    taken.add(self._latest_like(size, stage))
            inputs.insert(0, sorted(taken, key=self._order.__getitem__))
            _check_tensors(inputs[0], stage, self._home)
        return [self._placeholders, *inputs]

    def _latest_like(self, size: fx.Node, stage: int) -> fx.Node:
        """The last value made before a stage that has a size: it goes through the fewest stages."""
        before = [node for node, home in self._home.items() if home < stage]
        for node in sorted(before, key=lambda node: (self._home[node], self._order[node]))[::-1]:
            if _like(size, [node]):
                return node
        return _source(size)

    def _run_by(self, stage: int) -> Iterator[fx.Node]:
        for node, home in self._home.items():
            if home == stage and node.op != "placeholder":
                yield node
        if stage == self.count - 1:
            yield self._output

    def graph_of(self, stage: int) -> fx.Graph:
        """The operations of a stage."""
        graph = fx.Graph()
        here: dict[fx.Node, fx.Node] = {}

        def value(node: fx.Node) -> fx.Node:
            if node not in here:
                if _is_size(node) and _source(node) not in here and _source(node) in self._home:
                    tensor, dim = _like(node, self._inputs[stage]) or (_source(node), node.args[1])
                    here[node] = graph.call_function(_SIZE, (here[tensor], dim))
                else:
                    here[node] = graph.node_copy(node, value)
            return here[node]

        for node in self._inputs[stage]:
            here[node] = graph.placeholder(node.name)
        written = mutated_roots(self._run_by(stage)) if stage > 0 else set()
        for node in self._inputs[stage]:
            if (
                node in written
            ):  # What came from another stage is autograd's, and not to be changed.
                here[node] = graph.call_function(torch.ops.aten.clone.default, (here[node],))
        for node in self._run_by(stage):
            if node.op != "output":
                here[node] = graph.node_copy(node, value)
        if stage == self.count - 1:
            graph.output(tuple(map(value, self.results)))
        else:
            graph.output(tuple(map(value, self._inputs[stage + 1])))
        return graph


def _is_size(node: fx.Node) -> bool:
    return node.target is _SIZE


def _source(size: fx.Node) -> fx.Node:
    source = size.args[0]
    assert isinstance(source, fx.Node)
    return source


def _like(size: fx.Node, tensors: Iterable[fx.Node]) -> tuple[fx.Node, int] | None:
    """A tensor and a dimension of it with that size in every batch."""
    wanted = str(size.meta["val"])
    for tensor in sorted(tensors, key=lambda node: node.name):
        value = tensor.meta.get("val")
        if isinstance(value, torch.Tensor):
            for dim, length in enumerate(value.shape):
                if isinstance(length, torch.SymInt) and str(length) == wanted:
                    return tensor, dim
    return None


def _check_tensors(inputs: list[fx.Node], stage: int, home: Mapping[fx.Node, int]) -> None:
    for node in inputs:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"stage {stage} needs {node.name}, a {type(value).__name__} that stage "
                f"{home[node]} makes: only tensors go from stage to stage"
            )
