"""zero.Init: spreads parameters while a model is made, so that no rank ever has all of it.

Knows no engine: penstock.initialize() takes over what was spread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from penstock import configuration
from penstock._calls import for_all_ranks
from penstock._compatibility import published_as
from penstock._distributed import init_distributed
from penstock._engines.parameters.gathered_parameters import GatheredParameters
from penstock._engines.parameters.precision import type_of
from penstock._engines.parameters.replicas import Replicas
from penstock._engines.parameters.spread_module import Spreading
from penstock._engines.parameters.written_parameters import Writing, settle
from penstock._engines.parameters.zero_parameter import is_zero
from penstock._engines.parameters.zero_settings import ZeroSettings
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Init"]

_Constructor = Callable[..., None]


class Init:
    """A context in which every module's parameters are spread over the ranks once it is made.

        with penstock.zero.Init():
            model = Transformer(...)

    Values are those of rank 0, whatever the others draw.  Inside of it parameters may be written
    to by operators in place, torch.nn.init's and others, also through views, which all ranks call;
    reading one raises.  Module.apply() gathers each module's own parameters around the function.
    Parameters on the meta device stay there; Module.to_empty() spreads what it makes of them.

    module: spreads it at once, without a context.
    data_parallel_group: a process group; None: the default one.  That is joined at once.
    config_dict_or_path, config: a configuration, of which zero_optimization, fp16 and bf16 count.
    dtype: what floating-point parameters and buffers are cast to; None: as the configuration says.
    enabled: False: does nothing.
    mem_efficient_linear, pin_memory: taken, and not used.  remote_device, mpu: must be None.

    All ranks make the same modules in the same order.  A PipelineModule spreads its layers itself,
    one by one as they are made, over the replicas of the rank's stages, whatever the group.
    """

    _running: Init | None = None  # The innermost one that is entered.

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        data_parallel_group: ProcessGroup | None = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: Mapping[str, Any] | str | Path | None = None,
        config: Mapping[str, Any] | str | Path | None = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: Any = None,
    ) -> None:
        del mem_efficient_linear, pin_memory
        if remote_device not in (None, "none") or mpu is not None:
            raise ConfigError("zero.Init: remote_device and mpu must be None")
        given = config_dict_or_path if config_dict_or_path is not None else config
        read = configuration.read({} if given is None else given, needs_sizes=False)
        self._settings = ZeroSettings.of(read)
        self._group = data_parallel_group
        self._enabled = enabled
        self._dtype = dtype or type_of(read)
        self._spreading: Spreading | None = None
        self._writing = Writing()
        self._under_construction: set[int] = set()
        self._undo: list[Callable[[], None]] = []
        if enabled:
            init_distributed()
        if module is not None and enabled:
            self._spread_all(module)

    def __enter__(self) -> None:
        if not self._enabled:
            return
        for kind in set(_kinds(torch.nn.Module)):
            self._watch(kind)
        new_kind: Any = classmethod(self._new_kind)  # type: ignore[arg-type]
        self._replace(torch.nn.Module, "__init_subclass__", new_kind)
        self._replace(torch.nn.Module, "apply", _apply)
        self._replace(torch.nn.Module, "to_empty", self._to_empty())
        self._writing.begin()
        self._undo.append(functools.partial(setattr, Init, "_running", Init._running))
        Init._running = self

    @for_all_ranks("penstock.zero", name="zero.Init()")
    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if not self._enabled:
            return
        try:
            if kind is None:
                settle()
        finally:
            self._leave()

    def _leave(self) -> None:
        self._writing.end()
        for undo in reversed(self._undo):
            undo()
        self._undo = []
        self._under_construction = set()

    @staticmethod
    def running() -> Init | None:
        """The innermost context."""
        return Init._running

    @staticmethod
    @contextmanager
    def paused() -> Iterator[None]:
        """A context in which modules stay whole, as if there were no zero.Init."""
        before, Init._running = Init._running, None
        try:
            yield
        finally:
            Init._running = before

    def over(self, replicas: Replicas) -> Spreading:
        """Spreads as this one does, over other ranks."""
        return Spreading(replicas, self._settings, self._dtype)

    def _watch(self, kind: type[torch.nn.Module]) -> None:
        """Has whatever is made of a class spread when its constructor is over."""
        constructor: _Constructor | None = kind.__dict__.get("__init__")
        if constructor is None:
            return  # It has that of another class.

        @functools.wraps(constructor)
        def watched(module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            is_outermost = id(module) not in self._under_construction
            self._under_construction.add(id(module))
            try:
                constructor(module, *args, **kwargs)
            finally:
                if is_outermost:
                    self._under_construction.discard(id(module))
            if is_outermost and Init._running is not None:
                settle()
                self._spread_all(module)

        self._replace(kind, "__init__", watched)

    def _to_empty(self) -> Callable[..., torch.nn.Module]:
        """Module.to_empty(), which spreads each module before it makes the next."""
        plain = torch.nn.Module.to_empty

        def to_empty(
            module: torch.nn.Module, *, device: Any, recurse: bool = True
        ) -> torch.nn.Module:
            for each in list(module.modules()) if recurse else [module]:
                if any(map(is_zero, each._parameters.values())):
                    continue  # It has been spread.
                plain(each, device=device, recurse=False)
                if id(each) not in self._under_construction and Init._running is not None:
                    self._spread_all(each)
            return module

        return to_empty

    def _new_kind(self, kind: type[torch.nn.Module], **kwargs: Any) -> None:
        super(torch.nn.Module, kind).__init_subclass__(**kwargs)
        self._watch(kind)

    def _replace(self, kind: type, name: str, value: Any) -> None:
        before = kind.__dict__.get(name)

        def undo() -> None:
            if before is None:
                delattr(kind, name)
            else:
                setattr(kind, name, before)

        self._undo.append(undo)
        setattr(kind, name, value)

    @for_all_ranks("penstock.zero", name="zero.Init()")
    def _spread_all(self, module: torch.nn.Module) -> None:
        # A PipelineModule has its own: each of its stages is on other ranks.
        own = module.__dict__.get("_spreading")
        if isinstance(own, Spreading):
            return own.spread(module)
        if self._spreading is None:
            self._spreading = self.over(Replicas.of(self._group))
        self._spreading.spread(module)


def _kinds(kind: type[torch.nn.Module]) -> Iterator[type[torch.nn.Module]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from _kinds(derived)


def _apply(module: torch.nn.Module, function: Callable[[torch.nn.Module], None]) -> torch.nn.Module:
    for child in module.children():
        child.apply(function)
    with GatheredParameters(module.parameters(recurse=False), modifier_rank=0):
        function(module)
    return module


published_as("penstock.zero.partition_parameters", globals())
