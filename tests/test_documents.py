"""What the documents say is run: README blocks, examples, tables."""

import os
import re
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from fastdropout.integration.registry import TABLE

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(autouse=True)
def registered():
    """Forget what a document registers: the table of rules is one of the tables that are tested."""
    kept = dict(TABLE)
    yield
    TABLE.clear()
    TABLE.update(kept)


def blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if blocks(p)], ids=lambda p: p.name)
def test_python_blocks_run(path, tmp_path, monkeypatch):
    """The blocks of a document one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "block"}
    for block in blocks(path):
        exec(compile(block, path.name, "exec"), names)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(path, capsys):
    plt.close("all")  # a program of its own draws into a new figure
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.fixture
def check(monkeypatch):
    """`python -m MODULE --check` in the root folder, in this process."""

    def run(module):
        monkeypatch.chdir(ROOT)
        monkeypatch.syspath_prepend(ROOT)
        monkeypatch.setattr(sys, "argv", [module, "--check"])
        code = 0
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code
        assert not code

    return run


def test_tables_are_those_of_the_results(check):
    check("docs.tables")


def test_captions_are_those_of_the_numbers(check):
    check("docs.figures")
    text = (ROOT / "docs" / "analysis.md").read_text()
    for numbers in (ROOT / "results" / "figures").glob("*.npz"):
        assert f"images/{numbers.stem}.png" in text
        assert numbers.stat().st_size < 1_000_000


def test_links_lead_somewhere():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            if "://" not in target and not target.startswith("gallery/"):  # which the build of the site makes
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", DOCUMENTS[1:], ids=lambda p: p.name)
def test_code_fits_the_page(path):
    """A line of code that is longer is cut at the edge of the site's column."""
    fenced = re.findall(r"```\w*\n(.*?)```", path.read_text(), re.DOTALL)
    indented = re.findall(r"^ {4}(.+)$", path.read_text(), re.MULTILINE)
    for line in [*"\n".join(fenced).splitlines(), *indented]:
        assert len(line) <= 92, line


def test_the_commands_of_the_readme():
    text = (ROOT / "README.md").read_text()
    command = re.search(r"<!-- test command -->\n```\n(.*?)\n```", text)[1]
    assert command == 'pip install -c constraints.txt -e ".[test]" && pytest -n 2'
    assert "test command" in (ROOT / ".ci" / "run").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    main = re.search(r"<!-- main command -->\n```\n(.*?)\n```", text)[1]
    assert main.endswith("fastdropout train")
