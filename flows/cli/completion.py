"""`whetstone completion`: the script with which a shell completes the command line."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("shell", choices=SHELLS, help='for bash, in ~/.bashrc: eval "$(whetstone completion bash)"')


def command(arguments: argparse.Namespace) -> int:
    """Print it."""
    import argcomplete

    print(argcomplete.shellcode(["whetstone"], use_defaults=False, shell=arguments.shell))
    return 0
