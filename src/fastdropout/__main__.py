"""The command `fastdropout`, also as `python -m fastdropout`; it needs the extra `music`."""

import os
import signal
import sys
from collections.abc import Callable

INTERRUPTED = 130


def main() -> int:
    """Run the command line, or say in one line what to install."""
    pressed = False

    def press(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    _mend_surroundings()
    signal.signal(signal.SIGINT, press)
    try:
        return _run(lambda: pressed)
    except BaseException:
        if pressed:  # During an import, where anything may have become of it.
            return INTERRUPTED
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # There is nothing left but to end.


def _run(interrupted: Callable[[], bool]) -> int:
    try:
        from fastdropout.music.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fastdropout"):
            raise
        print(
            f"fastdropout: the command needs the extra `music` (no module {error.name}): "
            'pip install "fastdropout[music]"',
            file=sys.stderr,
        )
        return 2
    return run(interrupted=interrupted)


def _mend_surroundings() -> None:
    """Give libraries what they take for granted: three open streams and a home."""
    # If one is closed, the next file that is opened gets its number, and what is printed goes into that file.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if os.path.expanduser("~") == "~":  # Neither $HOME nor an entry for this user.
        os.environ["HOME"] = os.devnull  # In which nobody, not even root, can make a folder.


if __name__ == "__main__":
    sys.exit(main())
