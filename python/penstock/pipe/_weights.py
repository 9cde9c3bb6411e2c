"""The weights of a rank's layers as files of a checkpoint: a file is a module's state_dict().

Knows no optimizer.  A tied layer is in the file of the first layer of its key; a loss_fn that is a
module has a file of its own, which the rank of the last stage writes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from penstock.errors import ConfigError
from penstock.pipe._plain import from_plain, to_plain
from penstock.zero._gathering import GatheredParameters

if TYPE_CHECKING:
    from penstock.pipe.module import PipelineModule

__all__ = ["Weights"]

State = dict[str, Any]
_LOSS = "loss_fn-model_states.pt"


class Weights:
    """Of a model on this rank.

    is_last: it has the last stage.
    """

    def __init__(self, model: PipelineModule, *, is_last: bool) -> None:
        self._modules = {_name(i): each for i, each in model._saved_layers().items()}
        self._written = {_name(i) for i in model._written_layers()}
        if isinstance(model.loss_fn, torch.nn.Module):
            self._modules[_LOSS] = model.loss_fn
            self._written |= {_LOSS} if is_last else set()

    def gathered(self) -> Iterator[tuple[str, State]]:
        """Collective over replicas: file by file what is to be written; all have to go through."""
        for name, module in self._modules.items():
            with GatheredParameters(module.parameters()):
                state = module.state_dict() if name in self._written else {}
                if state:
                    yield name, state

    @staticmethod
    def plain(name: str, state: State) -> State:
        """`state` in place, as a file holds it; raises ConfigError for what it cannot hold."""
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                state[key] = to_plain(value, f"{name}: {key}")
        return state

    def shapes(self) -> dict[str, dict[str, Any]]:
        """Collective over replicas: by file and name, the shape of a tensor, None of all else."""
        found = {}
        for name, module in self._modules.items():
            with GatheredParameters(module.parameters()):
                state = module.state_dict()
                if state:
                    found[name] = {key: getattr(each, "shape", None) for key, each in state.items()}
        return found

    def check(self, name: str, state: State, shapes: Mapping[str, Any], *, strict: bool) -> State:
        """A file's content for put().  Raises ConfigError where it does not fit, if that is seen.

        What load_state_dict() of a class of the user's own does is seen when it is done.
        """
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                state[key] = from_plain(value)
        if _loads_in_its_own_way(self._modules[name]):
            return state
        wrong = [
            f"{key} has shape {tuple(state[key].shape)}, must have {tuple(shape)}"
            for key, shape in shapes.items()
            if key in state and state[key].shape != shape
        ]
        if strict:
            wrong += [f"{key} is missing" for key in shapes if key not in state]
            wrong += [f"{key} is unexpected" for key in state if key not in shapes]
        if wrong:
            raise ConfigError(f"{name} does not fit: {'; '.join(wrong)}")
        return state

    def put_unseen(
        self, states: Mapping[str, State], *, strict: bool
    ) -> tuple[dict[str, State], Exception | None]:
        """Collective over replicas: those whose fit check() does not see.

        Returns what they were before, and what went wrong here.
        """
        before: dict[str, State] = {}
        failure: Exception | None = None
        for name in states:
            module = self._modules[name]
            if not _loads_in_its_own_way(module):
                continue
            with GatheredParameters(module.parameters(), modifier_rank=0):
                try:
                    before[name] = copy.deepcopy(module.state_dict())
                    module.load_state_dict(states[name], strict=strict)
                except Exception as error:  # Of the user's own kind.
                    failure = failure or ConfigError(f"{name} does not fit: {error}")
        return before, failure

    def put(self, states: Mapping[str, State], *, strict: bool) -> None:
        """Collective over replicas: all others."""
        for name, state in states.items():
            module = self._modules[name]
            if not _loads_in_its_own_way(module):
                with GatheredParameters(module.parameters(), modifier_rank=0):
                    module.load_state_dict(state, strict=strict)

    def put_back(self, before: Mapping[str, State]) -> None:
        """Collective over replicas: what put_unseen() returned, on all of them."""
        for name, module in self._modules.items():
            if _loads_in_its_own_way(module):
                with GatheredParameters(module.parameters(), modifier_rank=0):
                    if name in before:
                        module.load_state_dict(before[name])


def _name(layer: int) -> str:
    return f"layer_{layer:02d}-model_states.pt"


_PLAIN_LOADS = {
    torch.nn.Module._load_from_state_dict,
    torch.nn.modules.batchnorm._NormBase._load_from_state_dict,
}


def _loads_in_its_own_way(module: torch.nn.Module) -> bool:
    """Whether some module inside does more than torch's load_state_dict() with tensors."""
    return any(
        type(each)._load_from_state_dict not in _PLAIN_LOADS
        or type(each).load_state_dict is not torch.nn.Module.load_state_dict
        or type(each).set_extra_state is not torch.nn.Module.set_extra_state
        or each._load_state_dict_pre_hooks
        or each._load_state_dict_post_hooks
        for each in module.modules()
    )
