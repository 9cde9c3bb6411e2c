"""What DeepSpeed has under deepspeed.utils, by another import line."""
