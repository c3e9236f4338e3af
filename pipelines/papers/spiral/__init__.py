"""SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn Reinforcement Learning (arXiv 2506.24119).

Presets: spiral. The advantage `spiral` and the games `kuhn_poker` and `tic_tac_toe`, whose seats and opponents are those of game.py.
"""
