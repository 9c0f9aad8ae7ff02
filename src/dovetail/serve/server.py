"""The server: on this machine alone, one process, a random token in the address."""

from __future__ import annotations

import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from dovetail.errors import InputError
from dovetail.serve.application import Application, Response
from dovetail.serve.page import POLICY

HOST = "127.0.0.1"
#: Characters of an address, and its fields.
MOST_CHARACTERS, MOST_FIELDS = 8_192, 32


class Server(ThreadingHTTPServer):
    """Answers only who knows the token, and only at this machine's own address."""

    daemon_threads = True

    def __init__(self, port: int, run_dir: Path | None = None) -> None:
        self.token = secrets.token_urlsafe(16)
        self.application = Application(run_dir)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise InputError("--port", f"{port} cannot be used ({error.strerror})", "give another, or none") from None

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "Dovetail", ""
    #: seconds a client may take to say what it wants
    timeout = 30

    def do_GET(self) -> None:
        """Answers a page, a part of it or a file."""
        self._send(self._response())

    def _response(self) -> Response:
        # a page of another site cannot make the browser say so, whatever its name resolves to
        known = {f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}"}
        if self.headers.get("Host", "") not in known:
            return Response("This server answers at its own address alone.", status=403)
        if len(self.path) > MOST_CHARACTERS:
            return Response("The address is too long.", status=414)
        parts = urlsplit(self.path)
        _, token, *rest = f"{parts.path}//".split("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return Response("The address has no valid token: use the one that `dovetail serve` printed.", status=403)
        try:
            fields = dict(parse_qsl(parts.query, max_num_fields=MOST_FIELDS))
        except ValueError:
            return Response("The question has too many fields.", status=400)
        return self.server.application.respond("/".join(rest).rstrip("/"), fields)

    def _send(self, response: Response) -> None:
        content = response.content.encode()
        self.send_response(response.status)
        self.send_header("Content-Type", response.kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        if response.file is not None:
            name = "".join(c if c.isalnum() or c in ".-_" else "_" for c in response.file)
            self.send_header("Content-Disposition", f'attachment; filename="{name}"')
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the standard library's name)
        """Says nothing: the terminal shows where the page is."""
