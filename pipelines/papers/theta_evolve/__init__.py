"""ThetaEvolve: Test-time Learning on Open Problems (arXiv 2511.23473).

Presets: theta_evolve. The rollout `theta_evolve`, its database of programs, and the environment `circle_packing`.
"""
