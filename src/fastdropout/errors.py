"""The few errors that a command prints as one line; everything else is a bug. And one warning."""


class FastdropoutError(Exception):
    """A mistake or a misfortune of the user's, told in one line that says what and what to do."""


class DataError(FastdropoutError):
    """A corpus, data file or MIDI folder that cannot be read."""


class ConfigError(FastdropoutError):
    """A configuration that cannot be used; names every fault at once."""


class RunError(FastdropoutError):
    """A run folder or checkpoint that cannot be read or resumed."""


class SlowPathWarning(UserWarning):
    """Results are right, but come more slowly than they could; says why, and what to do."""
