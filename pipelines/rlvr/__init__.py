"""RLVR: reinforcement learning with verifiable rewards. Slots hold the methods, the loop knows none of them."""
