"""Hugging Face models with random weights: traced, split, and the same bit for bit.

Attention is "eager": with "sdpa" the models themselves run other kernels when they are traced.
"""

import pytest
import torch
from penstock.pipelining import SplitPoint, pipeline
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.python.pipelining_tracer_test import inputs_of

SIZES = {
    "vocab_size": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "use_cache": False,
    "attn_implementation": "eager",
}
MODELS = {
    "gpt2": (
        lambda: GPT2LMHeadModel(
            GPT2Config(n_positions=32, n_embd=32, n_layer=4, n_head=4, **SIZES)
        ),
        "transformer.h",
        "transformer.wte.weight",
    ),
    "llama": (
        lambda: LlamaForCausalLM(
            LlamaConfig(
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=4,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=32,
                tie_word_embeddings=True,
                **SIZES,
            )
        ),
        "model.layers",
        "model.embed_tokens.weight",
    ),
}


def step(model, tokens):
    torch.manual_seed(3)  # For the dropout of GPT-2.
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
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
