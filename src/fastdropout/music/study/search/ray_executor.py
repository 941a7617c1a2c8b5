"""Jobs as tasks of a Ray cluster that is already there.

The run folders lie where every node can reach them. A task whose worker or node is lost is started again by
Ray, on whichever node has room, and goes on from the last checkpoint in its folder.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Hashable
from typing import Any

from fastdropout.errors import ConfigError, one_line
from fastdropout.music.study.search.executors import RETRIES
from fastdropout.music.study.search.job import Job, Outcome, run_job

REACH = 10.0
"""Seconds for an address to be reached."""
ANSWER = 60.0
"""Seconds for a cluster to answer; one on a busy machine takes 20."""


class RayExecutor:
    """Connects to the cluster at `address`; auto finds the one of this machine or of $RAY_ADDRESS."""

    def __init__(
        self, address: str = "auto", *, cpus: float = 1, gpus: float = 0, workers: int | None = None
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError("ray is not installed: pip install 'fastdropout[ray]'") from error
        self._ray, self._cpus, self._gpus, self._workers = ray, cpus, gpus, workers
        self._connected = not ray.is_initialized()
        if self._connected:
            _check_reached(address)
            _check_answer(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                why = " ".join(str(error).split())[:200]
                raise ConfigError(
                    f"no Ray cluster at {address} ({why}); ray start --head makes one"
                ) from error
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": RETRIES}
        self._task = ray.remote(_single_threaded).options(**options)
        self._keys: dict[Any, Hashable] = {}

    @property
    def slots(self) -> int:
        """As many as the nodes that are there now have room for."""
        if self._workers is not None:
            return self._workers
        there = self._ray.cluster_resources()
        room = [
            there.get(name, 0) / each for name, each in (("CPU", self._cpus), ("GPU", self._gpus)) if each
        ]
        return max(1, int(min(room, default=1)))

    def submit(self, key: Hashable, job: Job) -> None:
        """Take a job."""
        self._keys[self._task.remote(job)] = key

    def wait(self, timeout: float) -> list[tuple[Hashable, Outcome]]:
        """The jobs that have ended, those included that Ray has given up."""
        if not self._keys:
            return []
        refs = list(self._keys)
        # Without fetch_local=False, an outcome lost with its node would not count as ready.
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        if not ready:
            ready, _ = self._ray.wait(refs, num_returns=1, timeout=timeout, fetch_local=False)
        return [(self._keys.pop(ref), self._outcome(ref)) for ref in ready]

    def close(self) -> None:
        """Cancel what runs, which loses no checkpoint, and leave the cluster as it is."""
        for ref in self._keys:
            self._ray.cancel(ref, force=True)
        self._keys.clear()
        if self._connected:
            self._ray.shutdown()

    def _outcome(self, ref: Any) -> Outcome:
        try:
            outcome: Outcome = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            why = " ".join(str(error).split())[:300]
            reason = f"its worker was lost in each of {RETRIES + 1} attempts ({type(error).__name__}: {why})"
            return Outcome("failed", reason=reason)
        return outcome


def _check_reached(address: str) -> None:
    """Refuse HOST:PORT where nobody listens: Ray itself would try for many minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return  # A name, such as auto.
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster at {address} ({error}); ray start --head makes one, --ray auto finds it"
        ) from error


def _check_answer(address: str) -> None:
    """Refuse an address where something else listens: there Ray would try for minutes, and heed no signal."""
    words = [sys.executable, "-c", _CALL, address]
    try:
        done = subprocess.run(words, timeout=ANSWER, capture_output=True, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        why = f"what listens there does not answer as one within {ANSWER:.0f} s"
    else:
        if done.returncode == 0:
            return
        why = one_line(RuntimeError(done.stdout), 200)
    raise ConfigError(f"no Ray cluster at {address} ({why}); ray start --head makes one")


_CALL = """
import logging, sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
except Exception as error:
    print(error)
    sys.exit(1)
"""


def _single_threaded(job: Job) -> Outcome:
    import torch

    torch.set_num_threads(1)
    return run_job(job)
