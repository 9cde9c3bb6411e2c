"""safe_get_full_grad() inside no_sync() summed the gradients over the replicas.

The next backward was refused then: it came after the last one of a step.
"""

import ranks
import torch

import penstock
from penstock.utils import safe_get_full_grad

WORLD_SIZE = 2


def check_backwards_go_on_after_it(group):
    for stage in (0, 1):
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": stage},
        }
        engine = penstock.initialize(model=torch.nn.Linear(2, 1, bias=False), config=config)[0]
        weight = engine.module.weight
        inputs = torch.ones(1, 2) * (1 + group.rank())
        with engine.no_sync():
            for count in (1, 2):
                engine.backward(engine(inputs).sum())
                # This replica's alone; the sum over the replicas will be divided.
                assert torch.equal(safe_get_full_grad(weight), count * inputs)
        engine.backward(engine(inputs).sum())
        assert torch.equal(safe_get_full_grad(weight), torch.full((1, 2), 3 * 1.5))


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
