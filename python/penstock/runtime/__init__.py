"""DeepSpeed's place for the pipeline: `penstock.runtime.pipe` is `penstock.pipe`."""

from penstock.runtime import pipe

__all__ = ["pipe"]
