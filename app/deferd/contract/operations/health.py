"""For operators: health, readiness, metrics, and the consistency check of the whole store."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses.audits import StoreAudit
from deferd.contract.responses.health import Health
from deferd.contract.responses.response import Response
from deferd.contract.scopes import Scope

CHECK_HEALTH = Operation(
    "check_health",
    "GET",
    "/healthz",
    tag="operations",
    scope=None,
    summary="Check that the process is alive",
    description="Responds as long as the process can respond at all. It does not check the store.",
    response=Health,
    response_description="The process is alive.",
    needs_store=False,
)
CHECK_READINESS = Operation(
    "check_readiness",
    "GET",
    "/readyz",
    tag="operations",
    scope=None,
    summary="Check that the service is ready",
    description=(
        "Checks that the store responds. For load balancers: send requests only while this returns 200. The detail "
        "of the 503 says why, such as `Connection refused` or `No space left on device`, and while the store loads "
        "its data after a start how far it is."
    ),
    response=Health,
    response_description="The service is ready.",
)
GET_METRICS: Operation[Response] = Operation(
    "get_metrics",
    "GET",
    "/metrics",
    tag="operations",
    scope=Scope.READ,
    summary="Get metrics for Prometheus",
    description=(
        "The metrics of all server processes, and the current state of the store. While the store is down "
        "this still responds, with `deferd_store_up 0`. The key must match all topics."
    ),
    response_description="Metrics in Prometheus' text format.",
    needs_store=False,
)
AUDIT_STORE = Operation(
    "audit_store",
    "GET",
    "/audit",
    tag="operations",
    scope=Scope.ADMIN,
    summary="Audit the store",
    description=(
        "Finds topics that have data but are missing from the list of topics, and store keys of the wrong "
        "type. It reads all keys of the store in small steps and changes nothing. The API key must match all topics."
    ),
    response=StoreAudit,
    response_description="The findings.",
)
REPAIR_STORE = Operation(
    "repair_store",
    "POST",
    "/repair",
    tag="operations",
    scope=Scope.ADMIN,
    summary="Audit and repair the store",
    description=(
        "Like the audit, but renames store keys of the wrong type. To repair a topic that is missing from the "
        "list, repair that topic. The API key must match all topics."
    ),
    response=StoreAudit,
    response_description="The repaired findings.",
    repeatable=False,
    done="repaired the store",
)
