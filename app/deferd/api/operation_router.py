"""Makes the routes of the operations in the contract's tables."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from deferd.api.auth.api_keys import ALL_CALLS, Arguments, Permission, Recorded, no_topics, topics_of_path
from deferd.api.operation import OperationRoute
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.response import Response
from deferd.contract.scopes import Scope

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class OperationRouter:
    """The routes of some operations."""

    def __init__(self) -> None:
        self.routes: list[OperationRoute] = []

    def serves(
        self,
        operation: Operation[Response],
        *,
        topics: Callable[[Arguments], Collection[str]] = topics_of_path,
        all_topics: bool = False,
        puts_into: Callable[[Arguments], Collection[str]] = no_topics,
        ends_into: Callable[[Arguments], Collection[str]] = no_topics,
        audited: bool = False,
        recorded: Recorded = ALL_CALLS,
        responses: dict[int | str, dict[str, Any]] | None = None,
        **options: Any,
    ) -> Callable[[Endpoint], Endpoint]:
        """Have a function serve an operation: it returns the response's struct, or a whole response.

        What is not in the table is known to the service alone. For `topics`, `all_topics`, `puts_into`, `ends_into`
        and `audited` see Permission. `recorded` says how calls are recorded if the row has `done`; `responses` are
        added to those of the OpenAPI document, with the response's struct as `model`; `options` are FastAPI's.
        """
        permission = Permission(
            operation.scope,
            topics,
            all_topics,
            puts_into,
            ends_into,
            f"{operation.method} {operation.path}",
            is_audited=audited or (operation.scope is Scope.ADMIN and operation.method != "GET"),
            recorded=recorded if operation.done else None,
        )

        def register(endpoint: Endpoint) -> Endpoint:
            self.routes.append(OperationRoute(operation, endpoint, permission, responses or {}, **options))
            return endpoint

        return register
