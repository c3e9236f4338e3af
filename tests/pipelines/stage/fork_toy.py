"""What a fork is asked to do in tests: `python -m fork_toy WHAT`."""

import json
import os
import signal
import subprocess
import sys

BEFORE = sorted({"numpy", "torch", "json"} & sys.modules.keys())
THING = sys.argv[1] if len(sys.argv) > 1 else ""
if THING == "say":
    said = {"before": BEFORE, "input": sys.stdin.read(), "parent": os.environ["WHETSTONE_PARENT"], "name": __name__}
    print(json.dumps(said | {"toys": [name for name in sys.modules if name.startswith("pipelines")]}))
    print("to errors", file=sys.stderr)
elif THING == "exit":
    sys.exit(int(sys.argv[2]))
elif THING == "raise":
    raise ValueError("as said")
elif THING == "die":
    os.kill(os.getpid(), signal.SIGSEGV)
elif THING == "leave a child":
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid, flush=True)
elif THING == "wait":
    sys.stdin.read()
elif THING == "compute":
    import torch

    torch.manual_seed(0)
    weight = torch.randn(600, 600, requires_grad=True)
    (weight @ torch.randn(600, 600)).tanh().sum().backward()
    print(torch.get_num_threads(), f"{weight.grad.double().sum():.6f}")
