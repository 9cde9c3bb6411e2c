"""`python -m penstock.tokenize`."""

import sys

from penstock.tokenize import main

sys.exit(main())
