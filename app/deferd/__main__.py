"""The command `deferd`, also as `python -m deferd`."""

from __future__ import annotations

import sys

from deferd.version import how_to_install


def main() -> int:
    """Run the command line, which needs more than the base install."""
    try:
        from deferd.cli import main as cli  # noqa: PLC0415 (it may be missing)
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        how = how_to_install("worker" if sys.argv[1:2] == ["worker"] else "cli")
        print(f"deferd: the command line needs click, which is missing: {how}", file=sys.stderr)  # noqa: T201
        return 1
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
