"""DeepSpeed's place for what writes its checkpoints, so that modules that mention it go on."""

from penstock._compatibility import refuse_in

refuse_in(globals())
