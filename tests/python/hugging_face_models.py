"""Hugging Face models with random weights, small.

Attention is "eager": with "sdpa" the models themselves run other kernels when they are traced.
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

SIZES = {
    "vocab_size": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "use_cache": False,
    "attn_implementation": "eager",
}


def gpt2():
    return GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=32, n_layer=4, n_head=4, **SIZES))


def llama():
    return LlamaForCausalLM(
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
    )


# How to make it, where its layers are, and the parameter that it has at both ends.
MODELS = {
    "gpt2": (gpt2, "transformer.h", "transformer.wte.weight"),
    "llama": (llama, "model.layers", "model.embed_tokens.weight"),
}


def next_token_loss(output, tokens):
    # Of a traced model a call gives a tuple, and a loss gets the tensor.
    output = output[0] if isinstance(output, tuple) else output
    logits = getattr(output, "logits", output)
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
