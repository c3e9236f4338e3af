"""RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement Learning (arXiv 2504.20073).

Presets: starpo_s. The filter `starpo_s` and the environments `bandit` and `sokoban`; the echo trap that the paper names is watched by a
rule of the core.
"""
