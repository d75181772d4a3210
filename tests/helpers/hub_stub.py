"""A hub of this machine: the two requests that the download makes, and every way in which they can go wrong."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPO = "someone/tiny"
REVISION = "0123456789abcdef0123456789abcdef01234567"
LFS_SUFFIXES = (".safetensors", ".bin", ".pt")


@dataclass
class StubHub:
    """What the hub holds and how it misbehaves.

    Attributes:
        files: content by name, at the only revision.
        listed: content that the listing is computed from; differs from `files` where a transfer is altered.
        cut_after: bytes after which a file's transfer breaks off, each used once.
        status: HTTP status and hub error code to answer a request path with, by its ending.
        requests: every request: method, path and Range header.
    """

    files: dict[str, bytes]
    url: str = ""
    revision: str = REVISION
    listed: dict[str, bytes] = field(default_factory=dict)
    cut_after: dict[str, list[int]] = field(default_factory=dict)
    status: dict[str, tuple[int, str]] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    ignore_ranges: bool = False

    def listing(self) -> dict[str, object]:
        """Return the answer to a request for the files of the revision."""
        siblings: list[dict[str, object]] = []
        for name, content in {**self.files, **self.listed}.items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": blob}
            if name.endswith(LFS_SUFFIXES):
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        return {"_id": "1", "id": REPO, "sha": self.revision, "siblings": siblings, "tags": [], "downloads": 0}

    def transferred(self) -> list[str]:
        """Return the names of the files that were asked for, in order."""
        return [path.rsplit("/", 1)[-1] for _, path, _ in self.requests if "/resolve/" in path]


def _handler(hub: StubHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            hub.requests.append((self.command, path, self.headers.get("Range")))
            for ending, (status, code) in hub.status.items():
                if path.endswith(ending):
                    return self.answer(status, b"{}", {"X-Error-Code": code})
            if path == f"/api/models/{REPO}/revision/{REVISION}":
                return self.answer(200, json.dumps(hub.listing()).encode(), {"Content-Type": "application/json"})
            if path.startswith(f"/api/models/{REPO}/revision/"):
                return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            prefix = f"/{REPO}/resolve/{REVISION}/"
            if path.startswith(prefix) and path.removeprefix(prefix) in hub.files:
                return self.send_part(path.removeprefix(prefix))
            code = "EntryNotFound" if path.startswith(f"/{REPO}/") else "RepoNotFound"
            return self.answer(404, b"{}", {"X-Error-Code": code})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_part(self, name: str) -> None:
            content = hub.files[name]
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            start = int(match[1]) if match and not hub.ignore_ranges else 0
            body = content[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            cuts = hub.cut_after.get(name)
            if cuts:
                body = body[: cuts.pop(0)]
                self.close_connection = True
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[StubHub]:
    """Run a stub hub with these files on a free port."""
    hub = StubHub(dict(files))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
