"""Where the cases of this folder find what tests share: ranks.py, models.py, support.py."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in ("python", "process", "torn"))]
