"""What an engine tells boards of its steps: DeepSpeed's keys tensorboard, wandb and csv_monitor.

Engines have one as `engine.monitor`.  `penstock train` writes metrics to its run directory instead,
which `python -m penstock.board` copies to the same boards.
"""

from penstock._compatibility import refuse_in

refuse_in(globals())
