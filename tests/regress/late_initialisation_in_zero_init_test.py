"""zero.Init and values that come after a constructor: a model's own initialisation of its layers.

transformers 5 draws the weights of all layers at the end of a model's constructor, when the layers
are spread; skip_init makes a layer on the meta device first.  Both raised.
"""

from __future__ import annotations

import pytest
import ranks
import torch
import torch.distributed as dist

import penstock
from penstock.zero import GatheredParameters, Init, ZeroParamStatus

WORLD_SIZE = 2
WIDTH = 8


def whole_state_of(model):
    with GatheredParameters(model.parameters()):
        return {name: each.clone() for name, each in model.state_dict().items()}


def same_as_unspread(make):
    """Has the values of rank 0's unspread model, whatever the others draw; and is spread."""
    torch.manual_seed(0)
    expected = make().state_dict()
    after = torch.rand(1)
    torch.manual_seed(dist.get_rank())
    with Init():
        model = make()
    if dist.get_rank() == 0:
        assert torch.equal(torch.rand(1), after)
    found = whole_state_of(model)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], values), name
    for name, each in model.named_parameters():
        assert each.ds_status is ZeroParamStatus.NOT_AVAILABLE, name
        assert each.ds_tensor.numel() < each.numel() or each.numel() <= 64, name


class Late(torch.nn.Module):
    """Initialises its layers in the ways that are around."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(20, WIDTH, padding_idx=3)
        self.first = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.second = torch.nn.utils.skip_init(torch.nn.Linear, WIDTH, WIDTH)
        torch.nn.init.normal_(self.words.weight, std=0.1)
        torch.nn.init.trunc_normal_(self.first.weight)
        torch.nn.init.zeros_(self.words.weight[3])
        self.first.weight.data.mul_(2.0)
        self.first.bias.data[:4].uniform_(-1, 1)
        for part in self.first.weight.chunk(3):
            torch.nn.init.orthogonal_(part)
        with torch.no_grad():
            self.second.weight.copy_(torch.randn(WIDTH, WIDTH))
            self.second.bias[:] = 7.0


def check_initialisation_in_all_ways(group):
    same_as_unspread(Late)


def check_models_of_transformers(group):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "max_position_embeddings": 16}
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, **sizes}
    llama = transformers.LlamaConfig(intermediate_size=32, pad_token_id=0, **small)
    same_as_unspread(lambda: transformers.LlamaForCausalLM(llama))
    gpt2 = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=40)
    same_as_unspread(lambda: transformers.AutoModelForCausalLM.from_config(gpt2))
    bert = transformers.BertConfig(intermediate_size=32, pad_token_id=0, **small)
    same_as_unspread(lambda: transformers.BertForMaskedLM(bert))


def check_a_model_on_the_meta_device(group):
    def make(device):
        return torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH, device=device), torch.nn.Linear(WIDTH, 2, device=device)
        )

    with Init():
        model = make("meta")
        assert all(each.is_meta for each in model.parameters())
        model.to_empty(device="cpu")
        assert model[0].weight.ds_status is ZeroParamStatus.NOT_AVAILABLE
        for each in model.parameters():
            torch.nn.init.constant_(each, 3.0 + dist.get_rank())
    assert all((each == 3.0).all() for each in whole_state_of(model).values())
    sgd = {"type": "SGD", "params": {"lr": 0.1}}
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": sgd}
    with pytest.raises(penstock.ConfigError, match=r'"0\.weight" is on the meta device'):
        penstock.initialize(model=make("meta"), config=config)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
