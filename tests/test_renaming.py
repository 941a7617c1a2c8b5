"""Old public names work for one version, and say what they are called now."""

from importlib import import_module

import pytest

RENAMED = [
    ("fastdropout.functional", "expected_logit", "logit_of_expected"),
    ("fastdropout.functional", "mask", "sampled_dropout"),
    ("fastdropout.nn", "kl", "weight_noise_kl"),
    ("fastdropout.music.training", "Committee", "Ensemble"),
    ("fastdropout.moments", "moments", "unchecked_moments"),
]


@pytest.mark.parametrize(("module", "old", "new"), RENAMED, ids=lambda x: x)
def test_an_old_name_is_the_new_one_with_a_warning(module, old, new):
    room = import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is now {module}.{new}"):
        assert getattr(room, old) is getattr(room, new)
    if hasattr(room, "__all__"):
        assert new in room.__all__
        assert old not in room.__all__


def test_a_name_that_never_was_is_an_error():
    with pytest.raises(AttributeError, match=r"module 'fastdropout.nn' has no attribute 'kll'"):
        import_module("fastdropout.nn").kll  # noqa: B018
