"""What a hook of a stage's output kept was overwritten: it lay in the buffer of a later message."""

from __future__ import annotations

import ranks
import torch
from models import Reference

from penstock.pipelining import schedules

WORLD_SIZE = 2
MICROBATCHES = 4
SCHEDULES = {
    "GPipe": schedules.ScheduleGPipe,
    "1F1B": schedules.Schedule1F1B,
    "ZBVZeroBubble": schedules.ScheduleZBVZeroBubble,
}


class _Watched(torch.nn.Module):
    """Keeps the gradients of its output, of a view of it, and of its input, and copies of them."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.kept, self.copies = [], []

    def forward(self, x):
        y = self.module(x)
        z = y.view_as(y)
        for each in (x, y, z):
            if each.requires_grad:
                each.register_hook(self._keep)
        return z

    def _keep(self, gradient):
        self.kept.append(gradient)
        self.copies.append(gradient.clone())


def check_what_hooks_keep_stays(group):
    for name, kind in SCHEDULES.items():
        watched = []

        def wrap(module, watched=watched):
            watched.append(_Watched(module))
            return watched[-1]

        reference = Reference(group, name, wrap=wrap)
        schedule = reference.schedule(kind, MICROBATCHES)
        for step in range(2):
            x, y = reference.data(step)
            reference.step(schedule, x, y)
        assert watched
        for module in watched:
            assert len(module.kept) >= 2 * 2 * MICROBATCHES
            for kept, copy in zip(module.kept, module.copies, strict=True):
                assert torch.equal(kept, copy), name


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
