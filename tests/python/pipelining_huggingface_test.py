"""Hugging Face models with random weights: traced, split, and the same bit for bit."""

import pytest
import torch
from hugging_face_models import MODELS, next_token_loss
from pipelining_tracer_test import inputs_of

from penstock.pipelining import SplitPoint, pipeline


def step(model, tokens):
    torch.manual_seed(3)  # For the dropout of GPT-2.
    loss = next_token_loss(model(tokens), tokens)
    loss.backward()
    return loss


@pytest.mark.parametrize("name", MODELS)
def test_traced_models_train_as_they_are(name):
    make, layers, tied = MODELS[name]
    torch.manual_seed(0)
    model, reference = make(), make()
    reference.load_state_dict(model.state_dict())
    tokens = torch.randint(64, (10, 3, 16), generator=torch.Generator().manual_seed(1))
    spec = {f"{layers}.{i}": SplitPoint.BEGINNING for i in (1, 2, 3)}
    pipe = pipeline(model, (tokens[0],), split_spec=spec)
    assert pipe.tied_parameters == {tied: (0, 3)}
    assert inputs_of(pipe) == [1, 1, 1, 1]  # Masks and positions are made where they are needed.
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (pipe, reference)]
    for number, batch in enumerate(tokens):
        batch = batch[: 2 + number % 2, : 16 - number]
        assert torch.equal(step(pipe, batch), step(reference, batch))
        for stage in pipe.split_gm.children():
            for path, parameter in stage.named_parameters():
                assert torch.equal(parameter.grad, reference.get_parameter(path).grad), path
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_caches_is_traced_without_its_cache(name):
    make, layers, _ = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(1))
    expected = model(tokens).logits
    model.config.use_cache = True
    pipe = pipeline(model, (), {"input_ids": tokens}, {f"{layers}.2": SplitPoint.BEGINNING})
    assert model.config.use_cache is True
    (logits,) = pipe(input_ids=tokens)
    assert torch.equal(logits, expected)
