"""Where the cases of this folder find what tests share: ranks.py, models.py, support.py."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "python"), str(TESTS / "process")]
