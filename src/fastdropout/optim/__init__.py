"""The paper's optimiser, and clipping by the norm."""

from torch.nn.utils import clip_grad_norm_

from fastdropout.optim.rmsprop import RMSprop

__all__ = ["RMSprop", "clip_grad_norm_"]
