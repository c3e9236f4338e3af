"""A remote training engine by the Tinker protocol: log-probabilities, gradients by one weight a token, optimizer steps, samples."""
