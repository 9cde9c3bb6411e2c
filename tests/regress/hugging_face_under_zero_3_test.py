"""transformers and Accelerate under ZeRO 3, as penstock.swap runs their scripts.

from_pretrained and from_config ended at once under HfDeepSpeedConfig, because transformers replaces
a name inside zero.Init's module; evaluation, predict(), generate() and save_pretrained() by the
module itself were refused; on CPUs Accelerate took each rank for a run of one process.  ZeRO 3 has
the losses of ZeRO 2 here, whose parameters nobody spreads.  DeepSpeed is not installed, or hidden.
"""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist

WORLD_SIZE = 2
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 31}
ZERO = {"stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": True}


def _config(stage):
    """As files for the Trainer have it."""
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": stage, "reduce_bucket_size": "auto", **ZERO},
    }


def _samples():
    def words(i):
        return torch.randint(3, 31, (8,), generator=torch.Generator().manual_seed(i))

    return [{"input_ids": words(i), "labels": words(i)} for i in range(16)]


def _folder(name):
    """The same on all ranks."""
    return Path(os.environ["STORE"]).with_name(name)


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(intermediate_size=24, **SIZES))


def _arguments(stage, name, **more):
    from transformers import TrainingArguments

    options = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, **more}
    return TrainingArguments(
        output_dir=_folder(f"{name}-{stage}"),
        deepspeed=_config(stage),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        learning_rate=0.02,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        **options,
    )


def _trainer(model, arguments):
    from transformers import Trainer

    samples = _samples()
    return Trainer(model=model, args=arguments, train_dataset=samples, eval_dataset=samples[:8])


def _losses(trainer):
    rows = trainer.state.log_history
    return [row[key] for row in rows for key in ("loss", "eval_loss") if key in row]


def check_a_package_that_is_not_there_has_a_version(group):
    from transformers.integrations.deepspeed import is_deepspeed_available

    assert is_deepspeed_available()
    assert importlib.metadata.version("deepspeed").count(".") == 2


def check_the_trainer_evaluates_predicts_and_comes_back(group):
    found = {}
    for stage in (2, 3):
        arguments = _arguments(
            stage,
            "trainer",
            gradient_checkpointing=True,
            save_strategy="steps",
            save_steps=2,
            load_best_model_at_end=True,
        )
        trainer = _trainer(_llama(), arguments)
        trainer.train()
        assert trainer.accelerator.num_processes == WORLD_SIZE
        after = trainer.evaluate()["eval_loss"]
        predicted = trainer.predict(_samples()[:8])
        resumed = _trainer(_llama(), _arguments(stage, "trainer", save_strategy="no"))
        resumed.train(resume_from_checkpoint=_folder(f"trainer-{stage}") / "checkpoint-2")
        found[stage] = [
            *_losses(trainer),
            after,
            predicted.metrics["test_loss"],
            predicted.predictions.tolist(),
            _losses(resumed),
        ]
    assert found[3] == found[2]
    assert _losses(resumed)[-3:] == _losses(trainer)[3:6], "as it had gone on"


def check_a_model_from_a_folder(group):
    """It is resized, trained, asked for text, and saved."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    tied = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=31, n_positions=16)
    tied.resid_pdrop = tied.embd_pdrop = tied.attn_pdrop = 0.0
    for name, make in (("llama", _llama), ("gpt2", lambda: GPT2LMHeadModel(tied))):
        torch.manual_seed(0)
        if dist.get_rank() == 0:
            make().save_pretrained(_folder(name))
        dist.barrier()
        found = {}
        for stage in (2, 3):
            arguments = _arguments(stage, f"{name}-tuned", max_steps=2, save_strategy="no")
            model = AutoModelForCausalLM.from_pretrained(_folder(name))
            torch.manual_seed(5)
            model.resize_token_embeddings(34, mean_resizing=False)
            trainer = _trainer(model, arguments)
            trainer.train()
            rank = dist.get_rank()
            text = trainer.model.generate(
                input_ids=torch.tensor([[1, 5 + rank, 7]]),
                max_new_tokens=3 + rank,
                do_sample=False,
                pad_token_id=0,
            )
            trainer.save_model(_folder(f"{name}-saved-{stage}"))
            dist.barrier()
            saved = load_file(_folder(f"{name}-saved-{stage}") / "model.safetensors")
            found[stage] = [_losses(trainer), text.tolist(), saved]
        assert found[3][:2] == found[2][:2], name
        assert found[3][2].keys() == found[2][2].keys(), name
        for key, values in found[2][2].items():
            assert torch.equal(found[3][2][key], values), (name, key)


def check_a_model_from_a_configuration(group):
    """Is drawn with the configuration's deviation; classes that write by themselves, too."""
    from transformers import AutoModel, DistilBertConfig, LlamaConfig
    from transformers.integrations import HfDeepSpeedConfig, unset_hf_deepspeed_config

    import penstock

    sizes = {"vocab_size": 31, "dim": 16, "hidden_dim": 24, "n_layers": 1, "n_heads": 2}
    for config in (
        LlamaConfig(intermediate_size=24, initializer_range=0.7, **SIZES),
        DistilBertConfig(sinusoidal_pos_embds=True, max_position_embeddings=16, **sizes),
    ):
        torch.manual_seed(3)
        kept = HfDeepSpeedConfig(_config(3))
        model = AutoModel.from_config(config)
        del kept
        unset_hf_deepspeed_config()
        torch.manual_seed(3)
        expected = AutoModel.from_config(config)
        with penstock.zero.GatheredParameters(model.parameters()):
            values = {name: each.clone() for name, each in model.named_parameters()}
        words = torch.tensor([[1, 2, 3, 4]])
        with torch.no_grad():
            found = model.eval()(words).last_hidden_state
            expected.load_state_dict(values, strict=False)
            assert torch.equal(found, expected.eval()(words).last_hidden_state)
    assert 0.6 < values["embeddings.word_embeddings.weight"].std() / 0.02 * 0.7 < 0.8


def check_a_loop_of_accelerate(group):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DeepSpeedPlugin

    found = {}
    for stage in (2, 3):
        AcceleratorState._reset_state(reset_partial_state=True)
        plugin = DeepSpeedPlugin(hf_ds_config={**_config(stage), "gradient_clipping": 1.0})
        accelerator = Accelerator(deepspeed_plugin=plugin)
        model = _llama()
        optimizer = torch.optim.AdamW(model.parameters(), 0.02)
        loader = torch.utils.data.DataLoader(_samples(), batch_size=2)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        losses = []
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                whole = accelerator.unwrap_model(model)(**batch).loss
            losses += [loss.item(), accelerator.gather(whole).tolist()]
        state = accelerator.get_state_dict(model)
        found[stage] = losses, {name: each.tolist() for name, each in (state or {}).items()}
    assert len(losses) == 8  # Each rank has its half.
    assert found[3] == found[2]


def check_adapters(group):
    peft = pytest.importorskip("peft", reason="peft is not installed: no adapters are trained here")
    found = {}
    for stage in (2, 3):
        arguments = _arguments(stage, "adapters", save_strategy="no")
        adapters = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        trainer = _trainer(peft.get_peft_model(_llama(), adapters), arguments)
        trainer.train()
        found[stage] = _losses(trainer)
    assert found[3] == found[2]


def _program():
    """Of a rank, in a process of its own that has imported nothing."""
    rank = os.environ["RANK"]
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(LOCAL_RANK=rank, HF_HOME=home, HF_HUB_OFFLINE="1", DS_ACCELERATOR="cpu")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", TOKENIZERS_PARALLELISM="false")
        from penstock import swap

        swap.install()
        ranks.main(globals())


# In the process of the test nothing of them is imported: a rank has to swap first.
pytestmark = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("accelerate")),
    reason="transformers or accelerate is not installed",
)
test_check = ranks.tests_of(__file__, WORLD_SIZE, has_imports=False)

if __name__ == "__main__":
    _program()
