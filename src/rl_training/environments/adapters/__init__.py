"""Batched environments of other libraries as a `TensorEnv`; a module imports its library only when it is used."""
