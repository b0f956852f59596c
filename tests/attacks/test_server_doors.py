"""Who is let in: tokens, sessions, names of the server, other web sites, and paths that lead out."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from openvse.errors import OpenVSEError
from openvse.model.two_tower import TwoTower
from openvse.serving.layers import Sessions
from openvse.serving.service import Service
from openvse.serving.settings import Limits, Settings
from tests.attacks.conftest import KNOWN, TOKEN, send
from tests.serving.conftest import Place, client_of

CLOSED = ["/metrics", "/openapi.json", "/docs", "/redoc", "/api", "/api/info", "/api/search?q=grass"]
CLOSED += ["/api/items/1/file", "//api/info", "/API/info", "/%61pi/info", "/page/../api/info", "/./api/info"]
CLOSED += [f"/api/info?token={quote(TOKEN)}", f"/api/info?authorization=Bearer%20{quote(TOKEN)}"]


def test_nothing_is_open_without_the_token(locked: TestClient) -> None:
    opened = {}
    for target in CLOSED:
        reply = send(locked, "GET", target)
        refused = reply.status == 401 or (target.startswith("/page/") and reply.status == 404)
        if not refused or b"items" in reply.body:
            opened[target] = reply
    assert opened == {}


CREDENTIALS = [
    "",
    "Bearer",
    "Bearer ",
    "Basic YTpi",
    f"Basic {TOKEN}",
    "Bearer caf\xe9",
    f"Bearer {TOKEN}x",
    TOKEN,
    "Bearer \0",
]


def test_odd_credentials_are_refused(locked: TestClient) -> None:
    statuses = {each: send(locked, "GET", "/api/info", {"authorization": each}).status for each in CREDENTIALS}
    assert statuses == dict.fromkeys(CREDENTIALS, 401)


COOKIES = [TOKEN, "", "x" * 4000, "\xe9", "a=b; openvse_session", "../../etc/passwd"]


def test_the_token_is_no_cookie_and_other_cookies_are_refused(locked: TestClient) -> None:
    statuses = {
        each: send(locked, "GET", "/api/info", {"cookie": f"openvse_session={each}"}).status for each in COOKIES
    }
    assert statuses == dict.fromkeys(COOKIES, 401)


def session_of(client: TestClient) -> tuple[str, str]:
    """Enter with the token, and return the session and the whole header of its cookie."""
    reply = client.post("/session", json={"token": TOKEN})
    told = reply.headers["set-cookie"]
    return told.partition("=")[2].partition(";")[0], told.lower()


def test_a_session_is_no_token_and_scripts_and_other_sites_do_not_have_it(locked: TestClient) -> None:
    assert locked.post("/session", json={"token": "wrong"}).status_code == 401
    session, told = session_of(locked)
    assert "httponly" in told and "samesite=strict" in told and "secure" not in told
    assert send(locked, "GET", "/api/info", {"authorization": f"Bearer {session}"}).status == 401
    assert send(locked, "GET", "/api/info", {"cookie": f"openvse_session={session}"}).status == 200
    other, _ = session_of(locked)
    assert other != session


def test_behind_tls_the_cookie_is_sent_through_tls_alone(place: Place, model: TwoTower) -> None:
    with client_of(Service(place.index, model, Settings(token=TOKEN))) as client:
        client.base_url = "https://127.0.0.1"
        assert "secure" in session_of(client)[1]


def test_a_session_ends_by_its_cookie_and_all_end_by_the_token(locked: TestClient) -> None:
    first, second, third = ({"cookie": f"openvse_session={session_of(locked)[0]}"} for _ in range(3))
    assert send(locked, "DELETE", "/session", first).status == 200
    assert [send(locked, "GET", "/api/info", each).status for each in (first, second, third)] == [401, 200, 200]
    assert send(locked, "DELETE", "/session", first).status == 401
    assert send(locked, "DELETE", "/session", {"authorization": "Bearer wrong"}).status == 401
    assert send(locked, "DELETE", "/session", KNOWN).status == 200
    assert [send(locked, "GET", "/api/info", each).status for each in (second, third)] == [401, 401]


def test_a_session_ends_in_time_with_the_server_and_when_there_are_many(place: Place, model: TwoTower) -> None:
    limits = Limits(session_s=0.05)
    with client_of(Service(place.index, model, Settings(token=TOKEN, limits=limits))) as client:
        cookie = {"cookie": f"openvse_session={session_of(client)[0]}"}
        time.sleep(0.1)
        assert send(client, "GET", "/api/info", cookie).status == 401
    sessions = Sessions(60.0)
    assert not sessions.holds("") and not Sessions(60.0).holds(sessions.begin())
    oldest = sessions.begin()
    names = [sessions.begin() for _ in range(10_000)]
    assert not sessions.holds(oldest) and sessions.holds(names[0]) and sessions.holds(names[-1])


@pytest.mark.parametrize(
    "settings",
    [{"host": "0.0.0.0"}, {"host": "::"}, {"host": "192.168.1.5"}, {"host": "photos.example"}, {"token": "short"}],
)
def test_what_others_reach_needs_a_token_of_some_length(settings: dict[str, str]) -> None:
    with pytest.raises(OpenVSEError):
        Settings(**settings)  # type: ignore[arg-type]
    assert Settings(host="0.0.0.0", token=TOKEN).token and Settings(host="::", allow_public=True)
    assert Settings(host="127.1.2.3").is_local and Settings(host="::1").is_local


HOSTS = ["", "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"]
HOSTS += ["127.0.0.2", "[::2]:8000", "localhost:evil", "localhost@evil.example"]


def test_a_name_that_was_made_to_point_here_is_refused(free: TestClient) -> None:
    statuses = {each: send(free, "GET", "/api/info", {"host": each}).status for each in HOSTS}
    assert statuses == dict.fromkeys(HOSTS, 421)


SITES = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1"},
    {"origin": "https://evil.example"},
    {"origin": "http://127.0.0.1.evil.example"},
    {"origin": "http://127.0.0.1:9000", "host": "127.0.0.1:8000"},
    {"origin": "null"},
    {"origin": ""},
]


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/info"), ("POST", "/api/images"), ("POST", "/session")])
def test_pages_of_other_web_sites_may_not_ask(free: TestClient, method: str, path: str) -> None:
    statuses = [(headers, send(free, method, path, headers).status) for headers in SITES]
    assert [each for each in statuses if each[1] != 403] == []


OWN = [
    {"sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "same-origin", "origin": "null"},  # as some browsers say where no referrer is sent
    {"sec-fetch-site": "none"},
    {"origin": "http://127.0.0.1"},
    {"origin": "http://127.0.0.1:8000", "host": "127.0.0.1:8000"},
    {"origin": "http://[::1]:8000", "host": "[::1]:8000"},
    {"origin": "https://LOCALHOST:8443", "host": "localhost"},  # a proxy may omit the port
    {},
]


def test_the_page_itself_and_programs_may_ask(free: TestClient) -> None:
    statuses = [(headers, send(free, "GET", "/api/info", headers).status) for headers in OWN]
    assert [each for each in statuses if each[1] != 200] == []


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {}])
def test_no_other_site_may_read_a_reply(free: TestClient, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/"), ("GET", "/api/info"), ("OPTIONS", "/api/search"), ("GET", "/health")):
        reply = send(free, method, path, {**headers, "access-control-request-method": "POST"})
        assert not [name for name in reply.headers or {} if name.startswith("access-control")]


NEARLY_PATHS = ["/page", "/api/info/", "/session/", "/api//info", "//evil.example/page"]


def test_no_reply_leads_to_the_host_that_a_request_names(locked: TestClient) -> None:
    for path in NEARLY_PATHS:
        reply = send(locked, "GET", path, {**KNOWN, "host": "evil.example"})
        assert reply.status in (200, 404, 405) and "location" not in (reply.headers or {}), path
        assert path.startswith("//") or b"evil" not in reply.body, path


def test_slashes_that_a_client_adds_open_no_door(locked: TestClient) -> None:
    """A path means the same with a slash at its end or twice, and needs the same token."""
    assert [send(locked, "GET", path, KNOWN).status for path in ("/api/info/", "/api//info", "//health/")] == [200] * 3
    closed = ("/api/info/", "//api/info", "/page/../api/info", "//mcp/")
    assert [send(locked, "GET", path).status for path in closed] == [401, 401, 404, 401]


PAGE_PATHS = ["../app.py", "%2e%2e/app.py", "..%2fapp.py", "..%5capp.py", "/etc/passwd", "%2fetc/passwd"]
PAGE_PATHS += ["app.js%00.css", "....//app.py", "../" * 12 + "etc/passwd", "%2e%2e/%2e%2e/errors.py"]


def test_no_path_of_the_page_leads_out(free: TestClient) -> None:
    replies = {path: send(free, "GET", f"/page/{path}") for path in PAGE_PATHS}
    assert {
        path: reply
        for path, reply in replies.items()
        if reply.status not in (400, 404) or b"import" in reply.body or b"root:" in reply.body
    } == {}


ITEM_NAMES = [
    "/api/items/../../etc/passwd/file",
    "/api/items/%2e%2e%2f1/file",
    "/api/items/-1/file",
    "/api/items/99999999999999999999/file",
    "/api/items/1e3/file",
    "/api/items?id=../../etc/passwd",
    "/api/items?id=/etc/passwd",
    "/api/items?id=001.jpg%00",
    "/api/search?like_id=../001.jpg",
    "/api/images/..%2f..%2fetc%2fpasswd",
    "/api/images/" + "g" * 32,
    "/api/search?image=..%2f..%2fetc%2fpasswd",
    "/api/search?image=file:///etc/passwd",
    "/api/search?image=http://127.0.0.1:1/",
]


def test_no_name_of_an_item_or_image_leads_out(free: TestClient) -> None:
    replies = {target: send(free, "GET", target) for target in ITEM_NAMES}
    assert {
        target: reply for target, reply in replies.items() if reply.status not in (404, 422) or b"root:" in reply.body
    } == {}


METHODS = ["TRACE", "CONNECT", "PUT", "PATCH", "OPTIONS", "PROPFIND", "G\u00cbT"]


def test_other_methods_do_nothing(free: TestClient) -> None:
    replies = {method: send(free, method, "/api/info", {"cookie": "secret=1"}) for method in METHODS}
    assert {method: reply for method, reply in replies.items() if reply.status != 405 or b"secret" in reply.body} == {}


@pytest.mark.parametrize("version", ["x%0d%0aset-cookie:%20a=b", "%0a%0a<script>", "x" * 64])
def test_no_header_comes_from_a_query(free: TestClient, version: str) -> None:
    for end in ("file", "thumbnail"):
        reply = send(free, "GET", f"/api/items/1/{end}?v={version}")
        assert "set-cookie" not in (reply.headers or {})
        assert not [each for each in (reply.headers or {}).values() if "\n" in each or "\r" in each]
