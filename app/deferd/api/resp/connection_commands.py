"""Commands about the connection and the service: what clients of Redis send before and between those on jobs."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from starlette.responses import Response

from deferd import __version__
from deferd.api.auth.api_keys import Permission
from deferd.api.resp import replies
from deferd.api.resp.replies import OK, PONG, REPLIES, CommandError, of_exception, wrong_arity
from deferd.api.resp.session import COMMANDS, Session, command
from deferd.api.resp.topic_commands import count_visible
from deferd.contract.errors import DeferdError, Unauthorized
from deferd.contract.flag_fields import quoted
from deferd.contract.operations.topics import LIST_TOPICS

_ATTRIBUTE_MAX_BYTES = 100
_REDIS_VERSION = "7.0.0"
"""The version of Redis whose replies ours resemble; clients choose by it what they send."""


@command("PING", arity=-1, has_topic=False)
async def ping(session: Session, command: list[bytes]) -> bytes:
    """``PING [message]``."""
    if len(command) > 2:
        raise wrong_arity("ping")
    return PONG if len(command) == 1 else replies.bulk(command[1])


@command("ECHO", arity=2, has_topic=False)
async def echo(_session: Session, command: list[bytes]) -> bytes:
    """``ECHO message``."""
    return replies.bulk(command[1])


@command("HELLO", arity=-1, has_topic=False, is_open=True)
async def hello(session: Session, command: list[bytes]) -> bytes:
    """``HELLO [2|3] [AUTH user token] [SETNAME name]``: choose the version of the protocol."""
    version = session.replies.version
    words = command[1:]
    if words:
        if words[0] not in (b"2", b"3"):
            raise CommandError("NOPROTO", "unsupported protocol version: 2 and 3 are supported")
        version = 3 if words.pop(0) == b"3" else 2
    token: bytes | None = None
    name: bytes | None = None
    while words:
        option = words.pop(0).upper()
        if option == b"AUTH" and len(words) >= 2:
            token = words[1]
            del words[:2]
        elif option == b"SETNAME" and words:
            name = _attribute("name", words.pop(0))
        else:
            raise CommandError("ERR", f"syntax error in HELLO option {quoted(option.decode('utf-8', 'replace'))}")
    if token is not None:
        _authenticate(session, token)
    elif not session.is_authenticated:
        audit_without_key(session, "RESP HELLO")
        raise no_key("HELLO must be called with the key: HELLO 3 AUTH default TOKEN")
    session.replies = REPLIES[version]
    session.name = session.name if name is None else name
    return session.replies.mapping(
        {
            "server": replies.bulk(b"deferd"),
            "version": replies.bulk(__version__.encode()),
            "proto": replies.integer(version),
            "id": replies.integer(session.id),
            "mode": replies.bulk(b"standalone"),
            "role": replies.bulk(b"master"),
            "modules": replies.array(()),
        }
    )


@command("AUTH", arity=-2, has_topic=False, is_open=True)
async def auth(session: Session, command: list[bytes]) -> bytes:
    """``AUTH [user] token``: use the API key with this token from now on; the user's name is ignored."""
    if len(command) > 3:
        raise wrong_arity("auth")
    _authenticate(session, command[-1])
    return OK


def no_key(text: str = "Authentication required.") -> CommandError:
    """The error of a service with keys for a client that has given none, as Redis has it."""
    return CommandError("NOAUTH", text)


def audit_without_key(session: Session, operation: str) -> None:
    """Write to the audit log that a command of a client without a key was refused, as HTTP does for a request."""
    permission = Permission(None, operation=operation)
    session.api.context.gate.audit_refusal(None, permission, session.request({}), None, Unauthorized.code)


def _authenticate(session: Session, token: bytes) -> None:
    """Raises CommandError when the service has no keys, or not this one, or the key exceeds its rate limit."""
    if not session.api.has_keys:
        raise CommandError("ERR", "AUTH was called, but this service has no keys: connect without a password")
    request = session.request({})
    request.headers = [(b"authorization", b"Bearer " + token)]
    try:
        admission = session.api.context.gate.admit_page(None, "RESP AUTH", request)
        admission.authorize()
    except Unauthorized:
        raise CommandError("WRONGPASS", "the key is not known to this service") from None
    except DeferdError as error:
        raise of_exception(error) from None
    assert admission.key_name is not None  # noqa: S101 (only a known key is admitted)
    session.use_key(token, admission.key_name)


@command("SELECT", arity=2, has_topic=False)
async def select(_session: Session, command: list[bytes]) -> bytes:
    """``SELECT 0``: there is one database."""
    if command[1] != b"0":
        raise CommandError("ERR", "DB index is out of range: there is database 0 only")
    return OK


@command("CLIENT", arity=-2, has_topic=False)
async def client(session: Session, command: list[bytes]) -> bytes:
    """``CLIENT SETNAME name``, ``GETNAME``, ``SETINFO lib-name|lib-ver value``, ``ID``."""
    match command[1].upper(), command[2:]:
        case b"SETNAME", [name]:
            session.name = _attribute("name", name)
            return OK
        case b"GETNAME", []:
            return replies.bulk(session.name) if session.name else session.replies.null
        case b"SETINFO", [attribute, value]:
            if attribute.lower() not in (b"lib-name", b"lib-ver"):
                raise CommandError("ERR", f"unrecognized option {quoted(attribute.decode('utf-8', 'replace'))}")
            session.note_library(attribute.lower(), _attribute("value", value))
            return OK
        case b"ID", []:
            return replies.integer(session.id)
    shown = quoted(command[1].decode("utf-8", "replace"))
    raise CommandError("ERR", f"unknown subcommand {shown}, or wrong number of arguments for it")


def _attribute(name: str, value: bytes) -> bytes:
    """A name that a client gives: printable ASCII without spaces, as in Redis."""
    if len(value) > _ATTRIBUTE_MAX_BYTES or any(not 0x21 <= byte <= 0x7E for byte in value):
        raise CommandError("ERR", f"the {name} must have at most 100 characters, without spaces or special ones")
    return value


@command("COMMAND", arity=-1, has_topic=False)
async def describe(session: Session, command: list[bytes]) -> bytes:
    """``COMMAND [COUNT|DOCS|INFO [name ...]|LIST]``: the commands, as Redis describes its own."""
    subcommand = command[1].upper() if len(command) > 1 else b"INFO"
    if subcommand == b"COUNT":
        return replies.integer(len(COMMANDS))
    if subcommand == b"DOCS":
        return session.replies.mapping({})
    if subcommand == b"LIST":
        return replies.bulks([name.lower() for name in COMMANDS])
    if subcommand != b"INFO":
        raise CommandError("ERR", "unknown subcommand of COMMAND: COUNT, DOCS, INFO and LIST are known")
    names = [name.upper() for name in command[2:]] or list(COMMANDS)
    return replies.array([_description(name) if name in COMMANDS else session.replies.null for name in names])


@cache
def _description(name: bytes) -> bytes:
    described = COMMANDS[name]
    first = 1 if described.has_topic else 0
    last = -1 if name == b"DEL" else first
    numbers = [replies.integer(number) for number in (first, last, 1 if first else 0)]
    flags = replies.array([b"+fast\r\n"])
    none = replies.array(())  # ACL categories, tips, specifications of keys, subcommands
    return replies.array([replies.bulk(name.lower()), replies.integer(described.arity), flags, *numbers, *(none,) * 4])


@command("INFO", arity=-1, has_topic=False)
async def info(session: Session, _command: list[bytes]) -> bytes:
    """``INFO [section ...]``: role, version and the number of topics, which needs scope read."""
    topics: list[int] = []
    try:
        await session.call(LIST_TOPICS, {}, run=partial(_count_topics, topics))
    except CommandError as error:
        if error.code not in {"FORBIDDEN", "STORE_UNAVAILABLE"}:
            raise
    lines = [
        *("# Server", f"redis_version:{_REDIS_VERSION}", "server_name:deferd", f"deferd_version:{__version__}"),
        *("redis_mode:standalone", "", "# Persistence", "loading:0", "", "# Replication", "role:master"),
        *("connected_slaves:0", "", "# Keyspace"),
        *(f"db0:keys={count},expires=0,avg_ttl=0" for count in topics),
        "",
    ]
    return replies.bulk("\r\n".join(lines).encode())


async def _count_topics(topics: list[int], arguments: dict[str, Any]) -> Response:
    topics.append(await count_visible(arguments["request"]))
    return Response()


@command("RESET", arity=1, has_topic=False, is_open=True)
async def reset(session: Session, _command: list[bytes]) -> bytes:
    """``RESET``: as if newly connected."""
    session.reset()
    return b"+RESET\r\n"


@command("QUIT", arity=-1, has_topic=False, is_open=True)
async def quit_session(session: Session, _command: list[bytes]) -> bytes:
    """``QUIT``: the connection is closed after the reply."""
    session.has_quit = True
    return OK
