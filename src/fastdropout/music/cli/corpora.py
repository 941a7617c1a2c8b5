"""`data`: the corpora, and downloading one."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from fastdropout.errors import DataError
from fastdropout.music.cli import OK

app = App(
    name="data",
    help="List the corpora with statistics, or download one.",
    help_format="plaintext",
    version_flags=[],
)


@app.default
def list_corpora(*, data: Path | None = None) -> int:
    """List the corpora with statistics.

    Parameters
    ----------
    data
        folder of the canonical data sets [$FASTDROPOUT_DATA]
    """
    from rich.table import Table

    from fastdropout.music.cli.screen import console, counting
    from fastdropout.music.data.corpora import available

    with counting("reading") as count:
        rows = available(data, progress=count)
    table = Table("corpus", "split", "pieces", "frames", "longest", "notes", "silent", "keys")
    for row in rows:
        for split, s in row.statistics.items():
            table.add_row(
                row.name,
                split,
                str(s.pieces),
                str(s.frames),
                str(s.longest),
                f"{s.notes_per_frame:.2f}",
                f"{s.silent:.1%}",
                f"{s.lowest}-{s.highest}",
            )
    console.print(table)
    for row in rows:
        console.print(f"{row.name}: {row.problem or row.source}")
    return OK


@app.command
def get(name: str, /, *, data: Path | None = None, url: str | None = None) -> int:
    """Download the public file of a data set; an interrupted download is resumed.

    Parameters
    ----------
    name
        piano-midi, nottingham, musedata or jsb-chorales
    data
        folder to store it in [$FASTDROPOUT_DATA]
    url
        another address; the file must have the same hash
    """
    from fastdropout.music.cli.screen import console, counting
    from fastdropout.music.data.canonical import VARIABLE, data_folder
    from fastdropout.music.data.download import BASE_URL, fetch

    folder = data_folder(data)
    if folder is None:
        raise DataError(f"name the folder to put {name} into by --data DIR or ${VARIABLE}")
    with counting(f"getting {name}") as count:
        path = fetch(name, folder, base_url=BASE_URL if url is None else url, progress=count)
    console.print(f"{path}\nuse it: fastdropout train {name} --data {folder}")
    return OK
