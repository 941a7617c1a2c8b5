"""Output layers: from the hidden moments to the distribution of a frame."""

from fastdropout.music.training.outputs.base import Loss, Output, Prediction
from fastdropout.music.training.outputs.gaussian import Gaussian
from fastdropout.music.training.outputs.notes import NADE, IndependentNotes

__all__ = ["NADE", "Gaussian", "IndependentNotes", "Loss", "Output", "Prediction"]
