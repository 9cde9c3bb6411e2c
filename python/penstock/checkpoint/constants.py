"""DeepSpeed's place for the words of its checkpoints, so that modules that mention them go on."""

from penstock._compatibility import refuse_in

refuse_in(globals())
