"""The layer of experts, by DeepSpeed's name: making one is refused."""

from penstock._compatibility import refuse_in

refuse_in(globals())
