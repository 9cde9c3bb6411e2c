"""What a traced model takes and gives: as torch.distributed.pipelining passes it.

Called, a pipe gives a flat tuple of all that the model gives.  A loss, and who calls step(), get
the tensors among it, each once: one alone as it is, several as a tuple.
"""

from __future__ import annotations

import pytest
import torch

from penstock.pipelining import SplitPoint, pipeline
from penstock.pipelining.schedules import _Action, _PipelineScheduleRuntime

ROWS, WIDTH = 4, 6
CPU = torch.device("cpu")


class Model(torch.nn.Module):
    """Gives what `form` makes of two tensors, of which the second is narrower."""

    def __init__(self, form):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.last = torch.nn.Linear(WIDTH, WIDTH)
        self.form = form

    def forward(self, x, scale=None, shift=None):
        x = self.first(x)
        x = x if scale is None else x * scale
        x = self.last(x if shift is None else x + shift)
        return self.form(x, x[:, :2])


FORMS = {
    "a tensor": (lambda a, b: a, "a", "a"),
    "a list of one": (lambda a, b: [a], "a", "a"),
    "a dict of one": (lambda a, b: {"logits": a}, "a", "a"),
    "a dict": (lambda a, b: {"logits": a, "more": b}, ("a", "b"), ("a", "b")),
    "a list": (lambda a, b: [b, a], ("b", "a"), ("b", "a")),
    "nested, one twice": (lambda a, b: {"p": [b, a], "q": (b,)}, ("b", "a", "b"), ("b", "a")),
    "a number beside it": (lambda a, b: (a, 3), ("a", 3), "a"),
    "nothing beside it": (lambda a, b: (a, None), ("a", None), "a"),
}


def named(value):
    """Its tensors by their widths: "a" or "b"."""
    if isinstance(value, torch.Tensor):
        return "a" if value.shape[1] == WIDTH else "b"
    return tuple(map(named, value)) if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("split_spec", [{}, {"last": SplitPoint.BEGINNING}])
def test_what_a_loss_and_a_step_get(form, split_spec, one_rank):
    function, called, given = FORMS[form]
    x = torch.randn(ROWS, WIDTH)
    pipe = pipeline(Model(function), (x[:2],), split_spec=split_spec)
    output = pipe(x[:2])
    assert type(output) is tuple
    assert named(output) == (called if isinstance(called, tuple) else (called,))

    seen = []

    def loss_fn(output, target):
        seen.append(named(output))
        first = output if isinstance(output, torch.Tensor) else output[0]
        return first.sum() - target.sum()

    stages = [pipe.build_stage(number, CPU) for number in range(pipe.num_stages)]
    schedule = _PipelineScheduleRuntime(stages, 2, loss_fn=loss_fn)
    order = [f"{stage}F{i}" for i in range(2) for stage in range(pipe.num_stages)]
    order += [f"{stage}B{i}" for i in range(2) for stage in reversed(range(pipe.num_stages))]
    schedule._prepare_schedule_with_comms({0: list(map(_Action.from_str, order))})
    output = schedule.step(x, target=x)
    assert seen == [given] * 2
    assert named(output) == given
    assert isinstance(output, torch.Tensor | tuple)


@pytest.mark.parametrize("traced", ["position", "name"])
def test_arguments_by_position_or_by_name(traced):
    """However they were traced; by position in the order in which the model takes them."""
    x, shift = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    model = Model(lambda a, b: a)
    scale = torch.ones(ROWS, WIDTH)
    if traced == "position":
        pipe = pipeline(model, (x, scale, shift))
    else:
        pipe = pipeline(model, (), {"shift": shift, "x": x, "scale": scale})
    expected = model(x, scale, shift)
    for args, kwargs in [
        ((x, scale, shift), {}),
        ((x, scale), {"shift": shift}),
        ((x,), {"shift": shift, "scale": scale}),
        ((), {"shift": shift, "x": x, "scale": scale}),
    ]:
        assert torch.equal(pipe(*args, **kwargs)[0], expected)
    with pytest.raises(ValueError, match="scale is given by position and by name"):
        pipe(x, scale, shift, scale=scale)
    with pytest.raises(ValueError, match="traced with"):
        pipe(x, scale)


def test_a_keyword_by_position_skips_what_was_not_traced():
    x, shift = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    model = Model(lambda a, b: a)
    pipe = pipeline(model, (x,), {"shift": shift})
    assert torch.equal(pipe(x, shift)[0], model(x, shift=shift))
