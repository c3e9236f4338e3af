"""`whetstone doctor`: what would fail, and how to fix it."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from packaging.version import Version

from pipelines.base import distribution
from pipelines.base.errors import UserError
from pipelines.base.files import free_bytes
from pipelines.base.project import ROOT, is_checkout, page
from pipelines.base.secrets import redact
from pipelines.recipe.read import Recipe, read_recipe
from pipelines.sandbox import SandboxError, isolation, levels
from tasks import environment, machine
from tasks.preflight import sandbox as preflight_sandbox


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    level: str
    """ok, warn or fail."""
    what: str
    fix: str = ""


def python() -> Finding:
    """The interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("ok" if sys.version_info >= (3, 11) else "fail", f"Python {version}", "use Python 3.11 or newer")


def project() -> Finding:
    """The code that runs."""
    return Finding("ok", f"{distribution.NAME} {distribution.version()}, {ROOT}")


def pins() -> list[Finding]:
    """Pairs of versions that are known to break."""
    findings = []
    for name, below, why in (
        ("fastapi", "0.151", "`prefect deploy` fails with it, and the Prefect 3 server from 0.155 on"),
        ("sqlalchemy", "2.1", "Prefect's scheduler stops silently with it"),
    ):
        have = importlib.metadata.version(name)
        bad = Version(have) >= Version(below)
        findings.append(
            Finding(
                "fail" if bad else "ok", f"{name} {have}" + (f": {why}" if bad else ""), f'pip install "{name}<{below}"'
            )
        )
    for name in ("torch", "transformers", "prefect", "mlflow", "lm_eval", "datasets", "peft", "reasoning-gym"):
        try:
            findings.append(Finding("ok", f"{name} {importlib.metadata.version(name)}"))
        except importlib.metadata.PackageNotFoundError:
            findings.append(Finding("fail", f"{name} is not installed", _reinstall()))
    return findings


def _reinstall() -> str:
    """How what the project needs is installed again."""
    return "make install" if is_checkout() else "install the project's wheel again, without --no-deps"


def device() -> Finding:
    """A GPU that torch cannot use is the commonest silent failure."""
    import torch

    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        return Finding("ok", f"GPU: {names}")
    if shutil.which("nvidia-smi"):
        fix = "make install TORCH=cuda" if is_checkout() else "pip install --force-reinstall torch"
        return Finding("fail", f"there is a GPU, and torch {torch.__version__} cannot use it", fix)
    return Finding("ok", f"CPU only, {os.cpu_count()} cores")


def bfloat16(flags: set[str] | None = None) -> Finding:
    """Without instructions for it, a CPU multiplies bfloat16 matrices more slowly than float32 ones.

    Args:
        flags: what the processor can do, in Linux's words; default: this one's.
    """
    import torch

    if torch.cuda.is_available():
        return Finding("ok", "bfloat16: on the GPU")
    flags = machine.cpu_flags() if flags is None else flags
    if not flags:
        return Finding("ok", "bfloat16: what this processor can do is not known")
    if flags & {"amx_bf16", "avx512_bf16", "bf16"}:
        return Finding("ok", "bfloat16: this processor has instructions for it")
    return Finding(
        "ok",
        "bfloat16: this processor has no instructions for it; model.dtype: float32 is faster here",
        "use model.dtype: float32 on this machine",
    )


def decoding() -> Finding:
    """On a GPU, vLLM can decode in the place of a stage's own processes."""
    if not machine.gpu_bytes():
        return Finding("ok", "decoding: in the stages' own processes; servers are for GPUs")
    where = page("servers")
    if shutil.which("vllm"):
        return Finding(
            "ok",
            f"decoding: vLLM is installed; `rlvr.sampler: {{serve: true}}` decodes with it, and `whetstone plan RECIPE --memory` "
            f"says how long ({where})",
        )
    return Finding(
        "ok", f"decoding: in the stages' own processes; there is no vllm on PATH, which could do it ({where})"
    )


def disk() -> Finding:
    """Room for checkpoints."""
    free = free_bytes(environment.home()) / 1e9
    inodes = machine.free_inodes(environment.home())
    files = "" if inodes is None else f", {inodes} more files"
    return Finding(
        "ok" if free > 5 and (inodes is None or inodes > 10_000) else "warn",
        f"{free:.0f} GB free under {environment.home()}{files}",
        "free space or set WHETSTONE_HOME",
    )


def memory() -> Finding:
    """What a control group leaves is what counts, and training needs 16 bytes a parameter before activations."""
    have = machine.memory_bytes()
    return Finding(
        "ok", f"memory {machine.gigabytes(have)}: trains at most {have / 16e9:.1f} billion parameters on the CPU"
    )


def sandbox() -> Finding:
    """What confines programs that a model writes; only recipes whose verifier runs code need it."""
    try:
        level = isolation.best()
    except SandboxError as error:
        return Finding("warn", str(error))
    if level == "namespaces":
        return Finding("ok", f"sandbox: namespaces, {levels.bubblewrap()}")
    return Finding("ok", f"sandbox: {level} (no namespaces: {isolation.trouble('namespaces')})")


def lent_sandbox(recipe: Recipe) -> list[Finding]:
    """Whether the server that a recipe's `sandbox` names answers, and runs programs as this machine would."""
    if isinstance(recipe.sandbox, str):
        return []
    faults = [Finding("fail", problem.problem, problem.fix) for problem in preflight_sandbox.problems(recipe, [])]
    return faults or [Finding("ok", f"sandbox of {recipe.name}: {recipe.sandbox.url}")]


def stores() -> Finding:
    """MLflow and Prefect, where the environment names servers."""
    try:
        environment.check_reachable()
    except UserError as error:
        return Finding("fail", str(error))
    where = environment.prefect_api() or "embedded"
    return Finding("ok", f"MLflow {redact(environment.tracking_uri())}, Prefect {where}")


def messages(recipe: Recipe) -> list[Finding]:
    """Whether what the section notify names can be reached; nothing is sent."""
    from tasks import notices

    if recipe.notify is None:
        return [Finding("ok", f"notify: {recipe.name} has no such section, so nobody is told of its runs")]
    unset = {channel.name for channel in notices.channels(recipe.notify) if channel.unset}
    findings = []
    for channel, fault in notices.reached(recipe.notify):
        if fault is None:
            findings.append(Finding("ok", f"notify, {channel}: reached; `whetstone notify` sends a test message"))
            continue
        fix = (
            "set it here and where `whetstone worker` starts"
            if channel in unset
            else "correct the section notify, or the variable"
        )
        findings.append(Finding("fail", f"notify, {channel}: {fault}", fix))
    return findings


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "recipe", nargs="?", help="a YAML file: also say whether its messages (notify) can be delivered"
    )
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field")


def command(arguments: argparse.Namespace) -> int:
    """Print every finding: exit code 1 where something would fail.

    Raises:
        UserError: the recipe cannot be read.
    """
    environment.prepare()
    checks: list[Callable[[], Finding | list[Finding]]] = [
        python,
        project,
        pins,
        device,
        bfloat16,
        memory,
        decoding,
        disk,
        sandbox,
        stores,
    ]
    if arguments.recipe:
        recipe = read_recipe(arguments.recipe, arguments.set)
        checks += [partial(lent_sandbox, recipe), partial(messages, recipe)]
    findings: list[Finding] = []
    for check in checks:
        outcome = check()
        findings += outcome if isinstance(outcome, list) else [outcome]
    for finding in findings:
        fix = f"  →  {finding.fix}" if finding.level != "ok" and finding.fix else ""
        print(f"{finding.level:<5} {finding.what}{fix}")
    return int(any(f.level == "fail" for f in findings))
