"""Sampling: completions of a model on problems, scored and kept, for selection, distillation and preference data."""
