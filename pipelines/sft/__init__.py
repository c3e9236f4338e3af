"""SFT: a supervised cold start on packed conversations, loss on the assistant's tokens."""
