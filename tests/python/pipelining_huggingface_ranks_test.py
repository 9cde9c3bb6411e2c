"""Hugging Face models on two ranks: loss and gradients are the unsplit model's, 10 steps long.

Their embedding is tied to the head: on another rank, or, where the last stage is on the first rank,
on the same.
"""

from __future__ import annotations

import copy

import ranks
import torch
from hugging_face_models import MODELS, next_token_loss
from traced_models import Traced

from penstock.pipelining import SplitPoint, pipeline

WORLD_SIZE = 2


def train(group, name, layers_of_stages, schedules):
    make, layers, tied = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    tokens = torch.randint(64, (10, 8, 12))
    spec = {f"{layers}.{layer}": SplitPoint.BEGINNING for layer in layers_of_stages}
    traced = pipeline(model, (tokens[0, :2],), split_spec=spec)
    assert traced.tied_parameters == {tied: (0, len(spec))}
    for schedule in schedules:
        rank = Traced(group, schedule, copy.deepcopy(traced), model, next_token_loss)
        for batch in tokens:
            rank.check_step((batch,), {}, batch)


def check_gpt2_in_two_stages(group):
    train(group, "gpt2", [2], ["1F1B"])


def check_gpt2_in_four_stages(group):
    train(group, "gpt2", [1, 2, 3], ["Interleaved1F1B", "ZBVZeroBubble"])


def check_llama_in_two_stages(group):
    train(group, "llama", [2], ["1F1B"])


def check_llama_in_four_stages(group):
    train(group, "llama", [1, 2, 3], ["Interleaved1F1B", "ZBVZeroBubble"])


test_check = ranks.tests_of(__file__, WORLD_SIZE, is_long=True)

if __name__ == "__main__":
    ranks.main(globals())
