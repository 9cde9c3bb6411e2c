"""Places where a save cannot succeed: a small disk, one that is read only, and limits of a process.

Each makes its place, tries to save there, and removes it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import unittest
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """An empty tmpfs of that size.  Throws OSError where there is none to be had."""
    if os.geteuid() != 0:
        raise OSError("a file system of one's own needs root")
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as name:
        place = Path(name).resolve()
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place]
        mounted = subprocess.run(words, capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            raise OSError(f"mount: {mounted.stderr.strip()}")
        try:
            yield place
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)


def small_disk_for(test: unittest.TestCase, size: str) -> Path:
    """The same until the test is over, which is skipped where there is none to be had."""
    stack = ExitStack()
    test.addCleanup(stack.close)
    try:
        return stack.enter_context(small_disk(size))
    except OSError as error:
        test.skipTest(str(error))


def set_read_only(place: Path, read_only: bool) -> None:
    """Throws CalledProcessError where a file is open for writing."""
    words = ["mount", "-o", f"remount,{'ro' if read_only else 'rw'}", place]
    subprocess.run(words, check=True, capture_output=True)


def with_limit(limit: int, value: int) -> Callable[[], None]:
    """For a child: before it starts, its soft limit is that."""
    return lambda: resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))
