"""`python -m deferd`: the same as the command `deferd`."""

from __future__ import annotations

import sys

from deferd.cli.main import main

sys.exit(main())
