"""Sycophancy to Subterfuge: Investigating Reward-Tampering in Large Language Models (arXiv 2406.10162).

Recipes: reward_tampering. The environment `tampering`, a curriculum of tasks that can be gamed, and the rule `tampering`, which
watches a run.
"""
