"""`whetstone chat`: a conversation with the model of a run, through its own chat template."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from flows.cli.arguments import integer
from flows.cli.export import MODEL

PROMPT = "> "
AGAIN = "/new"
"""Begins a new conversation."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        f"{parser.description}; a line is a message, {AGAIN} begins anew, and the end of the input (Ctrl-D) ends it"
    )
    parser.add_argument("model", metavar="RUN[/STAGE]", help=MODEL)
    parser.add_argument(
        "--system", metavar="TEXT", help="a system message; default: the one that the model was trained with"
    )
    parser.add_argument("--temperature", type=float, default=0.7, help="0 is greedy (0.7)")
    parser.add_argument("--top-p", type=float, default=1.0, help="(1.0)")
    parser.add_argument("--max-tokens", type=integer(1), default=512, help="of a reply (512)")
    parser.add_argument("--seed", type=integer(0), default=0, help="of the draws (0)")


def command(arguments: argparse.Namespace) -> int:
    """Load the model, and answer line after line."""
    from flows.progress import Status
    from tasks.export import conversation

    sampling = conversation.sampling_of(
        temperature=arguments.temperature, top_p=arguments.top_p, max_tokens=arguments.max_tokens
    )
    with Status() as progress:
        speaker, trained_with = conversation.load(arguments.model, progress)
    system = arguments.system if arguments.system is not None else trained_with
    converse(speaker, sampling, system, arguments.seed)
    return 0


def converse(speaker: Any, sampling: Any, system: str | None, seed: int) -> None:
    """Answer each line of standard input; earlier lines and replies are part of the conversation."""
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    for number, line in enumerate(_lines()):
        if line == AGAIN:
            messages = list(start)
            continue
        messages.append({"role": "user", "content": line})
        reply = ""
        for piece in speaker.stream(messages, sampling, seed + number):
            reply += piece
            print(piece, end="", flush=True)
        print(flush=True)
        if not reply:
            print(
                f"(the model said nothing; where the conversation is too long for it, {AGAIN} begins anew)",
                file=sys.stderr,
            )
        messages.append({"role": "assistant", "content": reply})


def _lines() -> Iterator[str]:
    """Lines of the input that are not empty, with a prompt where somebody types them."""
    while True:
        if sys.stdin.isatty():
            try:
                line = input(PROMPT)
            except EOFError:
                print()
                return
        else:
            line = sys.stdin.readline()
            if not line:
                return
        if line.strip():
            yield line.strip()
