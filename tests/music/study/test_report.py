import html.parser
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import scipy.stats

from fastdropout.errors import RunError
from fastdropout.music.data.baselines import frequencies_nll
from fastdropout.music.data.canonical import CANONICAL
from fastdropout.music.data.rolls import Corpus
from fastdropout.music.study import compare, comparison_html, report_html, write_report
from fastdropout.music.study.figures import wilson
from fastdropout.music.study.paper import TABLE_1
from fastdropout.music.training import Run, make_config, train

SMALL = {"hidden": 12, "nu": 4, "chunk": 20, "batch": 4, "epochs": 3, "threads": 1, "lr": 0.01}


def make_corpus(name="tunes"):
    rng = np.random.default_rng(0)
    lengths = {"train": (40, 33), "valid": (30,), "test": (41, 17)}
    splits = {
        s: [(rng.random((n, 88)) < 0.05).astype(np.uint8) for n in sizes] for s, sizes in lengths.items()
    }
    return Corpus(name, splits, names={"test": ["first <b>", "second"]})


@pytest.fixture(scope="module")
def corpus():
    return make_corpus()


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    return train(make_config(SMALL), corpus=corpus, out=tmp_path_factory.mktemp("run") / "fd")


@pytest.fixture(scope="module")
def plain(corpus, tmp_path_factory):
    return train(
        make_config(SMALL | {"drop": 0}), corpus=corpus, out=tmp_path_factory.mktemp("run") / "plain"
    )


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "xlink:href") and v]


def svgs(page):
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


def test_the_page_stands_alone_and_shows_everything(run, corpus):
    path = write_report(run, corpus=corpus)
    assert path == run.path / "report.html"
    page = path.read_text("utf-8")
    tags = Tags()
    tags.feed(page)
    assert "script" not in tags.tags
    assert "link" not in tags.tags
    assert all(link.startswith(("data:", "#")) for link in tags.links)
    assert "url(http" not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert f"{run.result.test.nll_per_step:.3f}" in page
    pictures = svgs(page)
    assert len(pictures) == 6
    assert page.count("<audio controls") == 3
    assert "The regulariser" in page
    for picture in pictures:
        ElementTree.fromstring(picture)
        assert "currentColor" in picture
    for name, _ in run.config:
        assert f"<span>{name}</span>" in page
    assert "standard deviation" in page


def test_ids_of_the_figures_do_not_collide(run, corpus):
    seen = set()
    for picture in svgs(report_html(run, corpus=corpus)):
        ids = set(re.findall(r'\bid="([^"]+)"', picture))
        used = {name for name in ids if f"#{name}" in picture}  # Those that something refers to.
        assert not used & seen
        seen |= used


def test_names_cannot_be_code(run, corpus):
    page = report_html(run, corpus=corpus)
    assert "first &lt;b&gt;" in page
    assert "first <b>" not in page


def test_a_plain_network_has_no_uncertainty_to_show(plain, corpus):
    page = report_html(plain, corpus=corpus)
    assert "A plain recurrent network" in page
    assert "nothing is dropped and no noise is added" in page
    assert len(svgs(page)) == 5
    assert "no uncertainty" in page
    assert "standard deviation" not in page


def test_a_run_from_before_the_regulariser_was_written_down_has_a_report(run, corpus, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(run.path, old)
    lines = [json.loads(line) for line in (old / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for name in ("rewarded", "penalised", "lambda_quantiles"):
            del line[name]
    (old / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report_html(Run(old), corpus=corpus)
    assert "Not written down" in page
    assert len(svgs(page)) == 5


def renamed(run, name, sha256):
    about = run.path / "run.json"
    content = json.loads(about.read_text())
    content["corpus"] |= {"name": name, "sha256": sha256}
    about.write_text(json.dumps(content))


@pytest.fixture
def disguised(run):
    before = (run.path / "run.json").read_text()
    yield lambda name, sha256: renamed(run, name, sha256)
    (run.path / "run.json").write_text(before)


def test_only_the_papers_own_data_stand_beside_the_paper(run, corpus, disguised):
    assert "Not comparable: this run was not scored" in report_html(run, corpus=corpus)
    disguised("jsb-chorales", CANONICAL["jsb-chorales"].content_sha256)
    page = report_html(Run(run.path), corpus=corpus)
    assert "8.01" in page
    assert "8.58" in page
    assert "Not comparable" not in page
    assert "The corpus has changed" in page
    disguised("jsb-chorales", "other")
    assert "Not comparable" in report_html(Run(run.path), corpus=corpus)
    disguised("bach", corpus.sha256)
    page = report_html(Run(run.path), corpus=corpus)
    assert "Not comparable. <code>bach</code> is made from the chorales" in page


def test_table_1_is_the_papers():
    assert TABLE_1["piano-midi"] == (7.39, 7.58, 7.05, None)
    assert TABLE_1["nottingham"] == (3.09, 3.43, 2.31, 2.95)
    assert TABLE_1["musedata"] == (6.75, 6.99, 5.60, 6.59)
    assert TABLE_1["jsb-chorales"] == (8.01, 8.58, 5.19, 7.92)


def test_compare_names_what_differs(run, plain):
    lines = compare([run, plain.path])
    assert [line.valid for line in lines] == sorted(line.valid for line in lines)
    assert set(lines[0].options) == {"drop_input", "drop_hidden", "drop_output", "noise_hidden"}
    page = comparison_html([run, plain])
    assert "drop_hidden" in page
    assert len(svgs(page)) == 1
    assert "different corpora" not in page
    with pytest.raises(RunError, match="nothing to compare"):
        compare([])


def test_the_best_valid_comes_first_whatever_the_test(run, plain, tmp_path):
    """Who chooses by the test has none left."""
    worse = copied(run, tmp_path / "worse", valid=9.0, test=1.0)
    better = copied(plain, tmp_path / "better", valid=8.0, test=2.0)
    assert [line.name for line in compare([worse, better])] == ["better", "worse"]
    page = comparison_html([worse, better])
    legend = re.findall(r"(\d)  (better|worse)", svgs(page)[0])
    assert legend == [("1", "better"), ("2", "worse")]  # The order and numbers of the rows.
    assert page.index(">better<") < page.index(">worse<")


def copied(run, path, **scores):
    shutil.copytree(run.path, path)
    content = json.loads((path / "result.json").read_text())
    for split, nll in scores.items():
        content[split]["nll_per_step"] = nll
    (path / "result.json").write_text(json.dumps(content))
    return Run(path)


def test_runs_on_other_data_do_not_compare(run, tmp_path):
    other = train(make_config(SMALL | {"epochs": 1, "pieces": 1}), corpus=cut(), out=tmp_path / "o")
    page = comparison_html([run, other])
    assert "different corpora" in page
    assert len(svgs(page)) == 2  # Axes of their own.
    assert page.count("<td>corpus</td>") == 0  # It is their heading.
    firsts = re.findall(r"<tr[^>]*><td>([^<]*)</td>", page)
    assert len(firsts) == len(set(firsts))  # No figure twice.


def test_baselines_stand_beside_the_headline(run, plain, corpus, tmp_path):
    shutil.copytree(run.path, tmp_path / "noisy")
    noisy = Run(tmp_path / "noisy")
    page = report_html(noisy, corpus=corpus)
    frequencies = frequencies_nll(corpus.train, corpus.test, score_first=False)
    assert f'no network</td><td class="n">{frequencies:.3f}</td>' in page
    assert "without noise (" not in page
    copied(plain, tmp_path / "quiet", valid=5.0, test=6.25)
    copied(plain, tmp_path / "worse", valid=5.5, test=4.0)
    (tmp_path / "torn").mkdir()
    page = report_html(noisy, corpus=corpus)
    assert 'without noise (quiet)</td><td class="n">6.250</td>' in page
    assert "without noise (" not in report_html(Run(tmp_path / "quiet"), corpus=corpus)


def test_wilson_intervals_by_scipy():
    share, count = np.array([0.0, 1.0, 0.3, 0.5]), np.array([5, 7, 10, 1000])
    low, high = wilson(share, count)
    for n, (s, k) in enumerate(zip(share, count, strict=True)):
        exact = scipy.stats.binomtest(round(s * k), k).proportion_ci(method="wilson")
        assert (low[n], high[n]) == pytest.approx((exact.low, exact.high), abs=1e-6)
    assert (low <= share).all()
    assert (share <= high).all()


def cut():
    corpus = make_corpus()
    return Corpus("tunes", {**corpus.splits, "train": corpus.splits["train"][:1]})


def test_an_unfinished_run_is_told(corpus, tmp_path):
    run = train(make_config(SMALL), corpus=corpus, out=tmp_path / "r", stop=lambda: True)
    with pytest.raises(RunError, match="is not finished; fastdropout resume"):
        write_report(run, corpus=corpus)


def test_a_report_without_the_corpus(run, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere/at/all")
    from fastdropout.errors import DataError
    from fastdropout.music.study import report as module

    def gone(config):
        raise DataError("it is gone")

    monkeypatch.setattr(module, "load_corpus", gone)
    assert "no piece is shown: it is gone" in report_html(run)
