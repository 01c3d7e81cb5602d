"""The base URL of a service, as people write it in a program, a flag or a variable."""

from __future__ import annotations

from urllib.parse import urlsplit

_SHOWN_CHARACTERS = 80


def refuse_passwords(text: str) -> None:
    """Raise ValueError, which shows nothing of `text`, when it may have a password in it: wherever an `@` is.

    Of a URL that is written wrongly, or a list of them, nobody can tell where a password begins and ends.
    """
    if "@" in text:
        raise ValueError("has a user or password in it (an @), which is not sent: a key has a setting of its own")


def parse_service_url(text: str) -> str:
    """The URL on which the paths of the contract are put, without a slash at its end; http when it names no scheme.

    Raises:
        ValueError: it is no such URL; the message goes on after the name of the setting and shows no password.
    """
    url = text.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        names_a_service = parts.scheme in {"http", "https"} and bool(parts.hostname)
        # A netloc that ends in a colon comes from text such as `http:/host`.
        is_whole = parts.port is not None or not parts.netloc.endswith(":")
        is_base = is_whole and url.isprintable() and not set(url) & set("?# ")
    except ValueError:
        names_a_service, is_base = False, False
    refuse_passwords(url)
    if not (names_a_service and is_base):
        shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
        raise ValueError(
            f"is {shown!r}, but must be an http:// or https:// URL without a query, such as http://host:8000"
        )
    return parts.geturl().rstrip("/")
