"""An agent as anybody would write one: it asks an OpenAI-compatible server, offers a calculator, and prints the answer.

Nothing in it knows of training. `OPENAI_BASE_URL` says which server it asks, and its task is its standard input. The numbers are
read from the task by the program; the assistant says whether they are added or subtracted, and when it is done.
"""

import json
import os
import re
import sys
from http.client import HTTPConnection
from urllib.parse import urlsplit

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Adds (+) or subtracts (-) the two numbers of the task.",
        "parameters": {"type": "object", "properties": {"sign": {"type": "string", "enum": ["+", "-"]}}},
    },
}
MOST_REQUESTS = 3


def ask(messages):
    """The assistant's next message."""
    server = urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = HTTPConnection(server.hostname, server.port)
    body = {"model": os.environ.get("OPENAI_MODEL", "policy"), "messages": messages, "tools": [CALCULATOR]}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    connection.request("POST", f"{server.path}/chat/completions", json.dumps(body), headers)
    return json.load(connection.getresponse())["choices"][0]["message"]


def calculate(task, arguments):
    """The result, or what is wrong with the call."""
    first, second = map(int, re.findall(r"\d+", task))
    sign = json.loads(arguments).get("sign")
    if sign not in ("+", "-"):
        return "error: the sign is + or -"
    return str(first + second if sign == "+" else first - second)


def main():
    """Ask, calculate what the assistant asks for, and print the last result once it is done, or else what it says."""
    task, result = sys.stdin.read(), None
    messages = [{"role": "user", "content": task}]
    for _ in range(MOST_REQUESTS):
        message = ask(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            result = calculate(task, call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    print(message["content"] if result is None else result)


if __name__ == "__main__":
    main()
