"""SFT: a supervised cold start on packed conversations, loss on what the assistant says."""
