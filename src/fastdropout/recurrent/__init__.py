"""The engine of the recurrent layers: layout of steps, reference, fused passes, sampling, kernel."""
