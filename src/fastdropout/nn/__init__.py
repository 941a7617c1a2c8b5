"""Modules: parameters and names; the maths is called, not repeated."""

from fastdropout.nn import init
from fastdropout.nn.activation import Identity, ReLU, Sequential, Sigmoid, Softmax, Tanh
from fastdropout.nn.cells import GRUCell, LSTMCell, RNNCell
from fastdropout.nn.layers import GRU, LSTM, RNN
from fastdropout.nn.linear import Dropout, Linear, NoisyLinear
from fastdropout.nn.nade import NADE
from fastdropout.nn.noise import weight_noise_kl
from fastdropout.nn.packed import PackedMoments, pad_packed_sequence
from fastdropout.renaming import renamed

__all__ = [
    "GRU",
    "LSTM",
    "NADE",
    "RNN",
    "Dropout",
    "GRUCell",
    "Identity",
    "LSTMCell",
    "Linear",
    "NoisyLinear",
    "PackedMoments",
    "RNNCell",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "init",
    "pad_packed_sequence",
    "weight_noise_kl",
]

__getattr__ = renamed(__name__, {"kl": "weight_noise_kl"})
