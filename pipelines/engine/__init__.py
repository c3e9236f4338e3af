"""One set of weights that samples and is trained: distribution, cache, sampler, policy, checkpoints."""
