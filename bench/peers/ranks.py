"""What the peers' programs share: the model, the arguments, a process per rank, one JSON line.

The workload is that of bench/pipeline.cpp: eight blocks of Linear, ReLU, Linear over the ranks, the
summed squared error, one thread a rank.  A step's time is the slower rank's, between two barriers.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing

WARMUP = 5


class Block(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.net1 = torch.nn.Linear(width, width)
        self.relu = torch.nn.ReLU()
        self.net2 = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--stages-per-rank", type=int, default=1, help="as the schedule has it")
    parser.add_argument("--sgd", action="store_true")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda, which all ranks share")
    parser.add_argument("--type", default="float", choices=["float", "bf16"])
    parser.add_argument("--mode", default="", help="of zero.py")
    parser.add_argument("--model", default="llama", help="of language_model.py")
    parser.add_argument("--adam", action="store_true", help="of zero.py: in place of SGD")
    return parser.parse_args()


def time_steps(steps: int, step, after) -> list[float]:
    """Milliseconds of each timed step, the slower rank's; `after` is not timed."""
    times = []
    for i in range(WARMUP + steps):
        dist.all_reduce(torch.zeros(1))
        start = time.perf_counter()
        step()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        elapsed = torch.tensor([(time.perf_counter() - start) * 1e3], dtype=torch.float64)
        dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
        after()
        if i >= WARMUP:
            times.append(elapsed.item())
    return times


def report(name: str, args: argparse.Namespace, times: list[float]) -> None:
    if dist.get_rank() == 0:
        line = {"name": name, **vars(args)}
        line["median_ms"] = round(statistics.median(times), 4)
        line["min_ms"] = round(min(times), 4)
        print(json.dumps(line), flush=True)


def _rank(rank: int, body, args, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    os.environ.update(WORLD_SIZE=str(args.ranks), LOCAL_SIZE=str(args.ranks))
    # NCCL takes ranks of one device for a mistake, unless their hosts differ.
    os.environ.update(NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    body(rank, args, f"file://{folder}/store")
    os._exit(0)  # Gloo's threads may abort an interpreter that ends: docs/gotchas.md.


def run_ranks(body) -> None:
    """Runs body(rank, arguments, init_method) in a process per rank."""
    args = parse()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (body, args, folder), nprocs=args.ranks)
