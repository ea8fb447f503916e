"""Many members trained as one: the same learners, their networks side by side on one axis."""
