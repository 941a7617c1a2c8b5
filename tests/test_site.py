"""The site builds without warnings and without network, and its links lead somewhere."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from inspect import getdoc, isclass, isfunction
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx_gallery")
from docs.conf import public

ROOT = Path(__file__).parents[1]
ROOMS = ["", ".nn", ".functional", ".integration", ".optim", ".analysis", ".sklearn"]


def build(folder, gallery="1"):
    """Build the site; a proxy that is not there keeps it from the network."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-d", str(folder / "doctrees")]
    done = subprocess.run(
        [*command, "-b", "html", "docs", str(folder / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, **nowhere, "PYTHONPATH": path, "FASTDROPOUT_GALLERY": gallery},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


class Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        self.links |= {found[key] for key in ("href", "src") if found.get(key)}


def check_links(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken, "\n".join(sorted(broken))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site without running its examples, which `test_examples_run` does."""
    return build(tmp_path_factory.mktemp("site"), gallery="0")


def test_links_lead_somewhere(site):
    check_links(site)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: f"fastdropout{room}")
def test_every_public_name_is_in_the_reference(site, room):
    module = import_module(f"fastdropout{room}")
    page = Page(site / "api" / f"fastdropout{room}.html")
    for name in module.__all__:
        if type(getattr(module, name)) is not type(module):
            assert f"fastdropout{room}.{name}" in page.anchors, f"{name} is not in the reference"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: f"fastdropout{room}")
def test_every_public_name_says_what_it_is(room):
    module = import_module(f"fastdropout{room}")
    for name in module.__all__:
        value = getattr(module, name)
        if isfunction(value) or isclass(value):
            assert getdoc(value), f"{name} has no docstring"


@pytest.mark.parametrize("room", [*ROOMS, ".functional.losses", ".functional.quadrature", ".nn.init"])
def test_every_public_name_has_an_example(room):
    names = public(f"fastdropout{room}")
    assert names
    for name in names:
        value = getattr(import_module(f"fastdropout{room}"), name)
        if (isfunction(value) or isclass(value)) and value.__module__.startswith("fastdropout"):
            assert ">>>" in (value.__doc__ or ""), f"{name} has no example"


@pytest.mark.slow
def test_the_whole_site_with_its_gallery(tmp_path):
    check_links(build(tmp_path))
