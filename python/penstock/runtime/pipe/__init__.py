"""DeepSpeed's place for the pipeline; what is in it is that of `penstock.pipe`."""

from penstock.pipe import from_program, program, to_text, verify
from penstock.runtime.pipe import schedule

__all__ = ["from_program", "program", "schedule", "to_text", "verify"]
