"""`python -m penstock.board`."""

import sys

from penstock.board import main

sys.exit(main())
