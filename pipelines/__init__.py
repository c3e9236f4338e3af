"""What each stage computes: plain PyTorch, no orchestrator, no tracker."""
