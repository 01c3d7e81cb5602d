"""`python -m deferd.bench`: the same as the command `deferd bench`."""

from __future__ import annotations

import sys

from deferd.cli.main import main

sys.exit(main(["bench", *sys.argv[1:]]))
