"""`whetstone completion` in real shells: what Tab writes, and what is offered."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest
import toys

BASH = shutil.which("bash")
LINE = r"""
eval "$(whetstone completion bash)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
compopt() { :; }
_python_argcomplete whetstone
printf '%s\n' "${COMPREPLY[@]}"
"""
"""What bash does where Tab is pressed at the end of a line."""


@pytest.fixture
def place(tmp_path):
    """A folder with a command `whetstone`, recipes, and a project folder that has had one run."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "whetstone"
    command = f'"{sys.executable}" -P "{toys.ROOT}/whetstone_launcher.py" flows.cli.main'
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    (tmp_path / "mine.yaml").write_text("name: mine\nstages:\n  cold: {kind: sft}\n  warm: {kind: rlvr, init: cold}\n")
    (tmp_path / "home").mkdir()
    run = {"run_id": "c0ffee12", "name": "mine", "experiment": "mine", "status": "FINISHED", "started": 1.0}
    stages = {"cold": {}, "warm": {}}
    (tmp_path / "home" / "index.jsonl").write_text(json.dumps(run | {"summary": {"stages": stages}}) + "\n")
    return tmp_path


def environment(place) -> dict[str, str]:
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "WHETSTONE_HOME": str(place / "home"), "PS1": "$ ", "TERM": "dumb"}


def offered(place, line: str) -> list[str]:
    assert BASH is not None
    done = subprocess.run(
        [BASH, "--norc", "-c", LINE, "bash", line], capture_output=True, text=True, cwd=place, env=environment(place)
    )
    assert done.returncode == 0, done.stderr
    return sorted(word.rstrip() for word in done.stdout.splitlines() if word)


CASES = {
    "whetstone run recipes/gsm8k": ["recipes/gsm8k.yaml", "recipes/gsm8k_tiny.yaml"],
    "whetstone export c0ffee12/": ["c0ffee12/cold", "c0ffee12/warm"],
    "whetstone run mine.yaml --set sandbox=": ["auto", "limits_only"],  # bash has cut the word at `=`
    "whetstone run mine.yaml --only ": ["cold", "warm"],
    "whetstone runs --limit ": [],
}
"""Line → what is offered."""


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
@pytest.mark.parametrize("line", CASES)
def test_what_bash_is_offered(place, line):
    words = [word for word in offered(place, line) if not (word.startswith("--") and "--" not in line.split()[-1])]
    assert words == CASES[line]


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
def test_tab_completes_in_an_interactive_bash(place):
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(place)
        os.execvpe("bash", ["bash", "--norc", "-i"], environment(place))
    shown = b""

    def wait_for(text: bytes) -> None:
        nonlocal shown
        end = time.monotonic() + 30
        while text not in shown:
            assert time.monotonic() < end, shown
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 4096)

    try:
        os.write(terminal, b'eval "$(whetstone completion bash)"; echo rea""dy\n')
        wait_for(b"ready\r\n")
        shown = shown.rpartition(b"ready\r\n")[2]
        wait_for(b"$ ")  # before that, what is typed is not the shell's yet
        shown = b""
        os.write(terminal, b"whetstone pla\t")
        wait_for(b"plan ")
        os.write(terminal, b"min\t")
        wait_for(b"mine.yaml ")
        os.write(terminal, b"--set rlvr.ste\t")
        wait_for(b"rlvr.steps=")
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_the_script(place, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    asked = {
        "zsh": 'autoload -U compinit; compinit -u -D; eval "$(whetstone completion zsh)"; print $_comps[whetstone]',
        "fish": "whetstone completion fish | source; complete --do-complete 'whetstone pla'",
    }
    done = subprocess.run(
        [shell, "-c", asked[shell]], capture_output=True, text=True, cwd=place, env=environment(place)
    )
    assert done.stdout.split()[0] == {"zsh": "_python_argcomplete", "fish": "plan"}[shell], done.stderr
