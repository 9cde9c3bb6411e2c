"""The training_data of a pipeline was read in an order that was drawn.

DeepSpeed's pipelines read it as it is (0, 1, 2, for 12, 10, 9 here); its other engines draw one.
"""

from __future__ import annotations

import ranks
import torch
import torch.distributed as dist
from torch.nn import functional

import penstock
from penstock.pipe import LayerSpec, PipelineModule

WORLD_SIZE = 2
SAMPLES = 16


class Notes(torch.nn.Linear):
    seen: list[float] = []  # noqa: RUF012

    def forward(self, x):
        Notes.seen.extend(x.flatten().tolist())
        return super().forward(x)


def check_a_pipeline_reads_its_data_in_order(group):
    del group
    data = [(torch.tensor([float(i)]), torch.zeros(1)) for i in range(SAMPLES)]
    for stages in (1, 2):
        Notes.seen = []
        replicas = WORLD_SIZE // stages
        layers = [LayerSpec(Notes, 1, 1), LayerSpec(torch.nn.Linear, 1, 1)]
        model = PipelineModule(layers, num_stages=stages, loss_fn=functional.mse_loss)
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "SGD", "params": {"lr": 1e-6}},
        }
        engine, _, _, _ = penstock.initialize(model=model, training_data=data, config=config)
        steps = SAMPLES // (4 * replicas)
        for _ in range(2 * steps):  # Twice round.
            engine.train_batch()
        mine = list(range(dist.get_rank() if replicas > 1 else 0, SAMPLES, replicas))
        assert Notes.seen == (2 * mine if engine.is_first_stage() else [])


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
