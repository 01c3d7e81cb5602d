"""The permissions of the store's user, as docs/deployment.md lists them."""

from __future__ import annotations

import re
from pathlib import Path

USER, PASSWORD = "deferd", "word"
_DEPLOYMENT = Path(__file__).parents[3] / "docs/deployment.md"


def documented_permissions() -> list[str]:
    """The rules that the page gives to ACL SETUSER, except the password."""
    [rules] = re.findall(
        rf"^ACL SETUSER {USER} reset (.*)$", _DEPLOYMENT.read_text(encoding="utf-8").replace("\\\n", ""), re.MULTILINE
    )
    return [rule for rule in rules.split() if not rule.startswith(">")]


def user_line() -> str:
    """The line of a store's configuration that creates this user."""
    return f"user {USER} {' '.join(documented_permissions())} >{PASSWORD}"


def as_user(url: str) -> str:
    """A `redis://` URL with the user's name and password."""
    return url.replace("redis://", f"redis://{USER}:{PASSWORD}@")
