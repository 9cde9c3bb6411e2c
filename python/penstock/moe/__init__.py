"""DeepSpeed's place for experts, so that modules that mention them can be imported."""

from penstock._compatibility import refuse_in

refuse_in(globals())
