"""The OpenAPI document, and Swagger UI to read it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from deferd.api.openapi import document
from deferd.api.responses import JsonResponse

_SWAGGER_FILES = Path(str(files("fastapi_offline") / "static"))
"""Swagger UI from a package: FastAPI's own page loads it from other hosts and stays blank without them."""


async def _docs_page(_request: Request) -> HTMLResponse:
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=document.TITLE,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
    )
    page.headers["x-frame-options"] = "DENY"  # against clickjacking
    return page


def _file(name: str) -> Route:
    async def send_file(_request: Request) -> FileResponse:
        return FileResponse(_SWAGGER_FILES / name)

    return Route(f"/docs/{name}", send_file, include_in_schema=False)


async def _openapi_json(request: Request) -> Response:
    app: FastAPI = request.scope["app"]
    return JsonResponse(app.openapi())


PAGES = [
    Route("/openapi.json", _openapi_json, include_in_schema=False),
    Route("/docs", _docs_page, include_in_schema=False),
    *(_file(name) for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")),
]
