"""The schedules and stages of torch.distributed.pipelining, run by penstock."""
