"""Metrics of a real job: by the command, and to a real Prometheus, which is asked what the dashboard asks."""

from __future__ import annotations

import contextlib
import http.server
import json
import math
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aiodist.cli.main import main
from aiodist.observe.choice import pick
from aiodist.observe.host import read_jobs
from aiodist.observe.metrics import Tally, exposition
from aiodist.observe.metrics.catalog import CATALOG
from aiodist.observe.summary import summary
from tests.levels import COSTLY
from tests.observe.metrics.receiver import receiving, serving
from tests.observe.metrics.test_examples import DASHBOARD, EXAMPLES, EXPRESSIONS
from tests.ports import HOST, free_port
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux"),
    pytest.mark.timeout(120),
]

PROGRAM = """
import asyncio, sys
import numpy as np
import aiodist as dist

async def main():
    pg = await dist.init_process_group()
    named = await pg.new_group([0, 1], name='a "strange"\\\\ name')
    x = np.zeros(1000, np.float32)
    left = asyncio.create_task(asyncio.to_thread(sys.stdin.read)) if pg.rank == 0 else None
    going = np.ones(1, np.int64)
    while going[0]:
        if pg.rank == 1:
            await asyncio.sleep(0.01)
        await pg.all_reduce(x)
        await named.broadcast(x, 0)
        going[0] = pg.rank != 0 or not left.done()
        await pg.all_reduce(going, op=dist.ReduceOp.MIN)
    await dist.destroy_process_group()

asyncio.run(main())
"""

Name = str


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[Name, Callable[[], None]]]:
    """A job of two ranks that goes on until it is told to end → its name, and what ends it."""
    name = f"metrics{secrets.token_hex(4)}.py"
    (tmp_path / name).write_text(PROGRAM)
    ranks = []
    port = str(free_port())
    for rank in range(2):
        environ = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "AIODIST_TRANSPORT": "tcp"}
        ranks.append(
            subprocess.Popen(
                [sys.executable, str(tmp_path / name)],
                env=environ | {"MASTER_ADDR": HOST, "MASTER_PORT": port},
                stdin=subprocess.PIPE,
            )
        )

    def end() -> None:
        for process in ranks:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait() == 0

    try:
        until(lambda: seen(name), "what both ranks did, in their records", *ranks)
        yield name, end
        end()
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def seen(name: Name) -> bool:
    """Whether both ranks have compared a few arrivals."""
    jobs = [one for one in read_jobs() if one.name == name]
    return (
        bool(jobs) and len(jobs[0].ranks) == 2 and all(len(one.recording.last) > 20 for one in jobs[0].ranks)
    )


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "aiodist", "metrics", *words]


def values(text: str) -> dict[str, float]:
    """The sums of metrics, by name."""
    return {
        family.samples[0].name: sum(one.value for one in family.samples)
        for family in text_string_to_metric_families(text)
        if family.samples
    }


@pytest.mark.slow(COSTLY)
def test_the_command(
    job: tuple[Name, Callable[[], None]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, end = job
    assert main(["metrics", name]) == 0
    once = capsys.readouterr().out
    told = values(once)
    assert set(told) == {metric.prometheus for metric in CATALOG}
    assert told["aiodist_world_size"] == 2
    assert told["aiodist_arrivals_compared_total"] > 20
    assert told["aiodist_tcp_sent_bytes_total"] > 0
    assert r'group="a \"strange\"\\ name"' in once
    file = tmp_path / "aiodist.prom"
    telling = subprocess.Popen(command(name, "--every", "0.2", "--textfile", str(file)))
    until(file.exists, "the file of metrics", telling)
    assert values(file.read_text())["aiodist_ops_total"] >= told["aiodist_ops_total"]
    end()
    assert telling.wait() == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.slow("two commands beside a job; what they do is tested quickly, in the test's own process")
def test_the_command_pushes_until_the_job_ends_or_it_is_asked_to(
    job: tuple[Name, Callable[[], None]], tmp_path: Path
) -> None:
    name, end = job
    with receiving() as receiver:
        pushing = subprocess.Popen(command(name, "--every", "0.2", "--otlp", receiver.url))
        assert receiver.came.wait(60)
        file = tmp_path / "other.prom"
        telling = subprocess.Popen(command(name, "--textfile", str(file)))
        until(file.exists, "the file of metrics", telling)
        telling.terminate()
        assert telling.wait() == 143
        assert not file.exists()
        end()
        assert pushing.wait() == 0
    names = {one.name for one in receiver.requests[0][1].resource_metrics[0].scope_metrics[0].metrics}
    assert names == {metric.name for metric in CATALOG}


TOKEN = "a token of the test"


@contextlib.contextmanager
def endpoint(name: Name) -> Iterator[str]:
    """What a dashboard does: `/metrics` of a job, for who has the token → host and port."""
    tally = Tally()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if (self.path, self.headers["Authorization"]) != ("/metrics", f"Bearer {TOKEN}"):
                self.send_error(401)
                return
            seen = pick(read_jobs(), name)
            body, kind = exposition(summary(None, seen), seen, tally, self.headers.get("Accept", ""))
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as url:
        yield url.removeprefix("http://")


class Prometheus:
    """A Prometheus with the configuration of the examples, but for the target and the pace."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **query: str) -> Any:
        """What a path of its API answers."""
        address = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            told = json.load(answer)
        assert told["status"] == "success"
        assert not told.get("warnings")
        return told["data"]

    def ask(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """An expression's labels and values now."""
        data = self.get("query", query=expression)
        assert data["resultType"] == "vector"
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    def ready(self) -> bool:
        """Whether it has scraped often enough for a rate."""
        try:
            return any(value >= 4 for _, value in self.ask("count_over_time(aiodist_epoch[1m])"))
        except OSError:
            return False


@contextlib.contextmanager
def prometheus(target: str, folder: Path) -> Iterator[Prometheus]:
    """Prometheus, which scrapes this target."""
    told = (EXAMPLES / "prometheus.yml").read_text()
    told = told.replace("scrape_interval: 10s", "scrape_interval: 1s\n  scrape_timeout: 1s")
    assert "localhost:8787" in told
    (folder / "prometheus.yml").write_text(told.replace("localhost:8787", target))
    shutil.copy(EXAMPLES / "rules.yml", folder)
    (folder / "aiodist.token").write_text(TOKEN)
    port = free_port()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={HOST}:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        server = Prometheus(f"http://{HOST}:{port}")
        until(lambda: process.poll() is not None or server.ready(), "a Prometheus that answers")
        assert process.poll() is None, (folder / "log").read_text()
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def replaced(expression: str) -> str:
    """An expression as Grafana asks it, with all that its variables allow."""
    return expression.replace("$__rate_interval", "1m").replace("$key", ".*").replace("$script", ".*")


@pytest.mark.slow(
    "a Prometheus, and a job for it to scrape; the names in the expressions are checked quickly"
)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here")
def test_every_expression_of_the_dashboard_has_data(
    job: tuple[Name, Callable[[], None]], tmp_path: Path
) -> None:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with endpoint(job[0]) as target, prometheus(target, folder) as server:
        for metric in CATALOG:
            labels = {"__name__", "instance", "job", "key", *metric.labels}
            found = server.ask(metric.prometheus)
            assert found, metric.prometheus
            assert all(set(one) == labels for one, _ in found), metric.prometheus
        for panel in DASHBOARD["panels"]:
            for one in panel.get("targets", ()):
                found = server.ask(replaced(one["expr"]))
                assert any(math.isfinite(value) for _, value in found), one["expr"]
                legend = set(re.findall(r"{{(\w+)}}", one["legendFormat"]))
                assert all(legend <= labels.keys() for labels, _ in found), one["expr"]
        for variable in DASHBOARD["templating"]["list"]:
            if variable["type"] == "query":
                asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
                assert asked is not None
                found = server.ask(f"group by ({asked[2]}) ({replaced(asked[1])})")
                assert [set(labels) for labels, _ in found] == [{asked[2]}]
        types = {name: one[0]["type"] for name, one in server.get("metadata").items()}
        told = {metric.prometheus: metric.kind.name for metric in CATALOG}
        stems = {metric.stem: metric.kind.name for metric in CATALOG}
        assert {name: kind for name, kind in types.items() if name.startswith("aiodist_")} in (told, stems)
        (rules,) = server.get("rules")["groups"]
        assert len(rules["rules"]) == 3
        assert [rule for rule in rules["rules"] if rule.get("lastError")] == []
        wrong = replaced(next(one for one in EXPRESSIONS if "clock" in one)).replace("clock", "clokc")
        assert "clokc" in wrong
        assert server.ask(wrong) == []
