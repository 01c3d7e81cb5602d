"""The base URL of a service, as written in a program, a flag or an environment variable."""

from __future__ import annotations

from urllib.parse import urlsplit

_SHOWN_CHARACTERS = 80


def refuse_passwords(text: str) -> None:
    """Raise ValueError, without quoting `text`, when it has an `@` and so may contain a password.

    In a malformed URL, or in a list of URLs, the bounds of a password are unknown.
    """
    if "@" in text:
        raise ValueError("has a user or password in it (an @), which is not sent: set the key with its own setting")


def parse_service_url(text: str) -> str:
    """The URL before the paths of the API, without a trailing slash; the scheme defaults to http.

    `unix:///run/deferd.sock` is the absolute path of a unix socket, percent-encoded.

    Raises:
        ValueError: not such a URL; the message continues a sentence that begins with the setting, without passwords.
    """
    url = text.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        names_a_service = parts.scheme in {"http", "https"} and bool(parts.hostname)
        if parts.scheme == "unix":
            names_a_service = not parts.netloc and len(parts.path) > 1
        # `http:/host` gives a netloc that ends in a colon.
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
    # geturl() leaves the slashes out where there is no host; what is parsed again, as in the commands, needs them.
    return f"unix://{parts.path}" if parts.scheme == "unix" else parts.geturl().rstrip("/")
