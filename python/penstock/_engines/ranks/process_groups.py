"""Ranks of torch.distributed as those of penstock: who they are, where they meet, for how long.

A schedule has connections of its own, made at its first step, to be met by the schedules that the
other ranks of the group run first.  All that is taken from the group is its store, for that moment,
its ranks and its timeout, which is the deadline of every wait.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_process_group_store

from penstock import _torch
from penstock.errors import CommError, Error

if TYPE_CHECKING:
    from types import TracebackType

    from torch.distributed import ProcessGroup

    from penstock._runtime import Communicator

__all__ = [
    "connect",
    "resolve",
    "telling_others",
    "telling_who_connects",
    "timeout_of",
    "words_of",
]

_PAUSE_MIN, _PAUSE_MAX = 0.001, 0.05  # Seconds between two looks at who is there.
_FAILED = "failed"  # The key, where ranks meet, that says why one of them will not connect.
_HOST = torch.device("cpu")
# Communicators by the ranks of their groups: who else can say what absent ranks do.
_made: dict[tuple[int, ...], weakref.WeakSet[Communicator]] = {}


def resolve(group: ProcessGroup | DeviceMesh | None) -> ProcessGroup:
    """The process group that is meant; None is the default one.

    Raises ValueError where torch.distributed is not initialised, this process is not in the group,
    or a DeviceMesh has several dimensions.
    """
    if not dist.is_initialized():
        raise ValueError(
            "torch.distributed is not initialised: call "
            "torch.distributed.init_process_group() before stages are made"
        )
    if group is None:
        group = dist.group.WORLD
        assert group is not None  # It is initialised.
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            names = group.mesh_dim_names or "without names"
            raise ValueError(
                f"group is a DeviceMesh of {group.ndim} dimensions {names}: take one of them, "
                f"mesh[name]"
            )
        return group.get_group()
    if dist.get_rank(group) < 0:
        raise ValueError("group does not have this process among its ranks")
    return group


def connect(group: ProcessGroup, device: torch.device = _HOST) -> Communicator:
    """Connects this rank of the group with the others, which do the same.

    device: what this rank computes on.

    Raises CommError with the ranks that have not come within the group's timeout.
    """
    make: type[Communicator] = _torch.load().Communicator
    _be_seen()
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    timeout = timeout_of(group)
    if size == 1:
        return make(HashStore(), 0, 1, "", timeout.total_seconds(), device)
    store = _next_meeting(group, rank)
    made = _made.setdefault(tuple(dist.get_process_group_ranks(group)), weakref.WeakSet())
    _meet(store, rank, size, timeout, made)
    host = _host_of(_get_process_group_store(group))
    communicator = make(store, rank, size, host, timeout.total_seconds(), device)
    made.add(communicator)
    return communicator


@contextmanager
def telling_who_connects(group: ProcessGroup) -> Iterator[None]:
    """What is raised inside ends the next connect() of all other ranks, with its words.

    For what ranks do before they connect(), the same on each: it takes the place of this one's.
    """
    try:
        yield
    except BaseException as error:
        rank = dist.get_rank(group)
        with suppress(RuntimeError):  # The store may be what is gone.
            store = _next_meeting(group, rank)
            store.set(_FAILED, f"rank {rank} failed: {words_of(error)}")
            store.set(_key_of(rank), _call())  # Who waits for this rank alone wakes.
        raise


@contextmanager
def telling_others(communicator: Communicator) -> Iterator[None]:
    """What is raised inside ends the waits of all ranks, with its words."""
    try:
        yield
    except BaseException as error:
        communicator.fail(words_of(error))
        raise


def words_of(error: BaseException) -> str:
    """What other ranks hear of it."""
    return error.message if isinstance(error, Error) else f"{type(error).__name__}: {error}"


def _be_seen() -> None:
    """Lets `penstock launch`, or run, see where this process stands, and why it fails."""
    runtime = _torch.load()
    if not runtime.begin_presence() or getattr(sys.excepthook, "reports", False):
        return
    before = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        # First, since a traceback takes time: others that hear of the failure report that, too.
        try:
            if not issubclass(kind, KeyboardInterrupt):  # Ctrl-C is how it was asked to stop.
                words = words_of(error).encode(errors="replace").decode()
                runtime.report_failure(words, getattr(error, "exit_code", 1))
        finally:
            before(kind, error, traceback)

    report.reports = True  # type: ignore[attr-defined]
    sys.excepthook = report


def _next_meeting(group: ProcessGroup, rank: int) -> Store:
    """The store at which the ranks meet that have met as often as this one."""
    shared = PrefixStore("penstock", _get_process_group_store(group))
    number = shared.add(f"connections of {rank}", 1)
    return PrefixStore(str(number), shared)


def _key_of(rank: int) -> str:
    return f"here/{rank}"


def _call() -> str:
    """What ranks meet in."""
    return _torch.load().spoken_call() or "penstock"


def _meet(
    store: Store, rank: int, size: int, timeout: timedelta, made: Iterable[Communicator]
) -> None:
    """Asks for the others' keys, ever less often: c10d warns of a wait that ends by its time.

    A key has the call in which its rank has come.  made: connects the same ranks already.
    """
    store.set(_key_of(rank), _call())
    deadline = time.monotonic() + timeout.total_seconds()
    absent = [_key_of(other) for other in range(size)]
    pause = _PAUSE_MIN
    while not store.check(absent):
        while len(absent) > 1 and store.check(absent[:1]):
            del absent[0]
        _check_failed(store)
        if time.monotonic() >= deadline:
            others = [str(other) for other in range(size) if not store.check([_key_of(other)])]
            words = next(filter(None, (each.call_words() for each in made)), "")
            raise CommError(
                f"rank {rank} waited {timeout.total_seconds():g} s for ranks {', '.join(others)} "
                f"of {size} to come to {_call()}, which is a call for all ranks"
                f"{words and '; '}{words}"
            )
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_MAX)
    _check_failed(store)
    calls = [store.get(_key_of(other)).decode() for other in range(size)]
    if words := _torch.load().words_of_calls(calls, rank):
        raise CommError(words)


def _check_failed(store: Store) -> None:
    if store.check([_FAILED]):
        raise CommError(store.get(_FAILED).decode())


def timeout_of(group: ProcessGroup) -> timedelta:
    """The timeout of the group's backend for CPUs, or torch's default."""
    try:
        return group._get_backend(torch.device("cpu")).options._timeout
    except (RuntimeError, AttributeError):
        return dist.default_pg_timeout


def _host_of(store: Store) -> str:
    """The host that serves a store, as this rank knows it; empty: it is in no process."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else os.environ.get("MASTER_ADDR", "")
