"""The four data sets of the paper in their canonical splits, read from a folder of the user's.

They are not shipped: the licence of MuseData forbids it, the others state none. A folder may hold each
of them as `.npz` (the layout of `rolls.pack`), as the public `.mat` file or as the original `.pickle`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from fastdropout.errors import DataError
from fastdropout.music.data.matlab import read_mat
from fastdropout.music.data.npz import load_arrays, read_bytes
from fastdropout.music.data.pickles import read_pickle
from fastdropout.music.data.rolls import Corpus, unpack

VARIABLE = "FASTDROPOUT_DATA"


@dataclass(frozen=True)
class Canonical:
    """The files a data set is known by, and the hashes that tell the real ones."""

    npz: str
    npz_sha256: str
    mat: str
    mat_sha256: str
    pickle: str
    content_sha256: str
    """`Corpus.sha256` of the pieces: equal for the three kinds of files."""

    @property
    def files(self) -> tuple[str, str, str]:
        """The names of the files, the preferred one first."""
        return self.npz, self.mat, self.pickle


CANONICAL = {
    "piano-midi": Canonical(
        "piano-midi.npz",
        "d8491ac47ac5173adc05d35d11bb969552c0162af3f47993452909c3ea26e7dc",
        "Piano_midi.mat",
        "990a8a71d5764a7eaa3e78d9e5023d1470380fe2db3a1448265a97a24c8b1c34",
        "Piano-midi.de.pickle",
        "ffa1b38874557a2f37ef372ffc850916903dc6f2ea86952cf6d32ef1f8ce9607",
    ),
    "nottingham": Canonical(
        "nottingham.npz",
        "7fa81a0317fbd43c2444d4c378ed71c7fd2f5e8e3b882b171d71e6437e78f85f",
        "Nottingham.mat",
        "d154f7ca2e90799dc1dc011d8fc048f2fc6ef3f7c69d974b9cf27a471634fbea",
        "Nottingham.pickle",
        "24e0032ab9d0b06b4b6c68ab29bc51d63d29f2531bbb4269553ee0eee0ac0de8",
    ),
    "musedata": Canonical(
        "musedata.npz",
        "94c34fc28cede0f063d45f1f78759cbe262eb957e713a06125a57e86d8d26275",
        "MuseData.mat",
        "e8d9eb422ec3833c25f43a9f854d4ee0b9118a20b45f2c183395cdc30ffa14ff",
        "MuseData.pickle",
        "c0cbb4aa6d88364302ec9b2bbb8cea7d5ccf80c6ce4b9586fe1959ca060bebef",
    ),
    "jsb-chorales": Canonical(
        "jsb-chorales.npz",
        "0d0725369b872e4666b8a45baf54bb924f739aab954821c0bd2f280758734acf",
        "JSB_Chorales.mat",
        "ac0e608527cc411c7e21ef7d38be47f0de7fb6b13b3ae168b8eccf1c2a9b18d4",
        "JSB Chorales.pickle",
        "6b092cb99900307b6bcf39bb51861ba30740184fd4b156bad8472fb5fa2936eb",
    ),
}


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder given, else that of `$FASTDROPOUT_DATA`, else None."""
    chosen = data_dir if data_dir is not None else os.environ.get(VARIABLE) or None
    return None if chosen is None else Path(os.path.expanduser(chosen))


def find(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The file that holds the data set `name`; a `DataError` says where it was looked for."""
    entry, folder = CANONICAL[name], data_folder(data_dir)
    if folder is None:
        raise DataError(f"{name} is not shipped: name its folder by --data DIR or ${VARIABLE}")
    if not os.path.isdir(folder):
        raise DataError(f"{folder}: no such folder (from --data DIR or ${VARIABLE}) to read {name} from")
    for file in entry.files:
        if os.path.isfile(folder / file):
            return folder / file
    wanted = " or ".join(repr(file) for file in entry.files)
    raise DataError(f"{folder} (from --data DIR or ${VARIABLE}) does not hold {name}: it needs {wanted}")


def load_canonical(
    name: str, data_dir: str | os.PathLike[str] | None = None, *, verify: bool = True
) -> Corpus:
    """Read one of the four data sets; anything but the canonical content is refused unless `verify=False`.

    An `.npz` or `.mat` file is compared by its hash before it is parsed; a pickle, of which several
    editions with the same content exist, by the hash of its pieces.
    """
    path = find(name, data_dir)
    entry = CANONICAL[name]
    data = read_bytes(path)
    if verify and path.suffix != ".pickle":
        expected = entry.npz_sha256 if path.suffix == ".npz" else entry.mat_sha256
        _compare(path, expected, hashlib.sha256(data).hexdigest())
    what = str(path)
    if path.suffix == ".npz":
        splits = unpack(load_arrays(data, what), what)
    elif path.suffix == ".mat":
        splits = read_mat(data, what)
    else:
        splits = read_pickle(data, what)
    corpus = Corpus(name, splits, source=what)
    if verify:
        _compare(path, entry.content_sha256, corpus.sha256)
    return corpus


def _compare(path: Path, expected: str, got: str) -> None:
    if got != expected:
        raise DataError(
            f"{path}: not the canonical data set, its sha256 must be {expected}, got {got}; "
            "get the file again, or load it with verify=False if it is meant to differ"
        )
