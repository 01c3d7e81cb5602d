"""The permissions that the README lists for the store's user."""

from __future__ import annotations

import re
from pathlib import Path

USER, PASSWORD = "deferd", "word"
_README = Path(__file__).parents[2] / "README.md"


def readme_permissions() -> list[str]:
    """The rules of the README's ACL SETUSER command, without the password."""
    [rules] = re.findall(rf"^ACL SETUSER {USER} reset (.*)$", _README.read_text().replace("\\\n", ""), re.MULTILINE)
    return [rule for rule in rules.split() if not rule.startswith(">")]


def user_line() -> str:
    """The line of a store's configuration that creates this user."""
    return f"user {USER} {' '.join(readme_permissions())} >{PASSWORD}"


def as_user(url: str) -> str:
    """A `redis://` URL with the user's name and password."""
    return url.replace("redis://", f"redis://{USER}:{PASSWORD}@")
