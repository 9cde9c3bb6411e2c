"""Any signal that a rank handles could report a living peer dead.

poll() ends with EINTR at a signal, and that was taken for the end of the peer's process: at 100
signals a second a run was over after 1.7 s.  Sampling profilers send as many.  Here 1,000 a second
interrupt every system call of 200 steps, and the losses are those of ranks left in peace.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest
import ranks
import torch
import torch.distributed as dist
from support import ProcessTest, losses

import penstock

WORLD_SIZE = 2
STEPS = 200

# Loaded into every process of a run.  Says how many signals came.
TIMER = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

static volatile long signals = 0;
static void count(int signal) { (void)signal; ++signals; }

__attribute__((constructor)) static void begin(void) {
  struct sigaction action = {.sa_handler = count};  /* Without SA_RESTART. */
  struct itimerval each = {{0, 1000}, {0, 1000}};
  sigaction(SIGALRM, &action, NULL);
  setitimer(ITIMER_REAL, &each, NULL);
}

__attribute__((destructor)) static void end(void) {
  char path[4096];
  FILE* file;
  snprintf(path, sizeof path, "%s/%d", getenv("SIGNALS"), getpid());
  file = fopen(path, "w");
  if (!file) return;
  fprintf(file, "%ld\n", signals);
  fclose(file);
}
"""


class Program(ProcessTest):
    def setUp(self) -> None:
        super().setUp()
        compiler = shutil.which("cc")
        if not compiler:
            self.skipTest("no C compiler, for a library that sends signals")
        (self.folder / "timer.c").write_text(TIMER)
        self.timer = self.folder / "timer.so"
        words = [compiler, "-shared", "-fPIC", "-o", self.timer, self.folder / "timer.c"]
        subprocess.run(words, check=True)
        self.signals = self.folder / "signals"
        self.signals.mkdir()

    def run_steps(self, run: str, transport: str, **environment: str) -> list:
        config = self.config(
            mesh={"pipe": 2, "data": 1},
            run={"steps": STEPS},
            launch={"transport": transport},
        )
        self.assert_code(self.train(config, "--run", run, **environment), 0)
        return losses(self.folder / run)

    def test_losses_are_those_of_ranks_left_in_peace(self) -> None:
        expected = self.run_steps("peace", "auto")
        self.assertEqual(len(expected), STEPS + 1)
        disturbed = {"LD_PRELOAD": str(self.timer), "SIGNALS": str(self.signals)}
        for transport in ("shm", "tcp", "gloo"):
            with self.subTest(transport):
                self.assertEqual(self.run_steps(transport, transport, **disturbed), expected)
        counts = [int(path.read_text()) for path in self.signals.iterdir()]
        # Ranks leave by _exit() at times; the launcher never does.
        self.assertGreater(max(counts), 500, counts)
        self.assert_nothing_left()


def train(stage):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine = penstock.initialize(model=module, config=config)[0]
    generator = torch.Generator().manual_seed(dist.get_rank())
    found = []
    for _ in range(STEPS):
        x = torch.randn(2, 8, generator=generator)
        loss = (engine(x) - x.sum(1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return found


def check_python(group):
    expected = train(3)
    signals = []
    signal.signal(signal.SIGALRM, lambda *_: signals.append(1))  # Without SA_RESTART, too.
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        found = train(3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert found == expected
    assert len(signals) > 100, len(signals)


test_check = ranks.tests_of(__file__, WORLD_SIZE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a namespace of processes")
def test_check_over_tcp(tmp_path):
    """Ranks that see no process of each other take TCP."""
    alone = [shutil.which("unshare"), "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not alone[0] or subprocess.run([*alone, "true"]).returncode != 0:
        pytest.skip("unshare makes no namespace of processes here")
    processes = ranks.start(__file__, WORLD_SIZE, tmp_path, "check_python", before=alone)
    assert ranks.wait(processes, 100) == [0] * WORLD_SIZE, ranks.logs(tmp_path)
    for rank in range(WORLD_SIZE):
        outcome = (tmp_path / f"outcomes-{rank}.jsonl").read_text()
        assert '"outcome": ""' in outcome, outcome


if __name__ == "__main__":
    ranks.main(globals())
