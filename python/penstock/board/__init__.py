"""The metrics of a run on a board: `python -m penstock.board RUN`.

Reads what `penstock train` writes to its run directory (docs/run_directory.md), while the run goes
on or later, and writes TensorBoard's event files, a run of Weights & Biases, or tables.
"""

from penstock.board._command import main

__all__ = ["main"]
