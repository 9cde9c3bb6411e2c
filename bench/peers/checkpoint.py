"""Saves and loads the same state by penstock, DeepSpeed or torch DCP: one process, one thread.

Usage: checkpoint.py PACKAGE FOLDER WIDTH REPEATS; PACKAGE: penstock, deepspeed or dcp.
The state: eight blocks of Linear, ReLU, Linear, and Adam's, in float.  Files are flushed to the
disk, and are not in the page cache when they are loaded.  Prints a line of JSON; milliseconds.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def model_of(width):
    layers = []
    for _ in range(8):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)]
    return torch.nn.Sequential(*layers)


def flush(folder):
    """All files of a folder, of a system that does not do so itself."""
    for path in folder.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def forget(folder):
    flush(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def of_engine(package, width):
    model = model_of(width)
    config = {
        "train_batch_size": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-6, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }
    engine, *_ = package.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.backward(engine(torch.randn(1, width)).square().mean())
    engine.step()

    def save(folder):
        engine.save_checkpoint(folder, tag="tag")
        flush(folder)

    def load(folder):
        engine.load_checkpoint(folder, tag="tag")

    return save, load


def of_dcp(width):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = model_of(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    model(torch.randn(1, width)).square().mean().backward()
    optimizer.step()

    def save(folder):
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder / "tag")
        flush(folder)

    def load(folder):
        weights, states = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": states}, checkpoint_id=folder / "tag")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)

    return save, load


def main(name, folder, width, repeats):
    torch.set_num_threads(1)
    folder = Path(folder)
    if name == "dcp":
        store = dist.FileStore(str(folder) + ".store", 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        save, load = of_dcp(int(width))
    else:
        package = __import__(name)
        package.init_distributed("gloo")
        save, load = of_engine(package, int(width))
    times = {"save_ms": [], "load_ms": []}
    for _ in range(int(repeats)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        start = time.perf_counter()
        save(folder)
        times["save_ms"].append(round(1e3 * (time.perf_counter() - start), 1))
        forget(folder)
        start = time.perf_counter()
        load(folder)
        times["load_ms"].append(round(1e3 * (time.perf_counter() - start), 1))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(json.dumps({"contender": name, **times, "bytes": size}), flush=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
