import hashlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fastdropout.errors import DataError
from fastdropout.music.data import canonical, download
from fastdropout.music.data.canonical import CANONICAL
from fastdropout.music.data.download import BASE_URL, fetch

CONTENT = bytes(range(256)) * 2000  # Half a MB: several blocks.


class Server(ThreadingHTTPServer):
    """Serves `content` on loopback; `drops` says after how many bytes the next connections break."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.drops = []
        self.ranges = True
        self.lie = 0
        self.requests = []

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.requests.append((self.path, asked))
        if self.path != "/files/JSB_Chorales.mat":
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
        total = len(server.content)
        if start and start >= total:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{total}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start + server.lie}-{total - 1}/{total}")
        self.send_header("Content-Length", str(total - start))
        self.end_headers()
        end = start + server.drops.pop(0) if server.drops else total
        self.wfile.write(server.content[start:end])

    def log_message(self, *args):
        pass


@contextmanager
def serving():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(monkeypatch):
    sha = hashlib.sha256(CONTENT).hexdigest()
    old = CANONICAL["jsb-chorales"]
    entry = canonical.Canonical(old.npz, old.npz_sha256, old.mat, sha, old.pickle, old.content_sha256)
    monkeypatch.setitem(CANONICAL, "jsb-chorales", entry)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as server:
        yield server


def get(server, folder, **options):
    return fetch(
        "jsb-chorales", folder, base_url=f"http://127.0.0.1:{server.server_port}/files", timeout=5, **options
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_once(server, tmp_path):
    seen = []
    path = get(server, tmp_path / "new" / "folder", progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["JSB_Chorales.mat"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert seen == sorted(seen)
    assert get(server, path.parent) == path
    assert len(server.requests) == 1


def test_a_partial_file_is_resumed(server, tmp_path):
    (tmp_path / "JSB_Chorales.mat.part").write_bytes(CONTENT[:1000])
    seen = []
    path = get(server, tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert server.requests == [("/files/JSB_Chorales.mat", "bytes=1000-")]
    assert seen[0][0] > 1000
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert names(tmp_path) == ["JSB_Chorales.mat"]


def test_a_broken_connection_is_taken_up_again(server, tmp_path):
    server.drops = [100_000, 50_000]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=100000-", "bytes=150000-"]


def test_after_too_many_breaks_the_part_is_kept(server, tmp_path):
    server.drops = [10, 10, 10]
    with pytest.raises(DataError, match="broke off"):
        get(server, tmp_path)
    assert (tmp_path / "JSB_Chorales.mat.part").read_bytes() == CONTENT[:30]
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_server_without_ranges_starts_anew(server, tmp_path):
    server.ranges = False
    (tmp_path / "JSB_Chorales.mat.part").write_bytes(b"x" * 1000)
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_whole_part_needs_nothing_more(server, tmp_path):
    (tmp_path / "JSB_Chorales.mat.part").write_bytes(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("part", [None, b"x" * 1000, CONTENT + b"x"])
def test_wrong_content_is_refused_and_removed(server, tmp_path, part):
    if part is None:
        server.content = CONTENT[:-1] + b"!"
    else:
        (tmp_path / "JSB_Chorales.mat.part").write_bytes(part)
    with pytest.raises(DataError, match=f"sha256 must be {CANONICAL['jsb-chorales'].mat_sha256}, got"):
        get(server, tmp_path)
    assert names(tmp_path) == []


def test_a_wrong_file_is_replaced_by_the_right_one_only(server, tmp_path):
    path = tmp_path / "JSB_Chorales.mat"
    path.write_bytes(b"other")
    server.content = b"wrong"
    with pytest.raises(DataError, match="sha256"):
        get(server, tmp_path)
    assert path.read_bytes() == b"other"
    server.content = CONTENT
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_another_range_than_asked_for_is_not_used(server, tmp_path):
    server.lie = 7
    (tmp_path / "JSB_Chorales.mat.part").write_bytes(CONTENT[:1000])
    with pytest.raises(DataError, match="another range"):
        get(server, tmp_path)
    assert (tmp_path / "JSB_Chorales.mat.part").read_bytes() == CONTENT[:1000]


def test_too_much_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match="allowed are 1000"):
        get(server, tmp_path)


def test_errors_are_ours(server, tmp_path):
    base = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(DataError, match=r"/nowhere/JSB_Chorales.mat: could not be fetched.*Not Found"):
        fetch("jsb-chorales", tmp_path, base_url=f"{base}/nowhere/")
    with pytest.raises(DataError, match="allowed are piano-midi"):
        fetch("bach", tmp_path, base_url=base)
    with pytest.raises(DataError, match="http://"):
        fetch("jsb-chorales", tmp_path, base_url="file:///etc")
    with pytest.raises(DataError, match="could not be fetched"):
        fetch("jsb-chorales", tmp_path, base_url="http://[")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="could not be fetched"):
        get(server, tmp_path / "file")
    with serving() as gone:
        port = gone.server_port
    with pytest.raises(DataError, match="refused"):
        fetch("jsb-chorales", tmp_path, base_url=f"http://127.0.0.1:{port}/files")


def test_the_address_is_pinned_to_a_commit():
    assert BASE_URL.startswith("https://")
    assert "2f8c2b817050206397458dfd1f5a25ce8a32fe65" in BASE_URL
