"""What runs inside vLLM's own processes, in its environment: no import of ours."""
