"""Where jobs run: in this process, in one process a core, or on a Ray cluster.

    executor = make_executor("process")
    executor.submit("first", Job(folder, config))      # as many at a time as there are `slots`
    for key, outcome in executor.wait(timeout=1.0):
        ...
    executor.close()

What an executor promises: every submitted key comes out of `wait` exactly once, also when a worker is killed.
The job then goes on from its last checkpoint, and after `RETRIES` more attempts its outcome is `failed`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process, resource_tracker
from typing import TYPE_CHECKING, Any, Protocol

from fastdropout.errors import ConfigError
from fastdropout.music.study.search.job import Job, Outcome, run_job
from fastdropout.music.training.build import cores

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

RETRIES = 3
"""Attempts after the first for a job whose worker or node was lost."""
GRACE = 20.0
"""Seconds for the workers to save and end."""
EXECUTORS = ("serial", "process", "ray")


class Executor(Protocol):
    """Runs jobs."""

    @property
    def slots(self) -> int:
        """Jobs that run at a time; more may be submitted, they wait."""

    def submit(self, key: Hashable, job: Job) -> None:
        """Take a job; its outcome comes out of `wait` under `key`."""

    def wait(self, timeout: float) -> list[tuple[Hashable, Outcome]]:
        """The jobs that have ended since the last call; waits so many seconds for one."""

    def close(self) -> None:
        """Stop what still runs, so that it can be gone on with, and give everything back."""


def make_executor(
    name: str = "process",
    workers: int | None = None,
    ray: str | None = None,
    *,
    stop: Callable[[], bool] | None = None,
    cpus: float = 1,
    gpus: float = 0,
) -> Executor:
    """An executor by its name.

    `workers` is the number of processes [one a core]. `ray` is the address of a cluster, or auto; its tasks
    ask for `cpus` and `gpus`. `stop` is for the serial executor, whose `wait` lasts as long as a job: where
    it answers True, the job saves and comes out as `stopped`.
    """
    if name not in EXECUTORS:
        raise ConfigError(f"executor must be one of {', '.join(EXECUTORS)}, got {name!r}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    if name == "serial":
        return SerialExecutor(stop)
    if name == "process":
        return ProcessExecutor(workers or cores())
    from fastdropout.music.study.search.ray_executor import RayExecutor

    return RayExecutor(ray or "auto", cpus=cpus, gpus=gpus, workers=workers)


class SerialExecutor:
    """One job after the other, in this process."""

    slots = 1

    def __init__(self, stop: Callable[[], bool] | None = None) -> None:
        self._stop, self._jobs = stop, deque[tuple[Hashable, Job]]()

    def submit(self, key: Hashable, job: Job) -> None:
        """Take a job."""
        self._jobs.append((key, job))

    def wait(self, timeout: float) -> list[tuple[Hashable, Outcome]]:
        """Do the next job, however long it takes."""
        if not self._jobs:
            return []
        key, job = self._jobs.popleft()
        return [(key, run_job(job, self._stop))]

    def close(self) -> None:
        """Forget the jobs that have not begun."""
        self._jobs.clear()


@dataclass
class _Task:
    key: Hashable
    job: Job
    attempts: int = 0


class ProcessExecutor:
    """A pool of processes, each of them replaced when it dies."""

    def __init__(self, workers: int, retries: int = RETRIES) -> None:
        self.slots, self._retries = workers, retries
        self._queue: deque[_Task] = deque()
        self._workers: list[_Worker] = []

    @property
    def pids(self) -> list[int]:
        """The processes that have a job."""
        return [worker.process.pid or 0 for worker in self._workers if worker.task is not None]

    def submit(self, key: Hashable, job: Job) -> None:
        """Take a job."""
        self._queue.append(_Task(key, job))
        self._hand_out()

    def wait(self, timeout: float) -> list[tuple[Hashable, Outcome]]:
        """The jobs that have ended, those included whose workers died too often."""
        by_handle: dict[Any, _Worker] = {}
        for worker in self._workers:
            by_handle |= {worker.pipe: worker, worker.process.sentinel: worker}
        ended = []
        # A worker that has answered and died is there twice; it is asked once.
        ready = {id(w): w for w in (by_handle[h] for h in connection.wait(list(by_handle), timeout))}
        for worker in ready.values():
            task, outcome = worker.task, worker.answer()
            if outcome is None:
                self._workers.remove(worker)
                outcome = self._lost(task, worker.end())
            if task is not None and outcome is not None:
                ended.append((task.key, outcome))
        self._hand_out()
        return ended

    def close(self) -> None:
        """Let the workers save and end; those that do not are killed, which loses no checkpoint."""
        self._queue.clear()
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.end(GRACE)
        self._workers.clear()

    def _hand_out(self) -> None:
        idle = [worker for worker in self._workers if worker.task is None]
        while self._queue and (idle or len(self._workers) < self.slots):
            if not idle:
                idle.append(_Worker())
                self._workers.append(idle[-1])
            worker = idle.pop()
            worker.begin(self._queue.popleft())

    def _lost(self, task: _Task | None, code: int | None) -> Outcome | None:
        """Queue a task whose worker died once more, or give it up."""
        if task is None:
            return None
        if task.attempts <= self._retries:
            self._queue.appendleft(task)
            return None
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        hint = ", perhaps for want of memory" if code == -signal.SIGKILL else ""
        return Outcome("failed", reason=f"its worker {how} in each of {task.attempts} attempts{hint}")


class _Worker:
    """A process and the pipe to it."""

    def __init__(self) -> None:
        context = get_context("spawn")  # A fork of a process that has started torch's threads hangs.
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_work, args=(theirs,), daemon=True)
        self.task: _Task | None = None
        with _without_ctrl_c():
            self.process.start()
        theirs.close()  # So that the death of the worker ends the pipe.

    def begin(self, task: _Task) -> None:
        self.task = task
        task.attempts += 1
        with contextlib.suppress(OSError):  # It is dead, as its sentinel will say.
            self.pipe.send(task.job)

    def answer(self) -> Outcome | None:
        """The outcome of its task; None if it died."""
        try:
            if not self.pipe.poll():
                return None
            outcome: Outcome = self.pipe.recv()
        except (EOFError, OSError):
            return None
        self.task = None
        return outcome

    def end(self, grace: float = 0.0) -> int | None:
        """Make sure that it has ended; the exit code."""
        self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        code = self.process.exitcode
        self.pipe.close()
        self.process.close()
        return code


def _work(pipe: Connection) -> None:
    """What a worker does: jobs, until it is told to stop or its parent dies."""
    import torch

    torch.set_num_threads(1)
    stopping = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # The parent has gone.
        while not stopping.is_set():
            if pipe.poll(0.2):
                pipe.send(run_job(pipe.recv(), stopping.is_set))


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """A process started here never hears of Ctrl-C: that is for its parent, who then says what to do."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # Which lets the signal through again, if it is started with a worker.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _die_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
