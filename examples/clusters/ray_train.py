"""`penstock train` in the workers of Ray Train, a rank each: python ray_train.py CONFIG RANKS RUN.

RUN is the run directory, on a file system that all hosts share.  A run that loses a worker begins
anew by Ray's own restarts, from its newest checkpoint.  DataParallelTrainer makes no process group:
TorchTrainer's would have the port of MASTER_PORT already.  Words behind RUN are penstock's.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.collective import broadcast_from_rank_zero
from ray.train.data_parallel_trainer import DataParallelTrainer


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def train_rank(settings):
    context = get_context()
    here = (ray.util.get_node_ip_address(), free_port())
    address, port = broadcast_from_rank_zero(here)  # Rank 0 lets the others in there.
    variables = {
        "RANK": context.get_world_rank(),
        "WORLD_SIZE": context.get_world_size(),
        "LOCAL_RANK": context.get_local_rank(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    words = ["penstock", "train", *settings["words"]]
    ends_with_worker = ["setpriv", "--pdeathsig", "KILL"]  # Ray kills workers, and not their ranks.
    subprocess.run([*ends_with_worker, *words], env=environment, check=True)


def main(config, ranks, run, *words):
    words = [str(Path(config).resolve()), "--run", run, "--resume", "auto", *words]
    result = DataParallelTrainer(
        train_rank,
        train_loop_config={"words": ["--checkpoint-every", "100", *words]},
        scaling_config=ScalingConfig(num_workers=int(ranks)),  # use_gpu=True gives each a GPU.
        run_config=RunConfig(
            storage_path=run + "-ray", failure_config=FailureConfig(max_failures=3)
        ),
    ).fit()
    if result.error is not None:
        raise result.error


if __name__ == "__main__":
    config, ranks, run, *words = sys.argv[1:]
    main(config, ranks, str(Path(run).resolve()), *words)
