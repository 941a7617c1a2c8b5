"""Random search: spaces of options, trials on executors, a loop that owns the study, a report.

Words: a *trial* is one drawn configuration, a *job* asks for its training, and an *executor* runs jobs.
"""
