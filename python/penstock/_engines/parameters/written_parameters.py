"""Writing to parameters that are spread, while a model is made: initialisation that comes late.

    with penstock.zero.Init():
        model = Transformer(...)  # Its constructor ends with normal_() on its layers' weights.

A parameter that is written to becomes whole on all ranks, with those of its module, and stays so
until one of another module is written to, or the constructor is over.  What rank 0 has made of it
counts then: it draws what it would draw for a model that is whole.
Knows no constructors: zero.Init says when there may be writing, and when it is over.
"""

from __future__ import annotations

from penstock._engines.parameters.away_parameter import set_writer
from penstock._engines.parameters.parameter_home import ParameterHome, home_of
from penstock._engines.parameters.zero_parameter import ZeroParameter

__all__ = ["Writing", "settle"]


class Writing:
    """Writing to the parameters of one home at a time."""

    _running: Writing | None = None

    def __init__(self) -> None:
        self._home: ParameterHome | None = None
        self._before: Writing | None = None

    def begin(self) -> None:
        """Lets parameters be written to from here on."""
        self._before, Writing._running = Writing._running, self
        set_writer(self.bring)

    def end(self) -> None:
        """Ends what begin() began.  What is whole stays whole."""
        self._home = None
        Writing._running = self._before
        set_writer(None if self._before is None else self._before.bring)

    def bring(self, parameter: ZeroParameter) -> None:
        """Collective: it may be written to."""
        home = home_of(parameter)
        if home is not self._home:
            self.settle()
            home.hold(range(len(home.parameters)), modifier=0)
            self._home = home

    def settle(self) -> None:
        """Collective: what has been written goes to all ranks' pieces."""
        home, self._home = self._home, None
        if home is not None:
            home.release(range(len(home.parameters)), modifier=0)


def settle() -> None:
    """Collective: nothing is being written to, as far as zero.Init is concerned."""
    if Writing._running is not None:
        Writing._running.settle()
