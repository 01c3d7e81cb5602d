"""The command `deferd`, also as `python -m deferd`."""

from __future__ import annotations

import sys

from deferd.version import how_to_install

_EXTRAS = {"worker": "worker", **dict.fromkeys(("serve", "key", "backup", "restore", "copy"), "server")}
"""What to install for commands that need more, or less, than the others."""


def main() -> int:
    """Run the command line, which needs more than the base install."""
    try:
        from deferd.cli import main as cli  # noqa: PLC0415 (it may be missing)
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        how = how_to_install(_EXTRAS.get(" ".join(sys.argv[1:2]), "cli"))
        print(f"deferd: the command line needs click, which is missing: {how}", file=sys.stderr)  # noqa: T201
        return 1
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
