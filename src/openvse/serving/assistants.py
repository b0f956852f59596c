"""Tools for assistants (Model Context Protocol). They read, and each is a request of the REST interface.

So names, limits and errors are the same as there. ``/mcp`` keeps no sessions, so clients that leave cost nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.types import ASGIApp, Receive, Scope, Send

from openvse import __version__
from openvse.errors import OpenVSEError, install

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_ABOUT = "Searches a collection of pictures and clips. Search first: the other tools take the key of a hit."

_TOOLS = {
    "search": (
        "/api/search",
        "Find pictures that fit a sentence (q) or resemble an item (like), under conditions.",
    ),
    "similar": ("/api/items/{key}/similar", "Find pictures that resemble an item."),
    "describe": (
        "/api/items/{key}",
        "Return what is known of an item: name, date, place, people, captions, text.",
    ),
    "show": ("/api/items/{key}/thumbnail", "Return a picture of an item, as an image."),
}
"""The tools: the request of each, and its purpose."""


class Assistants:
    """The tools of a server. ``app`` answers requests by ``schema``. A line of stdin has at most ``most`` bytes."""

    def __init__(self, app: ASGIApp, schema: Mapping[str, Any], most: int) -> None:
        self._app, self._schema, self._most = app, schema, most
        self._asked, self._ready = asyncio.Event(), asyncio.Event()
        self._manager: Any = None

    def server(self) -> Server[Any]:
        """Return a server of the protocol with these tools."""
        from mcp import types
        from mcp.server.lowlevel import Server

        async def listed(_: Any, __: Any) -> types.ListToolsResult:
            hints = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
            tools = [
                types.Tool(name=name, description=about, input_schema=self._fields(path), annotations=hints)
                for name, (path, about) in _TOOLS.items()
            ]
            return types.ListToolsResult(tools=tools)

        async def called(_: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
            status, kind, content = await self._answer(asked.name, asked.arguments or {})
            if kind.startswith("image/"):
                data = base64.b64encode(content).decode()
                return types.CallToolResult(
                    content=[types.ImageContent(type="image", data=data, mime_type=kind)]
                )
            reply, is_error = json.loads(content), status != 200
            shown = types.TextContent(type="text", text=reply["error"] if is_error else json.dumps(reply))
            structured = None if is_error else reply
            return types.CallToolResult(content=[shown], structured_content=structured, is_error=is_error)

        server: Server[Any] = Server(
            "openvse", version=__version__, on_list_tools=listed, on_call_tool=called
        )
        server.instructions = _ABOUT
        return server

    def _fields(self, path: str) -> dict[str, Any]:
        """Return the schema of the arguments of a tool, by the path of its request."""
        given = self._schema["paths"][path]["get"]["parameters"]
        fields = {
            each["name"]: {"description": each.get("description", ""), **each["schema"]} for each in given
        }
        needed = [each["name"] for each in given if each.get("required")]
        return {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}

    async def _answer(self, name: str, arguments: Mapping[str, Any]) -> tuple[int, str, bytes]:
        """Return status, type and content of the reply to the request of a tool."""
        import httpx2  # comes with mcp

        fields = {field: value for field, value in arguments.items() if value is not None}
        path, _ = _TOOLS.get(name, (f"/{quote(name[:80])}", ""))
        if "{key}" in path:  # quoted twice, as a slash of a key is none of the path
            path = path.replace("{key}", quote(quote(_written(fields.pop("key", "none")), safe="")))
        several = ((field, value if isinstance(value, list) else [value]) for field, value in fields.items())
        query = [(field, _written(each)) for field, values in several for each in values]
        inside = httpx2.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=inside, base_url="http://localhost") as client:
            reply = await client.get(f"{path}?{urlencode(query)}")
        return reply.status_code, reply.headers.get("content-type", ""), reply.content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to /mcp. Nothing of the protocol is loaded before the first one."""
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
        """Answer the messages of standard input, a line each, until it ends. A line that is too long is refused."""
        if find_spec("mcp") is None:
            raise OpenVSEError(f"--mcp needs the package mcp, which is not installed: {install('mcp')}")
        from mcp import types
        from mcp.server.stdio import stdio_server
        from mcp.shared.message import SessionMessage

        refusal = types.ErrorData(
            code=types.INVALID_REQUEST, message=f"more than {self._most:,} bytes: send less"
        )

        async def lines() -> AsyncIterator[str]:
            read = sys.stdin.buffer.readline
            while line := await asyncio.to_thread(read, self._most + 1):
                if len(line) <= self._most:
                    yield line.decode("utf-8", "replace")
                    continue
                while line and not line.endswith(b"\n"):  # what was read of it is dropped
                    line = await asyncio.to_thread(read, self._most)
                await sent.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=None, error=refusal)))

        server = self.server()
        async with stdio_server(stdin=lines()) as (received, sent):  # type: ignore[arg-type]
            await server.run(received, sent, server.create_initialization_options())


def _written(value: Any) -> str:
    """Return a value of an argument in the form of a query."""
    return value if isinstance(value, str) else json.dumps(value)
