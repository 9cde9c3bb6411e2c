"""What operations of a traced graph do beside giving a value: write, draw random numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

__all__ = ["is_pure", "mutated_roots", "name_list_items", "remove_assertions"]

_ASSERTIONS = (
    "aten._assert_tensor_metadata",
    "aten._assert_scalar",
    "aten.sym_constrain_range",
)
_NUMBERS = ("_operator", "math", "torch")  # Modules of functions of sizes.


def is_pure(node: fx.Node) -> bool:
    """Whether the operation gives the same for the same, and changes nothing."""
    if node.op != "call_function":
        return False
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        random = torch.Tag.nondeterministic_seeded in target.tags
        return not (random or target._schema.is_mutable or not target._schema.returns)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return all(is_pure(inner) for inner in _operations_within(node))
    return getattr(target, "__module__", None) in _NUMBERS


def _operations_within(node: fx.Node) -> Iterator[fx.Node]:
    """The operations of a graph that an operation runs (under no_grad, for example)."""
    root = node.graph.owning_module
    for each in node.all_input_nodes:
        value = operator.attrgetter(str(each.target))(root) if each.op == "get_attr" else None
        if isinstance(value, fx.GraphModule):
            for inner in value.graph.nodes:
                if inner.op.startswith("call"):
                    yield inner


def mutated_roots(nodes: Iterable[fx.Node] | fx.Graph) -> set[fx.Node]:
    """The values that the operations write to, followed back through views."""
    nodes = nodes.nodes if isinstance(nodes, fx.Graph) else nodes
    return {_root(written) for node in nodes for written in _aliased(node, writing=True)}


def _root(node: fx.Node) -> fx.Node:
    while viewed := next(_aliased(node, writing=False), None):
        node = viewed
    return node


def _aliased(node: fx.Node, *, writing: bool) -> Iterator[fx.Node]:
    """The arguments that the operation writes to, or those that its value may be a view of."""
    if not isinstance(node.target, torch._ops.OpOverload):
        if node.target is operator.getitem and not writing and isinstance(node.args[0], fx.Node):
            yield node.args[0]
        return
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or (writing and not argument.alias_info.is_write):
            continue
        value: Any = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        yield from (each for each in _listed(value) if isinstance(each, fx.Node))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def remove_assertions(traced: fx.GraphModule) -> None:
    """Removes what a trace asserts of types and sizes, which autocast and other batches change."""
    for module in traced.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in reversed(module.graph.nodes):
            is_guard = node.op == "call_module" and node.target == "_guards_fn"
            if is_guard or str(node.target).startswith(_ASSERTIONS):
                module.graph.erase_node(node)
        module.recompile()


def name_list_items(graph: fx.Graph) -> None:
    """Makes each item of an operation that gives a list a value of its own."""
    for node in list(graph.nodes):
        values = node.meta.get("val")
        whole = [user for user in node.users if user.target is not operator.getitem]
        if node.op != "call_function" or not isinstance(values, (list, tuple)) or not whole:
            continue
        items: list[fx.Node] = []
        for i, value in enumerate(values):
            with graph.inserting_after(items[-1] if items else node):
                items.append(graph.call_function(operator.getitem, (node, i)))
            items[-1].meta["val"] = value
        for user in whole:
            user.args = _with_items(user.args, node, items)


def _with_items(value: Any, node: fx.Node, items: list[fx.Node]) -> Any:
    """The arguments with a list of `items` in place of `node`."""
    if value is node:
        return items
    if isinstance(value, (list, tuple)):
        return type(value)(_with_items(each, node, items) for each in value)
    return value
