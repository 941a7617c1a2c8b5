"""`python -m fastdropout` is the command `fastdropout`."""

import sys

from fastdropout.cli import main

if __name__ == "__main__":
    sys.exit(main())
