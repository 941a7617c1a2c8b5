import json
import os
import subprocess
import sys

import pytest
import torch

from fastdropout.errors import RunError
from fastdropout.music.training import (
    Run,
    build,
    evaluate_run,
    load_checkpoint,
    make_config,
    read_config,
    resume,
    train,
)
from fastdropout.music.training.run import CHECKPOINTS, create_run
from fastdropout.recurrent import compiler


def last(run):
    return load_checkpoint(run.path / "last.safetensors").state


def stopping(after):
    """A `stop` that answers True at every so many updates."""
    calls = iter(range(1, 10_000))
    return lambda: next(calls) % after == 0


def test_a_run_folder_holds_everything(config, corpus, tmp_path):
    steps = []
    run = train(config(), corpus=corpus, root=tmp_path, command=["fastdropout", "train"], watch=steps.append)
    assert run.path.parent == tmp_path
    assert run.path.name.startswith("tunes-")
    assert run.path.name.endswith("-1")
    checkpoints = {f"{which}.safetensors" for which in CHECKPOINTS}
    names = {".lock", "config.toml", "run.json", "metrics.jsonl", "result.json"}
    assert set(os.listdir(run.path)) == names | checkpoints
    assert [record.epoch for record in run.metrics] == [1, 2, 3]
    assert run.about.corpus.sha256 == corpus.sha256
    assert run.about.command == ["fastdropout", "train"]
    assert run.result.test.nll_per_step == evaluate_run(run, corpus=corpus).nll_per_step
    assert run.result.best_epoch == min(run.metrics, key=lambda r: r.valid_nll_per_step).epoch
    assert len(steps) == 3 * 6
    assert train(config(), corpus=corpus, root=tmp_path).path.name.endswith("-2")


def test_the_resolved_config_reruns_the_run(config, corpus, tmp_path):
    run = train(config(threads=0, epochs=1), corpus=corpus, out=tmp_path / "a")
    again = read_config(run.path / "config.toml")
    assert again.threads > 0
    other = train(again, corpus=corpus, out=tmp_path / "b")
    for a, b in zip(last(run).model.parameters(), last(other).model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("asked", "most"), [("1", 1), ("3", 3), ("", 4), ("0", 4), ("two", 4)])
def test_a_limit_of_threads_is_kept(monkeypatch, asked, most):
    """Two trainings of two threads on two cores take many times as long as two of one thread."""
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(build, "cores", lambda: 8)
    assert build.default_threads(make_config({"hidden": 600})) == most
    assert build.default_threads(make_config({"hidden": 100})) == 1


def test_a_training_leaves_the_threads_as_they_were(config, corpus, tmp_path):
    torch.set_num_threads(1)
    seen = set()
    train(
        config(threads=2, epochs=1),
        corpus=corpus,
        out=tmp_path / "a",
        watch=lambda _: seen.add(torch.get_num_threads()),
    )
    assert seen == {2}
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("after", [1, 4, 6])
def test_stopped_and_resumed_equals_uninterrupted(config, corpus, tmp_path, after):
    whole = train(config(), corpus=corpus, out=tmp_path / "whole")
    run = train(config(), corpus=corpus, out=tmp_path / "parts", stop=stopping(after))
    resumed = 0
    while not run.finished:
        assert resumed < 50
        run = resume(run.path, corpus=corpus, stop=stopping(after) if resumed < 5 else None)
        resumed += 1
    assert resumed > 1
    for a, b in zip(last(whole).model.parameters(), last(run).model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [r.valid_nll_per_step for r in whole.metrics] == [r.valid_nll_per_step for r in run.metrics]
    assert whole.result.test == run.result.test
    assert resume(run, corpus=corpus).result == run.result


def test_lines_after_the_checkpoint_are_taken_away(config, corpus, tmp_path):
    run = train(config(epochs=5), corpus=corpus, out=tmp_path / "r", stop=stopping(13))
    done = last(run).counters.epoch
    assert done == 2
    with open(run.path / "metrics.jsonl", "a") as file:
        more = run.metrics[-1].to_json() | {"epoch": 3, "lr": 0.5}
        file.write(json.dumps(more) + "\n" + '{"epoch": 4, "tor')  # As a crash leaves them.
    run = resume(run, corpus=corpus)
    assert [record.epoch for record in run.metrics] == [1, 2, 3, 4, 5]
    assert all(record.lr < 0.1 for record in run.metrics)


def test_a_run_killed_before_its_first_checkpoint_starts_anew(config, corpus, tmp_path):
    run = create_run(config(), corpus, out=tmp_path / "r")
    assert resume(run, corpus=corpus).finished


@pytest.mark.parametrize("built_first", [True, False])
def test_a_run_that_goes_on_with_another_kernel_says_so(config, corpus, tmp_path, monkeypatch, built_first):
    def pretend(built):
        status = "built" if built else "none: no C compiler"
        monkeypatch.setattr(compiler, "status", lambda: status)

    pretend(built_first)
    run = train(config(), corpus=corpus, out=tmp_path / "r", stop=stopping(2))
    assert run.about.versions["kernel"] == compiler.status()
    run = resume(run, corpus=corpus, stop=stopping(2))
    pretend(not built_first)
    with pytest.warns(RuntimeWarning, match="it will not be bit-identical to an uninterrupted one") as caught:
        resume(run, corpus=corpus)
    assert len(caught) == 1


def test_runs_of_before_do_not_know_their_kernel(config, corpus, tmp_path):
    run = train(config(), corpus=corpus, out=tmp_path / "r", stop=stopping(2))
    about = run.about.model_dump()
    (run.path / "run.json").write_text(json.dumps(about | {"versions": {"python": "3.11"}}))
    run = resume(run.path, corpus=corpus, stop=stopping(2))
    del about["versions"]
    (run.path / "run.json").write_text(json.dumps(about))
    assert resume(run.path, corpus=corpus).finished


# Options that came with the cells, the layers and the output layers.
LATER = ("layers", "cell", "skip", "memory", "similar", "drop_memory", "drop_between", "output")
LATER = (*LATER, "drop_nade", "nade_")


def test_run_folders_of_before_there_were_cells_and_layers(config, corpus, tmp_path):
    whole = train(config(), corpus=corpus, out=tmp_path / "whole")
    run = train(config(), corpus=corpus, out=tmp_path / "r", stop=stopping(4))
    path = run.path / "config.toml"
    lines = path.read_text().splitlines(keepends=True)
    old = [line for line in lines if not line.startswith(LATER) or line.startswith("output_bias")]
    assert len(old) < len(lines)
    path.write_text("".join(old))
    run = resume(run.path, corpus=corpus)
    assert run.finished
    assert evaluate_run(run, corpus=corpus).nll_per_step == whole.result.test.nll_per_step


HOLD = """
import sys
from fastdropout.music.training import Run
with Run(sys.argv[1]).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_train_in_one_folder(config, corpus, tmp_path):
    run = create_run(config(), corpus, out=tmp_path / "r")
    command = [sys.executable, "-c", HOLD, str(run.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            with pytest.raises(RunError, match="another process trains in it"):
                resume(run, corpus=corpus)
        finally:
            other.kill()  # The lock of a dead process does not hold.
    assert resume(run, corpus=corpus).finished


def test_a_changed_config_or_corpus_is_refused(config, corpus, tmp_path):
    run = train(config(), corpus=corpus, out=tmp_path / "r", stop=lambda: True)
    other = type(corpus)("tunes", {**corpus.splits, "train": corpus.splits["train"][1:]})
    with pytest.raises(RunError, match="was trained on other pieces"):
        resume(run, corpus=other)
    path = run.path / "config.toml"
    path.write_text(path.read_text().replace("epochs = 3", "epochs = 4"))
    with pytest.raises(RunError, match=r"epochs in config.toml was changed after the run began"):
        resume(run.path, corpus=corpus)


def test_strange_folders(config, corpus, tmp_path):
    with pytest.raises(RunError, match="no such run folder"):
        Run(tmp_path / "x")
    with pytest.raises(RunError, match=r"not a run folder, it has no config.toml"):
        Run(tmp_path)
    run = create_run(config(), corpus, out=tmp_path / "r")
    with pytest.raises(RunError, match="is not empty; choose another folder"):
        create_run(config(), corpus, out=tmp_path / "r")
    with pytest.raises(RunError, match="has no best checkpoint; fastdropout resume"):
        run.model()
    with pytest.raises(RunError, match="is not finished; fastdropout resume"):
        _ = run.result
    about = run.path / "run.json"
    about.write_text(about.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(RunError, match="has layout version 9, this program reads 1"):
        Run(run.path)
    about.write_text("[]")
    with pytest.raises(RunError, match=r"run\.json: must be a JSON object, got \[\]"):
        Run(run.path)
    about.unlink()
    (run.path / "config.toml").write_text("hidden = -1\nx = 2")
    with pytest.raises(RunError, match="hidden must be greater than or equal to 1, got -1; x is unknown"):
        _ = Run(run.path).config


def test_divergence_before_the_first_epoch_ends_the_run(config, corpus, tmp_path):
    settings = config(lr=1000.0, momentum=0.0, alpha=0.0, drop=0, clip=1e12, epochs=9, schedule="none")
    run = train(settings, corpus=corpus, out=tmp_path / "r")
    assert run.finished
    assert run.result.diverged
    assert run.metrics[-1].diverged


def test_tensorboard(config, corpus, tmp_path):
    run = train(config(epochs=2), corpus=corpus, out=tmp_path / "r", tensorboard=True)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    values = [event.value for event in events.Scalars("valid_nll_per_step")]
    assert values == pytest.approx([r.valid_nll_per_step for r in run.metrics], rel=1e-5)
