"""The command `fastdropout`, also as `python -m fastdropout`; it needs the extra `music`."""

import sys


def main() -> int:
    """Run the command line, or say in one line what to install."""
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
    return run()


if __name__ == "__main__":
    sys.exit(main())
