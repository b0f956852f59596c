"""The application: routes, page, error replies, and the layers around them."""

from __future__ import annotations

import asyncio
import logging
import re
import reprlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from openvse import __version__
from openvse.errors import (
    EngineError,
    IndexFormatError,
    MissingItemError,
    ModelError,
    OpenVSEError,
    nearest,
)
from openvse.serving.assistants import Assistants
from openvse.serving.batching import BusyError
from openvse.serving.layers import Bounds, Guard, Replies, Sessions
from openvse.serving.routes import api, plain
from openvse.serving.schemas import ManySearches, OneSearch, QuestionBody
from openvse.serving.service import Service

PAGE = Path(str(files("openvse.serving").joinpath("page")))
"""The folder of the page's files."""

_logger = logging.getLogger(__name__)

_ABOUT = (
    "Search the images of an index by sentences and by images, and ask about them. Errors are JSON with one key, "
    "`error`, whose text says what to do."
)


def create_app(service: Service) -> ASGIApp:
    """Return the application of a service, inside its layers."""
    app = interface_of(service)
    bounded = Bounds(Zipped(app), service.limits, service.metrics)
    return Replies(Guard(bounded, service.settings, service.metrics, app.state.sessions), service.metrics)


def interface_of(service: Service) -> FastAPI:
    """Return the routes and the page of a service, without access checks."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # requests are checked by it; two that make it at a time fail
        await service.start()
        assisting = asyncio.create_task(app.state.assistants.run())
        yield
        assisting.cancel()
        await asyncio.wait([assisting])
        await service.stop()

    app = FastAPI(
        title="openvse serve",
        version=__version__,
        description=_ABOUT,
        docs_url=None,  # these pages would load their scripts from elsewhere
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,  # a redirect would repeat whatever host a request names
        lifespan=life,
    )
    app.state.service, app.state.sessions = service, Sessions(service.limits.session_s)
    app.include_router(api)
    app.include_router(plain)
    page = StaticFiles(directory=PAGE)
    app.mount("/page", page, name="page")

    @app.get("/", include_in_schema=False)
    async def first(request: Request) -> Response:
        reply = await page.get_response("index.html", request.scope)
        reply.headers["cache-control"] = "no-cache"
        return reply

    for kind in (OpenVSEError, RequestValidationError, TimeoutError, Exception):
        app.add_exception_handler(kind, _reply_error)
    app.add_exception_handler(HTTPException, _reply_status)
    app.state.assistants = Assistants(service, partial(refusal, service))
    if find_spec("mcp") is not None:
        app.router.routes.append(
            Route("/mcp", app.state.assistants, methods=["POST"], include_in_schema=False)
        )
    return app


class Zipped:
    """Compresses replies, but not images and clips: they are compressed already, and ranges count their bytes."""

    def __init__(self, app: ASGIApp) -> None:
        self._plain, self._zipped = app, GZipMiddleware(app, minimum_size=1000, compresslevel=5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        is_image = scope["type"] == "http" and scope["path"].endswith(("/thumbnail", "/file"))
        await (self._plain if is_image else self._zipped)(scope, receive, send)


def refusal(service: Service, error: Exception) -> tuple[int, str]:
    """Return the status and the message of an error, which say what a user can do about it."""
    status, message = 422, service.served.readable(str(error))
    match error:
        case RequestValidationError() | ValidationError():
            first = error.errors()[0]
            place = ".".join(str(each) for each in first["loc"] if each not in ("query", "body", "path"))
            message = _fault(place, first, getattr(error, "body", None))
        case EngineError():  # the message says where the engine is
            service.engine_failed(error)
            status, message = 503, "the engine of this server does not answer: try again in a moment"
        case ModelError() | IndexFormatError() if "/" in str(error):  # the message may say where a model is
            _logger.warning("%s", error)
            status, message = 503, "the index or a model of this server cannot be read: its log says why"
        case MissingItemError():
            status = 404
        case BusyError() | IndexFormatError():
            status = 503
        case TimeoutError():
            status, message = 504, "there was no answer in time: try again, or ask for less"
        case OpenVSEError():
            pass
        case _:
            status, message = 500, "the server failed; its log says why"
    return status, _one_line(message)


async def _reply_error(request: Request, error: Exception) -> JSONResponse:
    """Answer with the message of an error."""
    status, message = refusal(request.app.state.service, error)
    wait = {503: "2", 504: "5"}.get(status)
    return JSONResponse({"error": message}, status, {"retry-after": wait} if wait else None)


def _fault(place: str, first: Mapping[str, Any], body: Any) -> str:
    """Return the message of pydantic's first error."""
    match first["type"]:
        case "json_invalid":
            before = str(body)[: first["loc"][-1]]
            line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
            return f"the body is no JSON: line {line}, column {column}: {first['ctx']['error']}"
        case "missing" if place:
            return f"{place} is missing: give it"
        case "extra_forbidden":
            return f"{place} is no field of this request{nearest(place.rpartition('.')[2], _FIELDS)}"
        case "missing" | "model_attributes_type" if not place:
            return "the body is no object of JSON: send one, with the header Content-Type: application/json"
    should = re.sub("^(Value error, |[A-Z][a-z]+ (?=should))", "", first["msg"])
    place = place or "the body"
    return f"{place} is {reprlib.repr(first['input'])}: it {should}"


_FIELDS = (*OneSearch.model_fields, *ManySearches.model_fields, *QuestionBody.model_fields)


async def _reply_status(request: Request, error: Exception) -> JSONResponse:
    """Answer with the message of a status, in more words than the framework's."""
    assert isinstance(error, HTTPException)
    match error.__cause__, error.status_code:
        case UnicodeDecodeError() as cause, _:
            detail = f"the body is no text in UTF-8: byte {cause.start + 1} is wrong"
        case RecursionError(), _:
            detail = "the body holds lists or objects inside each other, too many: nest fewer"
        case None, 404:
            detail = (
                f"there is no {request.url.path}: /openapi.json describes the interface, and / is the page"
            )
        case None, 405:
            detail = f"{request.url.path} takes no {request.method}: /openapi.json says what it takes"
        case _:
            detail = error.detail
    headers = {
        name: f"{said}, HEAD" if said == "GET" else said for name, said in (error.headers or {}).items()
    }
    return JSONResponse({"error": _one_line(detail)}, error.status_code, headers)


def _one_line(text: object) -> str:
    return " ".join(str(text).encode("utf-8", "backslashreplace").decode().split())
