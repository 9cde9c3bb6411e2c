"""transformers' Trainer with a DeepSpeed configuration runs on penstock.swap, DeepSpeed absent.

It asks importlib.metadata for DeepSpeed's version before it uses the package.  Losses are those of
the same script on DeepSpeed, and after a resume those of the whole run.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("accelerate", reason="the Trainer needs accelerate")

# By accumulation: recorded on 2026-11-28 from DeepSpeed 0.19.8 on two CPU ranks, with transformers
# 5.23.0, accelerate 1.15.0 and torch 2.13.0, ZeRO 0.  Without `use_cpu`, accelerate counts one rank
# on a machine without a device, and each rank then reads all rows: not what people train with.
RECORDED = {
    1: [4.174724102020264, 4.165122985839844, 4.169947624206543, 4.1730427742004395],
    2: [4.169923782348633, 4.171581268310547, 4.167855739593506, 4.179086208343506],
}
STEPS = 4
BOUND = 1e-5  # Of losses, in float.

SCRIPT = """
import json, os, sys
import torch
from accelerate.utils import DistributedType
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

torch.set_num_threads(1)
folder, stage, accumulation, resumes = sys.argv[1], *map(int, sys.argv[2:5])

class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.tokens = torch.randint(64, (64, 16), generator=torch.Generator().manual_seed(3))
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}

config = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": stage, "reduce_bucket_size": "auto"},
}
arguments = TrainingArguments(
    output_dir=folder, per_device_train_batch_size=4, gradient_accumulation_steps=accumulation,
    max_steps=STEPS, logging_steps=1, learning_rate=1e-3, warmup_steps=2, save_steps=2,
    save_strategy="steps", report_to=[], seed=5, disable_tqdm=True, ddp_backend="gloo",
    use_cpu=True, deepspeed=config,
)
set_seed(1)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
))
trainer = Trainer(model=model, args=arguments, train_dataset=Data())
at = f"{folder}/checkpoint-2"
trainer.train(resume_from_checkpoint=at if resumes else None)
is_deepspeed = trainer.accelerator.distributed_type == DistributedType.DEEPSPEED
assert is_deepspeed, trainer.accelerator.distributed_type
trainer.save_model(f"{folder}/final")
if trainer.args.process_index == 0:
    with open(f"{folder}/losses.json", "w") as file:
        json.dump([line["loss"] for line in trainer.state.log_history if "loss" in line], file)
""".replace("STEPS", str(STEPS))


@pytest.fixture
def losses_of(tmp_path):
    def run(folder, stage, accumulation=1, resumes=False):
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        words = [script, tmp_path / folder, stage, accumulation, int(resumes)]
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        done = subprocess.run(
            [sys.executable, *ranks, "-m", "penstock.swap", *map(str, words)],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / folder / "losses.json").read_text())

    return run


@pytest.mark.long
@pytest.mark.parametrize("accumulation", RECORDED)
def test_losses_are_those_of_deepspeed_and_after_a_resume_of_the_whole_run(losses_of, accumulation):
    expected = pytest.approx(RECORDED[accumulation], abs=BOUND)
    for stage in (0, 1, 2, 3):
        assert losses_of(f"stage{stage}", stage, accumulation) == expected, stage
    assert losses_of("stage2", 2, accumulation, resumes=True) == expected
