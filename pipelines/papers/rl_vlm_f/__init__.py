"""RL-VLM-F: a reward model of single states, learned from a judge's comparisons of pictures."""
