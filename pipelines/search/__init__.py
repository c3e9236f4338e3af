"""Search at inference: several answers, or parts of answers, are drawn, scored, and one answer is given."""
