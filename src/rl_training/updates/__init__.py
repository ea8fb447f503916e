"""Gradient updates: eager, compiled or captured, of one learner or of a stack of learners."""
