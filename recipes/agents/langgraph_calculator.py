"""An agent of LangGraph with a calculator, as its documentation has it. Nothing in it knows of training.

The numbers are read from the task by the tool; the assistant says whether they are added or subtracted, and when it is done.
"""

import re
import sys

from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

task = sys.stdin.read()


def calculate(sign: str) -> str:
    """Adds (+) or subtracts (-) the two numbers of the task."""
    first, second = map(int, re.findall(r"\d+", task))
    if sign not in ("+", "-"):
        return "error: the sign is + or -"
    return str(first + second if sign == "+" else first - second)


agent = create_react_agent(ChatOpenAI(model="policy"), [calculate])
messages = agent.invoke({"messages": [("user", task)]}, {"recursion_limit": 12})["messages"]
results = [message.content for message in messages if isinstance(message, ToolMessage)]
print(results[-1] if results else messages[-1].content)
