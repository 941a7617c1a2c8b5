"""
MIDI files of your own
======================

A folder of MIDI files is a corpus: it is cut into frames, split into train, valid and test, and learned. Here
the files are small progressions of chords in all keys; put your own into the folder instead. The same on the
command line: ``fastdropout train FOLDER``, then ``fastdropout generate RUN -o song.mid``.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from fastdropout.music.data.midi import read_midi, write_midi
from fastdropout.music.training import generate, make_config, train

# %%
# Thirty pieces: four chords of a key, each broken upwards, twice.


def progression(key):
    """A piano roll, (frames, 88 keys): I, IV, V, I."""
    roll = np.zeros((64, 88), np.uint8)
    for frame in range(64):
        root = 27 + key + (0, 5, 7, 0)[frame // 8 % 4]
        roll[frame, root] = 1
        roll[frame, root + 12 + (0, 4, 7, 12)[frame // 2 % 4]] = 1
    return roll


with tempfile.TemporaryDirectory() as folder:
    for number in range(30):
        write_midi(progression(number % 12), Path(folder, f"{number:02}.mid"))
    options = {"hidden": 40, "nu": 10, "batch": 4, "epochs": 40, "lr": 0.002, "noise_hidden": 0.0}
    drops = {"drop_input": 0.05, "drop_hidden": 0.2, "drop_output": 0.2, "transpose": 3}
    run = train(make_config({"corpus": folder, **options, **drops}), out=Path(folder, "run"))
    print(f"{run.result.test.nll_per_step:.2f} nats per frame on the test pieces")

    # %%
    # A continuation of two chords that it was given, as a MIDI file again.
    opening = progression(3)[:16]
    song = generate(run.model(), 64, prime=opening, temperature=0.6, seed=1)
    write_midi(song, Path(folder, "song.mid"))
    again = read_midi(Path(folder, "song.mid"))

print(f"{again.sum() / len(again):.1f} notes a frame; the progressions have 2")
fig, axis = plt.subplots(figsize=(8, 3), layout="constrained")
axis.imshow(again.T, origin="lower", aspect="auto", cmap="Blues", interpolation="none")
axis.axvline(15.5, color="C1", linewidth=1)
axis.set_ylim(24, 62)
axis.set_xlabel("frame; the opening ends at the line")
axis.set_ylabel("key")
plt.show()
