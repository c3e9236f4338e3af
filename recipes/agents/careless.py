"""Whom the model of `agent_endpoint.yaml` imitates at first: an expert who guesses, or calculates with whatever sign.

What it says depends on the conversation alone.
"""

import random


def answer(messages):
    """The assistant's next message."""
    if messages[-1]["role"] == "tool":
        return "done"
    question = messages[-1]["content"]
    choice = random.Random(question).choice(["+", "-", str(len(question))])
    if choice not in "+-":
        return choice
    return f'<tool_call>\n{{"name": "calculate", "arguments": {{"sign": "{choice}"}}}}\n</tool_call>'
