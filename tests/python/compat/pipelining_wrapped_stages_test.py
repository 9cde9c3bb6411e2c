"""Stages that are parallel, compiled or checkpointed inside, in every schedule: the unsplit model.

Four ranks.  Losses, gradients and parameters of 5 steps of SGD are those of the whole model on the
whole batch in one process, to 1e-6.
"""

from __future__ import annotations

import warnings

import ranks
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from wrapped_models import (
    BATCH,
    BOUND,
    MICROBATCHES,
    TWICE,
    WIDTH,
    Training,
    all_together,
    both,
    checkpointed,
    compiled,
    ddp,
    difference,
    plain,
    sharded,
    tensor_parallel,
    trains_as_the_unsplit_model,
)

from penstock.pipelining.schedules import BACKWARD_INPUT, BACKWARD_WEIGHT

WORLD_SIZE = 4


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += "mm" in function.name()
        return function(*args, **(kwargs or {}))


def check_halves_of_a_backward_stay_halves(group):
    """Of a block's four products in its backward, two are the weights', and W computes them.

    In the first stage, whose input takes no gradient, I has but one product.  Nobody says that the
    backward cannot be split.
    """
    del group
    shapes = [(plain, TWICE), (ddp, (2, 2, 1)), (sharded, (2, 2, 1))]
    for wrap, shape in [*shapes, (tensor_parallel, TWICE), (both, TWICE)]:
        training = Training("InterleavedZeroBubble", wrap, shape)
        stages = {stage.stage_index: stage for stage in training.schedule._stages}
        counts = []

        def run(action, ctx, stages=stages, counts=counts):
            stage, is_input = stages[action.stage_index], action.computation_type == BACKWARD_INPUT
            with Products() as products:
                if is_input:
                    stage.backward_one_chunk(
                        action.microbatch_index, loss=None, full_backward=False, last_backward=False
                    )
                else:
                    stage.backward_weight_one_chunk(action.microbatch_index)
            counts.append((products.count, 1 if is_input and stage.is_first else 2))

        for kind in (BACKWARD_INPUT, BACKWARD_WEIGHT):
            training.schedule.register_custom_function(kind, run)
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            x, y = torch.randn(2, BATCH, WIDTH, generator=torch.Generator().manual_seed(1)).unbind()
            losses = training.step(x, y)
        assert losses is None or difference(*losses) <= BOUND
        training.compare(lambda each: each.grad)
        assert not [note for note in notes if "cannot be split" in str(note.message)]
        assert len(counts) == 2 * len(stages) * MICROBATCHES
        assert all(count == expected for count, expected in counts), (wrap, counts)


def check_distributed_data_parallel(group):
    del group
    trains_as_the_unsplit_model(ddp, [(2, 2, 1)])


def check_fully_shard(group):
    del group
    trains_as_the_unsplit_model(sharded, [(2, 2, 1)])


def check_compiled(group):
    del group
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*compiled graph cannot be split")
        trains_as_the_unsplit_model(compiled, [TWICE])


def check_checkpointed_activations(group):
    del group
    trains_as_the_unsplit_model(checkpointed, [TWICE])


def check_tensor_parallel(group):
    del group
    trains_as_the_unsplit_model(tensor_parallel, [(2, 1, 2)])


def check_all_together(group):
    """Two ranks of each layer, or two replicas of each stage."""
    del group
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*cannot be split")
        trains_as_the_unsplit_model(all_together, [TWICE, (2, 2, 1)])


def check_tensor_parallel_and_fully_shard(group):
    """With two ranks of a pipeline, and with two replicas: both at a time need eight ranks."""
    del group
    trains_as_the_unsplit_model(both, [(2, 1, 2), (1, 2, 2)])


test_check = ranks.tests_of(__file__, WORLD_SIZE)
test_every_schedule = ranks.tests_of(__file__, WORLD_SIZE, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
