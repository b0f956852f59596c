"""Tools for assistants (Model Context Protocol): they read, and each is a request of the REST interface.

So names, limits and errors are those of that interface. ``/mcp`` keeps no sessions, so clients that leave cost nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openvse import __version__
from openvse.errors import MissingItemError, OpenVSEError, nearest

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

INSTALL_MCP = "pip install 'openvse[mcp]'"

_ABOUT = "Searches a collection of pictures and clips. Search first: the other tools take the key of a hit."


@dataclass(frozen=True)
class _Tool:
    """A tool: the path of its request, what it does, and the fields of the request that assistants need not see."""

    path: str
    about: str
    hidden: frozenset[str] = frozenset()


_TOOLS = {
    "search": _Tool(
        "/api/search",
        "Find pictures that fit a sentence (q), resemble an item (like), or both, under conditions (where).",
        frozenset({"image"}),
    ),
    "similar": _Tool("/api/items/{key}/similar", "Find pictures that resemble an item."),
    "describe": _Tool(
        "/api/items/{key}", "Return what is known of an item: name, date, place, people, captions, text."
    ),
    "show": _Tool(
        "/api/items/{key}/thumbnail", "Return a picture of an item, as an image.", frozenset({"v"})
    ),
}


class Assistants:
    """The tools of a server; ``app`` answers the requests of its interface, ``schema`` is its description (OpenAPI)."""

    def __init__(self, app: ASGIApp, schema: Mapping[str, Any]) -> None:
        self._app, self._schema = app, schema
        self._asked, self._ready = asyncio.Event(), asyncio.Event()
        self._manager: Any = None

    def server(self) -> Server[Any]:
        """Return a server of the protocol with these tools."""
        from mcp import types
        from mcp.server.lowlevel import Server

        async def listed(_: Any, __: Any) -> types.ListToolsResult:
            hints = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
            return types.ListToolsResult(
                tools=[
                    types.Tool(
                        name=name, description=tool.about, input_schema=self._fields(tool), annotations=hints
                    )
                    for name, tool in _TOOLS.items()
                ]
            )

        async def called(_: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
            try:
                status, kind, content = await self._answer(asked.name, asked.arguments or {})
            except OpenVSEError as error:
                status, kind, content = 404, "", json.dumps({"error": str(error)}).encode()
            if status == 200 and kind.startswith("image/"):
                image = types.ImageContent(
                    type="image", data=base64.b64encode(content).decode(), mime_type=kind
                )
                return types.CallToolResult(content=[image])
            reply = json.loads(content)
            text = json.dumps(reply) if status == 200 else reply["error"]
            shown = types.TextContent(type="text", text=text)
            structured = reply if status == 200 else None
            return types.CallToolResult(
                content=[shown], structured_content=structured, is_error=status != 200
            )

        return Server(
            "openvse", version=__version__, instructions=_ABOUT, on_list_tools=listed, on_call_tool=called
        )

    def _fields(self, tool: _Tool) -> dict[str, Any]:
        """Return the schema of the arguments of a tool."""
        given = [
            each
            for each in self._schema["paths"][tool.path]["get"]["parameters"]
            if each["name"] not in tool.hidden
        ]
        fields = {
            each["name"]: {"description": each.get("description", ""), **each["schema"]} for each in given
        }
        needed = [each["name"] for each in given if each.get("required")]
        return {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}

    async def _answer(self, name: str, arguments: Mapping[str, Any]) -> tuple[int, str, bytes]:
        """Return status, type and content of the reply to the request of a tool."""
        if (tool := _TOOLS.get(name)) is None:
            raise MissingItemError(f"there is no tool {name[:80]!r}{nearest(name, [*_TOOLS])}")
        fields = {field: value for field, value in arguments.items() if value is not None}
        path = tool.path
        if "{key}" in path:
            path = path.replace("{key}", quote(_written(fields.pop("key", "none")), safe=""))
        query = [
            (field, _written(each))
            for field, value in fields.items()
            for each in (value if isinstance(value, list) else [value])
        ]
        return await _requested(self._app, path, urlencode(query))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to /mcp; nothing of the protocol is loaded before the first one."""
        if scope["method"] != "POST":
            await _refuse(405, "/mcp takes POST alone, as it keeps no sessions")(scope, receive, send)
        elif find_spec("mcp") is None:
            await _refuse(501, f"this server has no tools for assistants: {INSTALL_MCP}")(
                scope, receive, send
            )
        else:
            self._asked.set()
            await self._ready.wait()
            await self._manager.handle_request(scope, receive, send)

    async def run(self) -> None:
        """Answer requests to /mcp until the task is cancelled."""
        await self._asked.wait()
        module = await asyncio.to_thread(import_module, "mcp.server.streamable_http_manager")
        manager = module.StreamableHTTPSessionManager(self.server(), json_response=True, stateless=True)
        async with manager.run():
            self._manager = manager
            self._ready.set()
            await asyncio.Event().wait()

    async def run_stdio(self) -> None:
        """Answer the messages of standard input, a line each, until it ends."""
        if find_spec("mcp") is None:
            raise OpenVSEError(f"--mcp needs the package mcp, which is not installed: {INSTALL_MCP}")
        from mcp.server.stdio import stdio_server

        server = self.server()
        async with stdio_server() as (received, sent):
            await server.run(received, sent, server.create_initialization_options())


def _refuse(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)


def _written(value: Any) -> str:
    """Return a value of an argument as a query has it."""
    return value if isinstance(value, str) else json.dumps(value)


async def _requested(app: ASGIApp, path: str, query: str) -> tuple[int, str, bytes]:
    """Return status, type and content of the reply to a GET."""
    status, kind, content = 500, "", bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, kind
        if message["type"] == "http.response.start":
            status, kind = message["status"], Headers(raw=message["headers"]).get("content-type", "")
        content.extend(message.get("body", b""))

    where = {"path": path, "raw_path": path.encode(), "query_string": query.encode(), "headers": []}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "root_path": "",
        **where,
    }
    try:
        await app(scope, receive, send)
    except Exception:
        if not content:  # otherwise it was answered, and is raised for the log of a server
            raise
    return status, kind, bytes(content)
