"""The container image, checked line by line, since a builder is not everywhere: instructions, sources, versions, shell, user."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib

import pytest
import toys

FILE = toys.ROOT / "Containerfile"
KNOWN = ["ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "RUN", "USER", "VOLUME", "WORKDIR"]


def instructions() -> list[tuple[str, str]]:
    """Instruction and what stands behind it, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(), flags=re.M).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def stages() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Stage → what it is from, and its instructions."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            base, name = rest.split(" AS ")
            found[name] = (base, [])
        elif found:
            found[name][1].append((word, rest))
    return found


def chain(name: str) -> list[tuple[str, str]]:
    """The instructions of a stage and of those that it is from, in order."""
    base, own = stages()[name]
    return [*(chain(base) if base in stages() else []), *own]


def makefile(name: str) -> str:
    return re.search(rf"^{name}\s*[:?]?= (\S+)$", (toys.ROOT / "Makefile").read_text(), re.M)[1]


def arguments() -> dict[str, str]:
    return dict(rest.split("=", 1) for word, rest in instructions() if word == "ARG")


def test_every_instruction_is_one_and_every_argument_is_used():
    assert {word for word, _ in instructions()} <= set(KNOWN)
    text = FILE.read_text()
    assert all(f"${{{name}}}" in text for name in arguments())
    told = {
        *arguments(),
        *(pair.split("=")[0] for word, rest in instructions() if word == "ENV" for pair in rest.split()),
    }
    assert set(re.findall(r"\$\{(\w+)\}", text)) <= told


def test_versions_are_those_of_the_project():
    project = tomllib.loads((toys.ROOT / "pyproject.toml").read_text())["project"]
    assert arguments()["TORCH_VERSION"] == makefile("TORCH_VERSION")
    assert arguments()["TORCH_CPU_INDEX"] == makefile("TORCH_CPU_INDEX")
    assert f"torch=={arguments()['TORCH_VERSION']}\n" in (toys.ROOT / "constraints.txt").read_text()
    assert f"Programming Language :: Python :: {arguments()['PYTHON']}" in project["classifiers"]
    bases = {name: base.rpartition("/")[2] for name, (base, _) in stages().items() if base not in stages()}
    # what has no wheel is compiled in the larger one; both are one Debian with Python at one place
    assert bases == {"build": "python:${PYTHON}-bookworm", "base": "python:${PYTHON}-slim-bookworm"}


def test_what_is_copied_is_there_and_the_package_is_whole():
    tracked = set(subprocess.run(["git", "ls-files"], cwd=toys.ROOT, capture_output=True, text=True).stdout.split("\n"))
    copied = set()
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from="):
            *sources, target = rest.split()
            copied.update(sources)
            assert target == "./" or sources == [target], rest
    if tracked != {""}:  # a checkout
        for source in copied:
            assert any(name == source or name.startswith(f"{source}/") for name in tracked), source
    body = tomllib.loads((toys.ROOT / "pyproject.toml").read_text())
    packages = {name.removesuffix("*") for name in body["tool"]["setuptools"]["packages"]["find"]["include"]}
    modules = {f"{name}.py" for name in body["tool"]["setuptools"]["py-modules"]}
    shipped = set(
        re.search(r"^SHIPPED = \((.*)\)", (toys.ROOT / "setup.py").read_text(), re.M)[1].replace('"', "").split(", ")
    )
    assert copied >= packages | modules | shipped | {"pyproject.toml", "setup.py", "README.md", "constraints.txt"}
    ignored = (toys.ROOT / ".containerignore").read_text().split("\n")
    assert not copied & set(ignored) and (toys.ROOT / ".dockerignore").read_text().split("\n") == ignored


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_the_shell_understands_every_command():
    commands = [rest for word, rest in instructions() if word == "RUN"]
    assert commands
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_an_image_has_the_environment_and_no_build_tools(target):
    whole = chain(target)
    assert [rest for word, rest in whole if word == "USER"] == ["whetstone"]
    assert [json.loads(rest) for word, rest in whole if word == "ENTRYPOINT"] == [["whetstone"]]
    assert ("VOLUME", "/project") in whole and ("WORKDIR", "/project") in whole
    assert not any("pip" in rest or "apt" in rest for word, rest in whole if word == "RUN")
    assert [rest for word, rest in whole if word == "COPY"] == [f"--from=build-{target} /opt/whetstone /opt/whetstone"]
    installs = [rest for word, rest in chain(f"build-{target}") if word == "RUN" and "pip install" in rest]
    torch, project = installs
    assert ("+cpu" in torch and "TORCH_CPU_INDEX" in torch) == (target == "cpu")
    assert project.endswith('install -c constraints.txt ".[sandbox,serve]"')


def test_make_image_says_what_is_missing():
    done = subprocess.run(["make", "image", "IMAGE_BUILDER="], cwd=toys.ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "needs podman, buildah or docker" in done.stderr
    done = subprocess.run(["make", "image", "IMAGE_BUILDER=false"], cwd=toys.ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "`false info` fails" in done.stderr
    told = subprocess.run(
        ["make", "--dry-run", "image", "TORCH=cuda", "IMAGE_BUILDER=podman"],
        cwd=toys.ROOT,
        capture_output=True,
        text=True,
    ).stdout
    assert '"podman" build --file Containerfile --target cuda --tag whetstone:cuda' in told
