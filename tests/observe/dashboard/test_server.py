"""The page by HTTP, attacked: what comes without a session, from another site, or broken, gets no data."""

from __future__ import annotations

import asyncio
import json
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aiodist.observe.dashboard import server as dashboard
from aiodist.observe.dashboard.door import Door
from aiodist.observe.metrics import prometheus
from tests.observe.dashboard.served import METRICS, served
from tests.observe.made import a_job, a_record
from tests.observe.made import a_rank as at_twenty
from tests.observe.shown import apply
from tests.ports import needs_ipv6

a_rank = partial(at_twenty, now=10.0, began=0.0)

NASTY = "\x1b]0;owned\x07<img src=x onerror=alert(1)>\u202e\r\n"


async def test_the_page_itself_is_for_all_and_holds_no_data() -> None:
    async with served() as page:
        status, text = await page.get("/")
        assert status == 200 and "<title>aiodist" in text
        assert "train.py" not in text and "secret-" not in text
        async with page.http.get(f"{page.base}/") as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["Server"] == "aiodist"
            assert "Access-Control-Allow-Origin" not in answer.headers


async def test_the_policy_is_kept_by_the_page() -> None:
    for name, file in dashboard.static_files().items():
        text = file.body.decode()
        assert "innerHTML" not in text and "eval(" not in text and "document.write" not in text, name
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text, (
            name
        )
        if name.endswith(".html"):
            assert " style=" not in text and " onclick=" not in text and "<style" not in text


@pytest.mark.parametrize(
    "name", ["events", "timeline?ranks=0", "matrix", "logs?of=0&stream=stdout", "metrics"]
)
async def test_no_data_without_a_session(name: str) -> None:
    async with served() as page:
        for path in ("/s//", "/s/secret-0/", "/s/x/"):
            status, text = await page.get(path + name, Cookie="aiodist=secret-0")
            assert status in (401, 404) and "rank" not in text
        await page.sign_in()
        assert (await page.get(page.path + name))[0] == 401  # the path alone
        assert (await page.get(page.path + name, Cookie=f"aiodist={page.path[3:-1]}"))[0] == 401
        assert (await page.get(f"/s/x/{name}", **page.headers))[0] == 401  # the cookie alone


async def test_over_ipv6() -> None:
    needs_ipv6()
    async with served(host="::1") as page:
        assert page.base.startswith("http://[::1]:")
        assert (await page.sign_in()).status == 200
        status, text = await page.data("metrics")
        assert status == 200 and "aiodist_" in text


async def test_the_token_works_once_and_for_the_page_only() -> None:
    async with served() as page:
        assert (await page.sign_in("wrong")).status == 401
        assert (await page.sign_in("")).status == 401
        assert (await page.sign_in(Origin="http://evil.example")).status == 403
        assert (await page.sign_in(Sec_Fetch_Site="cross-site")).status == 403
        assert page.signed_in == 0
        answer = await page.sign_in()
        assert answer.status == 200 and page.signed_in == 1
        cookie = answer.cookies["aiodist"]
        assert cookie["httponly"] and cookie["samesite"] == "Strict" and cookie["path"] == page.path
        assert (await page.sign_in()).status == 401
        assert (await page.data("matrix"))[0] == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"token": []}', b'"secret-0"', b"[" * 1000, b"\xff", b"token=secret-0"],
)
async def test_what_is_no_token_is_refused(body: bytes) -> None:
    async with served() as page:
        headers = {"Origin": page.base, "Content-Type": "application/json"}
        async with page.http.post(f"{page.base}/session", data=body, headers=headers) as answer:
            assert answer.status in (400, 401)
        for missing in headers:
            rest = {name: value for name, value in headers.items() if name != missing}
            async with page.http.post(
                f"{page.base}/session", data=b'{"token": "secret-0"}', headers=rest
            ) as answer:
                assert answer.status == 403  # a form of another site could send that
        assert (await page.sign_in()).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_session_does_not_help_another_site(headers: dict[str, str]) -> None:
    async with served() as page:
        await page.sign_in()
        assert (await page.data("matrix"))[0] == 200
        status, text = await page.data("matrix", **headers)
        assert status == 403 and "implied" not in text


@pytest.mark.parametrize(
    "head",
    [
        "GET {path} HTTP/1.1\r\nHost: evil.example:{port}",
        "GET http://127.0.0.1:{port}{path} HTTP/1.1\r\nHost: evil.example:{port}",
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example:{port}",
        "GET {path} HTTP/1.1\r\nHost: evil.example:{port}\r\nHost: 127.0.0.1:{port}",
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n evil.example",
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}, evil.example",
        "GET {path} HTTP/1.1\r\nHost : 127.0.0.1:{port}",
        "GET {path} HTTP/1.1\r\nX-Forwarded-Host: 127.0.0.1:{port}\r\nHost: evil.example",
        "GET {path} HTTP/1.1\r\nForwarded: host=127.0.0.1\r\nHost: evil.example",
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1.evil.example:{port}",
        "GET {path} HTTP/1.1\r\nHost: 2130706433.evil.example",
        "GET {path} HTTP/1.0",
    ],
)
async def test_a_name_that_was_made_to_lead_here_gets_nothing(head: str) -> None:
    """DNS rebinding, and what may confuse who looks at Host: even with a session that it cannot have."""
    async with served() as page:
        await page.sign_in()
        for path in (f"{page.path}matrix", f"{page.path}events", f"{page.path}logs?of=0&stream=stdout", "/"):
            request = head.format(path=path, port=page.port)
            more = f"Cookie: aiodist={page.cookie}\r\nConnection: close\r\n\r\n"
            answer = await page.raw(f"{request}\r\n{more}".encode())
            assert answer.split(b" ", 2)[1] in (b"400", b"403"), (path, answer[:200])
            assert b"train.py" not in answer and b"implied" not in answer and b"<title>" not in answer


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "HEAD", "TRACE", "POST"])
async def test_only_reading(method: str) -> None:
    async with served() as page:
        await page.sign_in()
        async with page.http.request(method, f"{page.base}{page.path}matrix", headers=page.headers) as answer:
            assert answer.status == 405
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/%2e%2e/__init__.py",
        "/static/....//server.py",
        "/static//etc/passwd",
        "/static/%00",
        "/etc/passwd",
    ],
)
async def test_no_path_leads_out(path: str) -> None:
    async with served() as page:
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        answer = await page.raw(request.encode())
        assert answer.split(b" ", 2)[1] in (b"404", b"400")
        assert b"import" not in answer and b"root:" not in answer


async def test_large_heads_and_bodies_are_refused() -> None:
    async with served() as page:
        assert (await page.get("/", X="y" * 20_000))[0] == 400
        assert (await page.get("/?" + "y" * 20_000))[0] in (400, 414)
        headers = {"Origin": page.base, "Content-Type": "application/json"}
        async with page.http.post(f"{page.base}/session", data=b" " * 5000, headers=headers) as answer:
            assert answer.status == 413
        answered = await page.raw(b"\x16\x03\x01\x02\x00nonsense\r\n\r\n")
        assert b"400" in answered.split(b"\r\n")[0]


async def test_who_says_nothing_is_sent_away() -> None:
    """Slowloris: heads that never end, in masses; a browser is served all the while."""
    async with served(partial(Door, most=4, patience=60.0)) as page:
        await page.sign_in()
        slow = [await asyncio.open_connection("127.0.0.1", page.port) for _ in range(12)]
        for _, writer in slow:
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        for reader, _ in slow[:8]:  # the oldest had to go
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        assert (await page.data("matrix"))[0] == 200
        for _, writer in slow:
            writer.close()


async def test_who_never_signs_in_is_closed_after_a_while() -> None:
    async with served(partial(Door, patience=0.05)) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await reader.read(15)).startswith(b"HTTP/1.1 200")
        with pytest.raises(ConnectionError):
            while await reader.read(1 << 16):
                pass
            raise ConnectionError
        writer.close()
        answered = await page.sign_in()
        assert answered.status == 200


async def test_streams_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "MOST_STREAMS", 2)
    async with served() as page:
        await page.sign_in()
        opened = [
            await page.http.get(f"{page.base}{page.path}events", headers=page.headers) for _ in range(2)
        ]
        assert page.server.streams == 2
        assert (await page.data("events"))[0] == 503
        for answer in opened:
            answer.close()
        while page.server.streams:  # what is written to them fails
            await page.feed.step()
            await asyncio.sleep(0)
        opened[0] = await page.http.get(f"{page.base}{page.path}events", headers=page.headers)
        assert opened[0].status == 200
        opened[0].close()


@pytest.mark.slow("megabytes, until the kernel takes no more")
async def test_a_page_that_takes_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "_STUCK", 0.05)
    async with served() as page:
        await page.sign_in()
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port, limit=1024)
        head = f"GET {page.path}events HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: aiodist={page.cookie}\r\n\r\n"
        writer.write(head.encode())
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        assert page.server.streams == 1
        ranks = [a_rank(rank) for rank in range(2000)]
        for step in range(100):  # some MB lie in the kernel's buffers
            page.job = a_job(*ranks) if step % 2 else a_job(a_rank(0))
            await page.feed.step()
            await asyncio.sleep(0.06 if step > 10 else 0)
            if not page.server.streams:
                break
        assert page.server.streams == 0
        writer.close()


async def read_event(reader: Any) -> tuple[str, Any]:
    kind, data = (await reader.readline()).decode(), (await reader.readline()).decode()
    assert await reader.readline() == b"\n"
    return kind.removeprefix("event: ").strip(), json.loads(data.removeprefix("data: "))


async def test_events_tell_all_and_then_what_has_changed() -> None:
    async with served() as page:
        await page.sign_in()
        async with page.http.get(f"{page.base}{page.path}events", headers=page.headers) as answer:
            assert answer.content_type == "text/event-stream"
            kind, shown = await read_event(answer.content)
            assert kind == "whole" and [row[0] for row in shown["rows"]] == [0, 1, 2, 3]
            assert shown["job"]["script"] == "train.py" and shown["state"] == "live"
            record = a_record(number=7, issued=1.0)
            page.job = a_job(a_rank(0), a_rank(1, pending=[record], last=[record]), a_rank(3))
            await page.feed.step()
            kind, changed = await read_event(answer.content)
            assert kind == "change" and changed["gone"] == [2]
            assert [cells[0] for cells in changed["cells"]] == [1]
            shown = apply(shown, changed)
            assert shown["rows"][1][shown["columns"].index("what")] == "all_reduce #7"
            assert shown == json.loads(page.feed.whole()[1])
            page.job = None
            await page.feed.step()
            _, changed = await read_event(answer.content)
            assert changed["state"] == "ended"


async def test_what_ranks_tell_is_one_line_without_orders() -> None:
    async with served() as page:
        record = a_record(NASTY, 1, 1.0)
        about = {"argv": [NASTY], "log_dir": "/" + NASTY, "output": "attempt_0/0"}
        page.job = a_job(replace(a_rank(0, pending=[record], last=[record], about=about), host=NASTY))
        await page.feed.step()
        await page.sign_in()
        text = page.feed.whole()[1].decode()
        text += (await page.data("timeline?ranks=0"))[1] + (await page.data("matrix"))[1]
        assert "owned" in text
        for order in ("\\u001b", "\\u0007", "\\u202e", "\\r", "\\n", "\x1b"):
            assert order not in text


async def test_nonsense_is_refused_in_words() -> None:
    async with served() as page:
        await page.sign_in()
        for query in (
            "ranks=x",
            "ranks=0-99999",
            "ranks=5-1",
            "seconds=nan",
            "seconds=1e9",
            "ranks=" + "1," * 99,
        ):
            status, text = await page.data(f"timeline?{query}")
            assert status == 400 and text.count("\n") == 1
        for query in ("", "of=x", "of=0&from=x"):
            assert (await page.data(f"logs?{query}"))[0] == 400
        status, text = await page.data("logs?of=-1&stream=stdout")
        assert "no such output" in text
        assert "no such output" in (await page.data("logs?of=0&stream=../../x"))[1]


async def test_answers_are_worked_out_once_for_each_state() -> None:
    async with served() as page:
        await page.sign_in()
        for number in range(8):
            assert (await page.data(f"timeline?ranks={number}"))[0] == 200
        assert (await page.data("timeline?ranks=0"))[0] == 200
        assert (await page.data("timeline?ranks=9"))[0] == 429
        await page.feed.step()
        assert (await page.data("timeline?ranks=9"))[0] == 200


async def test_metrics_take_a_token_or_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as page:
        assert (await page.get("/metrics"))[0] == 401
        assert (await page.get("/metrics", Authorization="Bearer wrong"))[0] == 401
        assert (await page.get("/metrics", Authorization=f"Bearer {page.sessions.token}"))[0] == 401
        status, text = await page.get("/metrics", Authorization=f"Bearer {METRICS}")
        assert status == 200
        assert 'aiodist_world_size{key="cafe"} 4.0' in text
        await page.sign_in()
        assert await page.data("metrics") == (200, text)
        monkeypatch.setattr(prometheus, "find_spec", lambda name: None)
        status, text = await page.data("metrics")
        assert status == 501 and "pip install" in text


async def test_links_in_the_folder_of_logs_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    folder = tmp_path / "logs"
    for local in range(4):
        (folder / "attempt_0" / str(local)).mkdir(parents=True)
    (folder / "attempt_0/0/stdout.log").write_bytes(b"\x1b[31mred\x1b[0m <b>\rlast\nsecond\n")
    (folder / "attempt_0/1/stdout.log").symlink_to(tmp_path / "secret")
    (folder / "attempt_0/2/stdout.log").mkdir()
    (folder / "attempt_1").symlink_to(tmp_path)
    async with served() as page:
        await page.sign_in()
        page.logs.add(str(folder))
        await page.feed.step()
        outputs = json.loads(page.feed.whole()[1])["logs"]["outputs"]
        assert [(one["attempt"], one["local"]) for one in outputs] == [(0, 0), (0, 1), (0, 2), (0, 3)]
        told = json.loads((await page.data("logs?of=0&stream=stdout"))[1])
        assert told["lines"] == ["last", "second"] and told["next"] == 29
        for number, why in ((1, "is a link"), (2, "not a regular file"), (3, "nothing is written")):
            told = json.loads((await page.data(f"logs?of={number}&stream=stdout"))[1])
            assert why in told["error"] and told["lines"] == []


@pytest.mark.parametrize("head", ["Host: secret\r\nHost: secret", "Content-Length: secret", "secret"])
async def test_what_is_no_http_is_not_written_to_the_operators_screen(
    head: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        writer.write(f"GET / HTTP/1.1\r\n{head}\r\n\r\n".encode())
        assert b" 400 " in await reader.readline()
        writer.close()
    assert caplog.records == []


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 9\r\n\r\n{",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_a_body_that_ends_too_early_is_not_written_to_the_operators_screen(
    rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as page:
        head = f"POST /session HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: {page.base}\r\n"
        for abort in (False, True):
            reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
            writer.write(head.encode() + b"Content-Type: application/json\r\n" + rest)
            if abort:
                writer.transport.abort()
            else:
                writer.write_eof()
                await reader.read()
                writer.close()
            assert (await page.get("/"))[0] == 200  # it has seen the end by now
    assert caplog.records == []


async def test_a_body_is_not_unpacked() -> None:
    async with served() as page:
        bomb = zlib.compress(b'{"token": "' + page.sessions.token.encode() + b'"}')
        headers = {"Origin": page.base, "Content-Type": "application/json", "Content-Encoding": "deflate"}
        async with page.http.post(f"{page.base}/session", data=bomb, headers=headers) as answer:
            assert answer.status == 400
