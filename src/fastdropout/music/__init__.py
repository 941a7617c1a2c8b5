"""The paper's experiment on polyphonic music: data, training, study, models and the command line."""
