"""The routes of the interface. OpenAPI shows their docstrings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from email.utils import formatdate
from functools import partial
from mimetypes import guess_type
from typing import IO, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, File, Path, Query, Request, Response, UploadFile
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import FileResponse, JSONResponse
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Receive, Scope, Send

from openvse.errors import DataError, nearest
from openvse.media.images import read_image
from openvse.media.names import BUILT_IN, format_of
from openvse.media.videos import ClipSource
from openvse.serving.layers import COOKIE, Sessions, is_bearer, is_token, session_in
from openvse.serving.schemas import (
    FOUND_EXAMPLE,
    JUDGED_EXAMPLE,
    OLD,
    TAUGHT_EXAMPLE,
    CaptionFields,
    Id,
    JudgementBody,
    Key,
    ManySearches,
    Name,
    NextFields,
    OneSearch,
    PagedQuery,
    PageFields,
    QuestionBody,
    QuestionText,
    SearchFields,
    Sentence,
    Session,
    asked_by,
)
from openvse.serving.service import Service, open_file

_SHOWN = ("video/mp4", "video/webm")

ERROR: dict[str, Any] = {"content": {"application/json": {"example": {"error": "one line that says what to do"}}}}
REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The token is missing or wrong.", **ERROR},
    404: {"description": "There is no such item.", **ERROR},
    422: {"description": "The request cannot be answered as it is.", **ERROR},
    503: {"description": "The server is busy: try again in a moment.", **ERROR},
    504: {"description": "There was no answer in time.", **ERROR},
}
UPLOAD_REFUSALS: dict[int | str, dict[str, Any]] = {
    **REFUSALS,
    400: {"description": "The body is no form.", **ERROR},
    413: {"description": "The body is too large.", **ERROR},
}


def _check_names(request: Request) -> None:
    """Raise DataError if a query parameter is unknown, or given twice."""
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = {each["name"]: each["schema"].get("type") for each in operation.get("parameters", ())}
    given = [name if name in known else OLD.get(name, name) for name, _ in request.query_params.multi_items()]
    for name, count in Counter(given).items():
        if name not in known:
            raise DataError(f"{name} is no field of this request{nearest(name, [*known])}")
        if count > 1 and known[name] != "array":
            raise DataError(f"{name} is given {count} times: give it once")


api = APIRouter(prefix="/api", responses=REFUSALS, dependencies=[Depends(_check_names)])
judging = APIRouter(prefix="/api", responses=REFUSALS, dependencies=[Depends(_check_names)])
teaching = APIRouter(prefix="/api", responses=REFUSALS, dependencies=[Depends(_check_names)])
"""The routes by which a server learns what fits, which is off unless asked for."""

plain = APIRouter()

ItemKey = Annotated[Key, Path()]
_UPLOADED = ", ".join(each.title for each in BUILT_IN if each.begins)
Image = Annotated[UploadFile, File(description=f"An image: {_UPLOADED}.")]


def _shown(example: object) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"application/json": {"example": example}}}}


class OpenedFile(FileResponse):
    """An open file, or the parts of it that a Range header asks for. It is closed at the end.

    Starlette opens a file by its name, and the file of that name could change after its place was checked. The name
    that it gets here belongs to the descriptor.
    """

    def __init__(self, file: IO[bytes], headers: Mapping[str, str], media_type: str) -> None:
        name, stats = f"/dev/fd/{file.fileno()}", os.fstat(file.fileno())
        super().__init__(name, headers=headers, media_type=media_type, stat_result=stats)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, and close it."""
        with self._file:
            method = "HEAD" if "is_head" in scope else scope["method"]
            await super().__call__({**scope, "method": method}, receive, send)


def _held(request: Request, headers: Mapping[str, str]) -> Response | None:
    """Return the reply 304 if a client has this state of a file already, by its tag or else its time."""
    now = Headers(headers)
    return NotModifiedResponse(now) if StaticFiles(check_dir=False).is_not_modified(now, request.headers) else None


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _asked(
    service: Service, fields: SearchFields, page: PageFields, image: ClipSource | None = None
) -> PagedQuery:
    """Return a query of a request, and the page of its hits."""
    if fields.image is not None:
        if image is not None:
            raise DataError("two images are given, one by its name: give one of them")
        image = await run_in_threadpool(read_image, service.query_image(fields.image))
    return await run_in_threadpool(asked_by, fields, page, service.served, image)


async def searched(
    service: Service, fields: SearchFields, page: PageFields, image: ClipSource | None = None
) -> dict[str, Any]:
    """Return the answer to a query of a request."""
    return (await service.search([await _asked(service, fields, page, image)], rerank=page.rerank))[0]


@api.get("/search", tags=["search"], responses=_shown(FOUND_EXAMPLE))
async def search(request: Request, asked: Annotated[OneSearch, Query()]) -> dict[str, Any]:
    """Find images that fit a sentence, resemble an item, or both, and do not fit the sentences to avoid."""
    return await searched(_service(request), asked, asked)


@api.post("/search", tags=["search"], responses=_shown({"results": [FOUND_EXAMPLE]}))
async def search_many(request: Request, asked: ManySearches) -> dict[str, Any]:
    """Answer several queries at once."""
    service = _service(request)
    queries = [await _asked(service, fields, asked) for fields in asked.queries]
    return {"results": await service.search(queries, rerank=asked.rerank)}


@api.post("/search/image", tags=["search"], responses={**UPLOAD_REFUSALS, **_shown(FOUND_EXAMPLE)})
async def search_image(request: Request, image: Image, asked: Annotated[OneSearch, Query()]) -> dict[str, Any]:
    """Find images that resemble an uploaded one, and fit a sentence if there is one."""
    service = _service(request)
    async with service.uploaded(image) as decoded:
        return await searched(service, asked, asked, decoded)


@api.post(
    "/images", tags=["search"], responses={**UPLOAD_REFUSALS, **_shown({"image": "0123456789abcdef0123456789abcdef"})}
)
async def keep_image(request: Request, image: Image) -> dict[str, str]:
    """Store an image for searches by the name that is returned, until the server ends."""
    return {"image": await _service(request).keep(image)}


@api.get(
    "/images/{name}",
    tags=["search"],
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}, "image/png": {}}}},
)
async def kept_image(request: Request, name: Annotated[Name, Path()]) -> Response:
    """Return a stored image, as a JPEG or PNG of at most 800 pixels."""
    content = _service(request).query_image(name)
    kind = "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"
    return Response(content, media_type=kind, headers={"cache-control": "private, max-age=86400"})


@api.get("/items/{key}/similar", tags=["items"], responses=_shown(FOUND_EXAMPLE))
async def similar(request: Request, key: ItemKey, page: Annotated[PageFields, Query()]) -> dict[str, Any]:
    """Find the images that resemble an item."""
    return await searched(_service(request), SearchFields(like=str(key)), page)


@api.get("/info", tags=["server"])
async def info(request: Request) -> dict[str, Any]:
    """Describe the index, the models, the fields for conditions, and sentences to try."""
    return _service(request).describe()


@api.get("/items", tags=["items"], responses=_shown({"key": 17, "id": "holiday/0001.jpg"}))
def find_item(request: Request, id: Annotated[Id, Query()]) -> dict[str, Any]:
    """Return the number of an item by its path below the indexed folder."""
    return {"key": _service(request).served.key(id), "id": id}


@api.get("/items/{key}", tags=["items"])
def item(request: Request, key: ItemKey) -> dict[str, Any]:
    """Return name, time, size, metadata and captions of an item."""
    return _service(request).facts(key)


@api.get(
    "/items/{key}/thumbnail", tags=["items"], response_class=Response, responses={200: {"content": {"image/webp": {}}}}
)
async def thumbnail(
    request: Request,
    key: ItemKey,
    large: bool = False,
    page: Annotated[int, Query(ge=1, le=5000)] = 1,
    v: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Return a thumbnail of an item or of a page of a TIFF, or with large, one of at most 1,280 pixels."""
    service = _service(request)
    version = await run_in_threadpool(service.served.version, key)
    caching = "private, max-age=31536000, immutable" if v else "private, no-cache"
    headers = {"etag": f'"{key}-{version}-{int(large)}-{page}"', "cache-control": caching}
    if (held := _held(request, headers)) is not None:
        return held
    return Response(await service.thumbnail(key, large=large, page=page), media_type="image/webp", headers=headers)


@api.get(
    "/items/{key}/file",
    tags=["items"],
    response_class=Response,
    responses={
        200: {"content": {"image/*": {}, "video/*": {}}},
        206: {"description": "A part of the file.", "content": {"image/*": {}, "video/*": {}}},
        304: {"description": "The client has the file, as its If-None-Match says."},
        400: {"description": "The Range header cannot be understood."},
        416: {"description": "The file has no such part."},
    },
)
def original(request: Request, key: ItemKey, v: Annotated[str, Query(max_length=64)] = "") -> Response:
    """Return the file of an item as it is, or the part of it that a Range header asks for."""
    path = _service(request).served.file(key)
    known, guessed = format_of(path.name), guess_type(path.name)[0]
    kind = known.media_type if known else guessed if guessed in _SHOWN else ""
    name = quote(path.name.encode("utf-8", "replace"))
    headers = {
        "content-security-policy": "default-src 'none'; img-src 'self'; media-src 'self'; sandbox",
        "content-disposition": f"{'inline' if kind else 'attachment'}; filename*=UTF-8''{name}",
        "cache-control": "private, no-cache",
    }
    file = open_file(path)
    stats = os.fstat(file.fileno())
    headers["etag"] = f'"{stats.st_mtime_ns:x}-{stats.st_size:x}"'
    headers["last-modified"] = formatdate(stats.st_mtime, usegmt=True)
    if (held := _held(request, headers)) is not None:
        file.close()
        return held
    return OpenedFile(file, headers, kind or "application/octet-stream")


@api.get("/items/{key}/looked", tags=["explanations"])
async def looked(request: Request, key: ItemKey, q: Annotated[QuestionText, Query()]) -> dict[str, Any]:
    """Return what each part of an image, and each word of a sentence, adds to their score."""
    service = _service(request)
    return await service.score_map(await run_in_threadpool(service.served.file, key), q)


@api.post("/items/{key}/ask", tags=["explanations"])
async def ask_item(request: Request, key: ItemKey, asked: QuestionBody) -> dict[str, Any]:
    """Answer a question about an item, and show where the model looked."""
    service = _service(request)
    return await service.answer(await run_in_threadpool(service.served.file, key), asked.question)


@api.post("/ask", tags=["explanations"], responses=UPLOAD_REFUSALS)
async def ask_upload(request: Request, image: Image, question: Annotated[QuestionText, Query()]) -> dict[str, Any]:
    """Answer a question about an uploaded image."""
    service = _service(request)
    async with service.uploaded(image) as decoded:
        return await service.answer(decoded, question)


@teaching.get("/teach", tags=["teaching"], responses=_shown(TAUGHT_EXAMPLE))
async def next_to_teach(request: Request, asked: Annotated[NextFields, Query()]) -> dict[str, Any]:
    """Return how much was taught, and the items whose captions are expected to help most."""
    service = _service(request)
    return await service.teach(partial(service.taught, passed_keys=asked.passed))


@teaching.post("/items/{key}/captions", tags=["teaching"], responses=_shown({"captions": ["a dog on a beach"]}))
async def teach_item(request: Request, key: ItemKey, asked: CaptionFields) -> dict[str, Any]:
    """Save captions of an item beside its folder, and learn from them before the reply. Those that it has stay."""
    return await taught(_service(request), key, asked)


@teaching.post("/teach/undo", tags=["teaching"], responses=_shown({"key": 17, "id": "holiday/0001.jpg"}))
async def undo_teaching(request: Request) -> dict[str, Any]:
    """Remove the captions that were saved last, and learn without them. The key is null if there are none."""
    service = _service(request)
    item = await service.teach(lambda teacher: teacher.undo())
    return {"key": None if item is None else service.served.key(item), "id": item}


@teaching.post("/teach/train", tags=["teaching"], responses=_shown({"is_training": True}))
async def train_taught(request: Request) -> dict[str, Any]:
    """Train a model from the captions in the background. It is used from its end on, if it is better on validation."""
    await _service(request).teach(lambda teacher: teacher.train())
    return {"is_training": True}


async def taught(service: Service, key: int, asked: CaptionFields) -> dict[str, Any]:
    """Save captions of an item, and return all that it has."""
    item = await run_in_threadpool(service.served.id_of, key)
    await service.teach(lambda teacher: teacher.teach(item, asked.captions))
    return {"captions": (await run_in_threadpool(service.facts, key))["captions"]}


@judging.get("/judgements", tags=["judgements"], responses=_shown(JUDGED_EXAMPLE))
async def judged(request: Request, text: Annotated[Sentence, Query(min_length=1)]) -> dict[str, Any]:
    """Return the judged items of a sentence, how many judgements move probabilities, and what 0.5 has become."""
    return await _service(request).judged(text)


@judging.post("/judgements", tags=["judgements"], responses=_shown(JUDGED_EXAMPLE))
async def keep_judgement(request: Request, said: JudgementBody) -> dict[str, Any]:
    """Keep that an item fits a sentence, which then finds it first, or does not, which leaves it out."""
    return await _service(request).judged(said.text, said.key, said.fits)


@plain.get("/health", tags=["server"])
async def health() -> dict[str, str]:
    """Answer as long as the process is alive."""
    return {"status": "alive"}


@plain.get("/ready", tags=["server"], responses={503: {"description": "The server is starting or stopping."}})
async def ready(request: Request) -> JSONResponse:
    """Return whether the server answers questions."""
    is_ready = _service(request).is_ready
    return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)


@plain.get("/metrics", tags=["server"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Return counters in the text format of Prometheus."""
    return Response(_service(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@plain.post("/session", tags=["server"], responses={401: {"description": "The token is wrong.", **ERROR}})
async def session(request: Request, asked: Session) -> Response:
    """Exchange the token for a cookie, which the page needs for its images."""
    if not (token := _service(request).settings.token):
        return JSONResponse({"status": "no token is needed"})
    if not is_token(asked.token, token):
        return JSONResponse({"error": "the token is wrong"}, 401)
    sessions: Sessions = request.app.state.sessions
    reply = JSONResponse({"status": "welcome"})
    reply.set_cookie(COOKIE, sessions.begin(), httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return reply


@plain.delete("/session", tags=["server"], responses={401: {"description": "There is no session to end.", **ERROR}})
async def end_session(request: Request) -> Response:
    """End the session of the cookie, or with the token as ``Authorization: Bearer TOKEN``, end all sessions."""
    sessions: Sessions = request.app.state.sessions
    if is_bearer(request.headers, _service(request).settings.token):
        sessions.end_all()
    elif sessions.holds(name := session_in(request.headers)):
        sessions.end(name)
    else:
        return JSONResponse({"error": "there is no session to end: send its cookie, or the token"}, 401)
    reply = JSONResponse({"status": "ended"})
    reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return reply
