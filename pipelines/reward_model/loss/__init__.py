"""How a reward model learns: one file a loss, called with columns of `REWARD_MODEL_COLUMNS`; each gives a value per pair or step."""
