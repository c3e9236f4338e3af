"""Latent reasoning: a policy whose thoughts are read again as mixtures of embeddings, trained by rewards.

A room of its own: with the other stages it shares records, verifiers, advantages, the loop and its commits. It has neither trajectories nor
their columns: a row of tokens does not say what such a policy has read. The package is a plug-in of one kind of stage, which only
recipes load that name it (`plugins: [pipelines.latent]`).
"""

PARTS = {"stages": {"latent_rl": "pipelines.latent.kinds:RL"}}
