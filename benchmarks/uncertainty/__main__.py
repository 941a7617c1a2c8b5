"""Uncertainty on real data: `python -m benchmarks.uncertainty`.

Each task (a data set and a family of methods) is kept in a file under results/uncertainty/ when it is
finished, and not done again: stop the command and start it anew as you like. At the end it draws the
pictures and writes the tables of docs/uncertainty.md. `times` and `fits`
measure times; let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from benchmarks.uncertainty import laplace, tasks
from benchmarks.uncertainty.store import FOLDER, done


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.uncertainty", description=__doc__)
    parser.add_argument(
        "what", nargs="?", default="all", choices=["all", "times", "fits", "pictures", "page", "list"]
    )
    parser.add_argument("--quick", action="store_true", help="a few splits and epochs, in a temporary folder")
    parser.add_argument("--only", metavar="NAME", help="tasks whose name contains NAME, even if finished")
    parser.add_argument("--jobs", type=int, default=1, help="tasks at a time, each on one thread")
    args = parser.parse_args()
    if args.what in ("times", "fits"):
        from benchmarks.uncertainty import times

        times.main(args.what, args.quick)
    if args.what in ("pictures", "page"):
        from benchmarks.uncertainty import page, pictures

        {"pictures": pictures.main, "page": page.main}[args.what]()
    if args.what in ("times", "fits", "pictures", "page"):
        return
    folder = Path(tempfile.mkdtemp(prefix="uncertainty-")) if args.quick else FOLDER
    wanted = [t for t in tasks.names() if not args.only or args.only in t]
    if not wanted:
        parser.error(f"--only {args.only}: no such task; `list` names them all")
    if args.what == "list":
        print("\n".join(f"{'done' if done(t) else '-':5}{t}" for t in wanted))
        return
    left = [t for t in wanted if args.only or not done(t, folder)]
    if not laplace.AVAILABLE:
        print("laplace-torch is not installed: its row is left out; see benchmarks/uncertainty/laplace.py")
    print(f"{len(left)} of {len(wanted)} tasks to do, results in {folder}", flush=True)
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(tasks.timed, task, args.quick, folder) for task in left]
        for future in as_completed(running):
            task, seconds = future.result()
            print(f"{task}: {seconds:.0f} s", flush=True)
    if not args.quick and not args.only:
        from benchmarks.uncertainty import page, pictures

        pictures.main()
        page.main()


if __name__ == "__main__":
    main()
