"""The advisor's reports as JSON over HTTP: reading alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from tenuto.advisor.service import Service
from tenuto.errors import ConfigError

_MOST_TOP = 1000
_MOST_DIGITS = 10
_TIMEOUT_S = 10.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up in between gets nothing, and is not worth a line."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class ReportServer:
    """Serves `/index`, `/volumes`, `/orders`, `/prefixes?top=20` and `/health` from threads of its own.

    Raises `ConfigError` where the address can't be listened at.
    """

    def __init__(self, service: Service, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), _handler(service))
        except OSError as error:
            raise ConfigError(f"http: can't listen at {host}:{port} ({error.strerror}); give another port") from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="tenuto-advisor-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(service: Service) -> type[BaseHTTPRequestHandler]:
    reports: dict[str, Callable[[], dict[str, Any]]] = {
        "/index": service.index, "/volumes": service.volumes, "/orders": service.orders, "/health": service.health,
    }  # fmt: skip

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def do_GET(self) -> None:
            try:
                where = urlsplit(self.path)
            except ValueError:
                self.send_error(HTTPStatus.BAD_REQUEST, "no address")
                return
            if where.path == "/prefixes":
                top = parse_qs(where.query).get("top", ["20"])[0]
                if not (top.isascii() and top.isdigit() and len(top) < _MOST_DIGITS and 0 < int(top) <= _MOST_TOP):
                    self._answer(HTTPStatus.BAD_REQUEST, {"error": f"top is a number from 1 to {_MOST_TOP}"})
                    return
                self._answer(HTTPStatus.OK, service.prefixes(int(top)))
            elif where.path in reports:
                self._answer(HTTPStatus.OK, reports[where.path]())
            else:
                self._answer(HTTPStatus.NOT_FOUND, {"error": "nothing here", "known": [*reports, "/prefixes"]})

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Requests are not worth a line."""

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """What can't be answered is said in a line, too."""
            del explain
            self.close_connection = True
            self._answer(HTTPStatus(code), {"error": message or HTTPStatus(code).phrase})

        def _answer(self, status: HTTPStatus, body: dict[str, Any]) -> None:
            data = msgspec.json.encode(body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    return Handler
