"""DeepSpeed's pipeline dialect: its schedules in `penstock.pipe.schedule`, and what proves them.

>>> from penstock.pipe import schedule, verify
>>> bool(verify(schedule.TrainSchedule(micro_batches=8, stages=4, stage_id=0)))
True
"""

from penstock.pipe import schedule
from penstock.pipe.verification import from_program, program, to_text, verify

__all__ = ["from_program", "program", "schedule", "to_text", "verify"]
