"""A receiver of OTLP over HTTP, which reads what comes by OpenTelemetry's own definitions."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


class Receiver:
    """What came, by path.

    Attributes:
        answer: the status of the answer to what comes next; only what is answered by 200 is kept.
        url: where it is.
        came: set with each request.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, ExportMetricsServiceRequest]] = []
        self.answer = 200
        self.url = ""
        self.came = threading.Event()


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A server of its own."""
    received = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if received.answer == 200:
                received.requests.append((self.path, ExportMetricsServiceRequest.FromString(body)))
            self.send_response(received.answer)
            self.send_header("Content-Length", "0")
            self.end_headers()
            received.came.set()

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as url:
        received.url = url
        yield received


@contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server of HTTP on the loopback → its URL."""
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
