"""Benchmarks through lm-eval, pass@k and friends, intervals, paired differences, plots."""
