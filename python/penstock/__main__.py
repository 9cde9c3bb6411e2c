"""The program `penstock`, as pip puts it on the PATH; `python -m penstock` is the same.

Becomes the native program that lies in the package, which keeps the process id, signals and exit
codes its own.  Before that it finds out where torch is, as Python alone knows, for the commands
that need it.  Imports no torch.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

from penstock import _program, _standard_streams


def main() -> None:
    """Becomes the program; returns never.  Ends with 2 where there is nothing to become."""
    _standard_streams.open_missing()
    words = sys.argv[1:]
    if words[:2] == ["checkpoint", "import"]:  # It reads files of torch's.
        importing = importlib.import_module("penstock.checkpoint.importing")
        sys.exit(importing.main(words[2:]))
    try:
        environment = _program.environment(words)
        # Signals that Python ignores, and so would the program.
        for name in ("SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execve(_program.PROGRAM, [str(_program.PROGRAM), *words], environment)
    except (ImportError, OSError) as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
