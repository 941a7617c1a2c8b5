"""The command without the extra `music`."""

import subprocess
import sys

BLOCK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cyclopts", "pydantic", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from fastdropout.__main__ import main
sys.exit(main())
"""


def test_without_the_extra_it_says_in_one_line_what_to_install():
    done = subprocess.run([sys.executable, "-c", BLOCK, "train"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert 'pip install "fastdropout[music]"' in done.stderr


def test_a_broken_install_of_our_own_is_not_hidden():
    code = BLOCK.replace('("cyclopts", "pydantic", "rich")', '("nothing",)').replace(
        "sys.meta_path.insert", "sys.modules['fastdropout.music.cli'] = None; sys.meta_path.insert"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in done.stderr
