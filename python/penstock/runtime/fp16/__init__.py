"""DeepSpeed's place for optimizers in 16 bits, which isinstance() knows an engine's by."""

from penstock._compatibility import refuse_in

refuse_in(globals())
