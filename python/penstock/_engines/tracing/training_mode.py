"""Lets dropout and batch norm of a traced model follow train() and eval() of its modules.

A trace has the flag that an operation was called with as a constant.  Here it becomes the
`training` of the module that called it, which the stages have under the same name.
"""

from __future__ import annotations

import operator

from torch import fx, nn

__all__ = ["fixed_flags", "follow_training", "training_flags"]

# The place of the flag among the arguments.
_FLAG = {
    "aten.dropout.default": 2,
    "aten.feature_dropout.default": 2,
    "aten.alpha_dropout.default": 2,
    "aten.feature_alpha_dropout.default": 2,
    "aten.native_dropout.default": 2,
    "aten.rrelu.default": 3,
    "aten.batch_norm.default": 5,
}
_ATTENTION = "aten.scaled_dot_product_attention.default"
_ATTENTION_DROPOUT = 4  # A probability among its arguments, and no flag.


def training_flags(model: nn.Module) -> dict[str, bool]:
    """Tells which modules train, by path."""
    return {path: module.training for path, module in model.named_modules()}


def fixed_flags(root: nn.Module, graph: fx.Graph) -> set[bool]:
    """The modes that operations are in for good: those of a trace in evaluation mode, and of blocks
    under no_grad or autocast, which are graphs of their own.

    root: has what the graph takes by path.
    """
    fixed: set[bool] = set()
    for node in graph.nodes:
        called = str(node.target)
        flag = node.args[_FLAG[called]] if called in _FLAG else None
        if called == _ATTENTION and len(node.args) > _ATTENTION_DROPOUT:
            dropout = node.args[_ATTENTION_DROPOUT]
            flag = True if isinstance(dropout, float) and dropout > 0 else None
        if isinstance(flag, bool):
            fixed.add(flag)
        block = operator.attrgetter(called)(root) if node.op == "get_attr" else None
        if isinstance(block, fx.GraphModule):
            fixed |= fixed_flags(block, block.graph)
    return fixed


def follow_training(graph: fx.Graph, model: nn.Module) -> None:
    """Flags that are on, and attention's dropout, become those of the modules."""
    paths = set(training_flags(model))
    for node in list(graph.nodes):
        called = str(node.target)
        if called in _FLAG:
            if node.args[_FLAG[called]] is True:
                node.update_arg(_FLAG[called], _flag(node, paths))
        elif called == _ATTENTION and len(node.args) > _ATTENTION_DROPOUT:
            _scale(node, paths)
        elif called == "aten.add_.Tensor" and _counts_batches(node):
            node.update_arg(1, _flag(node, paths))


def _scale(attention: fx.Node, paths: set[str]) -> None:
    probability = attention.args[_ATTENTION_DROPOUT]
    if probability == 0.0:
        return
    flag = _flag(attention, paths)
    with attention.graph.inserting_before(attention):
        scaled = attention.graph.call_function(operator.mul, (probability, flag))
    attention.update_arg(_ATTENTION_DROPOUT, scaled)


def _flag(node: fx.Node, paths: set[str]) -> fx.Node:
    """Whether the innermost module that was running trains."""
    path = ""
    for called, _ in (node.meta.get("nn_module_stack") or {}).values():
        module = called.partition("@")[0]  # The second call of a module has @1 behind its path.
        path = module if module in paths else path
    with node.graph.inserting_before(node):
        return node.graph.create_node("get_attr", f"{path}.training" if path else "training")


def _counts_batches(node: fx.Node) -> bool:
    counter = node.args[0]
    return isinstance(counter, fx.Node) and str(counter.target).endswith("num_batches_tracked")
