"""The interface of a gate, and of a request that it admits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ClassVar, Protocol

from deferd.api.auth.api_keys import NO_BOUNDS, Arguments, Bounds, Key, Permission, admits
from deferd.api.auth.audit_log import AuditedRequest, AuditLog
from deferd.api.auth.usage_limits import KeyUsage
from deferd.api.incoming_request import IncomingRequest
from deferd.api.responses import Header
from deferd.contract.scopes import Scope
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine import script_arguments
from deferd.engine.script_arguments import PutBounds
from deferd.engine.topic_usage import TopicUsage


class Addressed(Protocol):
    """A request, as the audit log sees it."""

    def client_address(self) -> str | None:
        """The address of the caller, if the server knows it."""


class Admission:
    """An admitted request. This class admits without a key: all checks pass.

    The checks are called in this order; each raises the DeferdError that refuses the request.
    """

    __slots__ = ("bounds", "key", "key_name", "usage")

    def __init__(self, key: Key | None = None, usage: KeyUsage | None = None) -> None:
        self.key = key
        self.key_name = None if key is None else key.name
        self.usage = usage
        self.bounds: Bounds = NO_BOUNDS if key is None else key.bounds

    @property
    def visible_topics(self) -> TopicPatterns | None:
        """The topics that a list may show; None for all."""
        return None if self.key is None or self.key.topics.everything else self.key.topics

    @property
    def is_of_admin(self) -> bool:
        """Whether the key may do everything; False without keys, where callers cannot be told apart."""
        return self.key is not None and Scope.ADMIN in self.key.scopes

    def put_bounds(self, body_bytes: int) -> PutBounds:
        """The bounds that the key sets for each job, and the service by its limit of `body_bytes`."""
        bounds = script_arguments.NO_BOUNDS if self.usage is None else self.usage.put_bounds
        return bounds if bounds.body_bytes == body_bytes else bounds._replace(body_bytes=body_bytes)

    def may_use(self, topics: str) -> bool:
        """Whether the key is for these topics and patterns, which have commas between them."""
        key = self.key
        return key is None or key.topics.everything or all(admits(key, topic) for topic in topics.split(","))

    def authorize(self) -> None:
        """Check the key's rate limit (429), then its scope (403)."""

    def check_body(self, raw: bytes) -> None:
        """Check the body as it came (413)."""

    def check_value(self, value: dict[str, Any]) -> None:
        """Check the parsed body (422). For a large body this runs in another thread."""

    def check_arguments(self, arguments: Arguments) -> None:
        """Check the topics (403) and the values (422) of the bound arguments."""

    def check_topic(self, topic: str) -> None:
        """Check a topic that only the store knew (403); the text of the error does not name it."""

    def current_topics(self) -> TopicPatterns | None:
        """As `visible_topics`, of the key as it is now. Raises Unauthorized or Forbidden."""
        return None

    def check_again(self, topics: Collection[str]) -> None:
        """Check the key once more after a wait: the keys may have been read again meanwhile (401, 403)."""


WITHOUT_KEY = Admission()


class Gate(ABC):
    """Decides which requests are admitted, and writes the audit log."""

    has_keys: ClassVar[bool]

    def __init__(self) -> None:
        self._audit_log = AuditLog()
        self.generation = 0
        """Of the keys: it grows when they are read again."""

    @abstractmethod
    def running(self, usage: TopicUsage) -> AbstractAsyncContextManager[None]:
        """Around the life of the application."""

    @abstractmethod
    def admit(self, permission: Permission, request: IncomingRequest) -> Admission:
        """Admit a request for an operation that requires `permission`.

        Raises:
            Unauthorized, Forbidden: it is refused.
        """

    @abstractmethod
    def find_admission(self, permission: Permission, method: str, headers: Sequence[Header]) -> Admission | None:
        """The admission of a request on a direct path, whose topic and limits are still to be checked; without effect.

        It depends on the arguments and the keys only. None: the request is to be refused, or needs a closer look.
        """

    @abstractmethod
    def admit_page(self, scope: Scope | None, name: str, request: IncomingRequest) -> Admission:
        """Admit a request for a page, or with `scope` None for a path that does not exist. Raises as `admit`."""

    @abstractmethod
    def check_again(self, key: Key, permission: Permission, topics: Collection[str], request: Addressed) -> None:
        """As `Admission.check_again`, for a request that came with `key`."""

    def find_key(self, token: bytes) -> Key | None:  # noqa: ARG002 (a service without keys has none)
        """The key with this token; None if there is none. The console uses it at log-in."""
        return None

    def key_of_digest(self, digest: bytes) -> Key | None:  # noqa: ARG002 (as above)
        """The key whose token has this SHA-256; None if it was revoked."""
        return None

    def audit_refusal(
        self, key_name: str | None, permission: Permission, request: Addressed, topic: str | None, code: str
    ) -> None:
        """Write to the audit log that a request was refused with the error `code`."""
        audited = AuditedRequest(permission.operation, topic, request.client_address())
        self._audit_log.refused(key_name, audited, code)

    def recording(
        self, permission: Permission, request: IncomingRequest, admission: Admission, arguments: Arguments
    ) -> AbstractContextManager[None]:
        """Around an admin action: write it to the audit log, unless it is refused."""
        topic, subject = arguments.get("topic"), arguments.get("name", arguments.get("group"))
        if topic is None and subject is not None:
            topic = next(iter(permission.topics(arguments)), None)
        audited = AuditedRequest(permission.operation, topic, request.client_address(), subject)
        return self._audit_log.recording(admission.key_name, audited)
