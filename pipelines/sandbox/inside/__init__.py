"""What runs inside the sandbox: standard library only, no import of the project. `zygote.py` is the entry point."""
