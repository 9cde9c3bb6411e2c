"""The examples of examples/python as ranks, which check themselves.

Those that tests/CMakeLists.txt starts under torchrun are not here: one start of five processes that
import torch takes 15 CPU seconds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks
from support import free_port

EXAMPLES = Path(__file__).parents[2] / "examples/python"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (2, ["multi_mlp_by_hand.py"]),
        (2, ["custom_schedule.py"]),
        (4, ["deepspeed_pipeline.py", "--schedule", "zbv"]),
        (4, ["shared_llama.py"]),
        (4, ["hugging_face.py", "gpt2"]),
        pytest.param(4, ["hugging_face.py", "llama"], marks=pytest.mark.long),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, list) else str(each),
)
def test_example(size, words, tmp_path):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = ranks.start(EXAMPLES / words[0], size, tmp_path, *words[1:], **place)
    assert ranks.wait(processes, ranks.DEADLINE_S) == [0] * size, ranks.logs(tmp_path)
