"""Music as numbers: corpora, piano rolls, MIDI, chunks and batches."""
