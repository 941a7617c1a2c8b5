"""Estimators with the interface of scikit-learn, and error bars from one pass (extra `sklearn`)."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("fastdropout.sklearn needs scikit-learn: pip install 'fastdropout[sklearn]'") from error

from fastdropout.sklearn.classifier import FastDropoutClassifier
from fastdropout.sklearn.regressor import FastDropoutRegressor

__all__ = ["FastDropoutClassifier", "FastDropoutRegressor"]
