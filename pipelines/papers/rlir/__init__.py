"""RLIR: Reinforcement Learning with Inverse Rewards for World Model Post-training (arXiv 2509.23958).

Recipes: rlir. A model writes the boards that follow from actions (the environment `world_model`), and is paid for the actions that
its boards give away (the verifier `inverse_dynamics`). Rollouts, advantages and losses are the core's.
"""
