#!/usr/bin/env python3
"""torch's planning of one interleaved 1F1B schedule, once for each line on standard input.

torch_planning.py RANKS STAGES_PER_RANK MICROBATCHES

The constructor writes the compute order of all ranks and ends with `_prepare_schedule_with_comms`,
which validates it and adds unshards, reductions and messages.  Mock stages stand for the model: the
constructor reads nothing of a stage but where it stands.  Prints a line of JSON per planning; the
import of torch is not counted.
"""

import json
import sys
import time

from torch.distributed.pipelining import ScheduleInterleaved1F1B
from torch.distributed.pipelining.stage import _PipelineStageBase


class MockStage(_PipelineStageBase):
    def __init__(self, stages: int, ranks: int, index: int):
        self.num_stages = stages
        self.group_size = ranks
        self.group_rank = 0
        self.group = None
        self.stage_index = index
        self.stage_index_to_group_rank = None

    def _create_grad_recv_info(self, act_send_info):
        raise NotImplementedError

    def _prepare_forward_infra(self, *args, **kwargs):
        raise NotImplementedError

    def _prepare_backward_infra(self, *args, **kwargs):
        raise NotImplementedError


def main() -> None:
    ranks, per_rank, microbatches = map(int, sys.argv[1:])
    for _ in sys.stdin:
        stages = [MockStage(ranks * per_rank, ranks, c * ranks) for c in range(per_rank)]
        start, cpu_start = time.perf_counter(), time.process_time()
        schedule = ScheduleInterleaved1F1B(stages, microbatches)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        actions = sum(map(len, schedule.pipeline_order_with_comms.values()))
        print(
            json.dumps({"seconds": seconds, "cpu_s": cpu_seconds, "actions": actions}), flush=True
        )


if __name__ == "__main__":
    main()
