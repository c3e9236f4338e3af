"""`whetstone serve`: a server with the model of a run that speaks the protocol of OpenAI."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from flows.cli.arguments import integer
from flows.cli.export import MODEL

ENGINES = ("vllm", "transformers")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("model", metavar="RUN[/STAGE]", help=MODEL)
    parser.add_argument("--engine", choices=ENGINES, help="default: vllm where it is installed, else transformers")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 lets other machines in (127.0.0.1)")
    parser.add_argument("--port", type=integer(1, 65535), default=8000, help="(8000)")
    parser.add_argument(
        "--options", default="", metavar="TEXT", help="more of the engine's own: --options='--max-model-len 4096'"
    )


def command(arguments: argparse.Namespace) -> int:
    """Become the server: this process is replaced by it, so that it ends as it would alone."""
    from flows.progress import Status
    from tasks.export import trained

    engine = _engine(arguments.engine)
    with Status() as progress:
        model = trained.find(arguments.model, progress)
    words = command_line(engine, model.folder, arguments.host, arguments.port, model.settings.trust_remote_code)
    shown = "localhost" if arguments.host in ("127.0.0.1", "0.0.0.0", "::") else arguments.host
    print(f"{model.artifact.name} at http://{shown}:{arguments.port}/v1, model {model.folder} (Ctrl-C ends it)")
    sys.stdout.flush()
    os.execv(words[0], [*words, *shlex.split(arguments.options)])


def command_line(engine: Path, folder: Path, host: str, port: int, trust_remote_code: bool) -> list[str]:
    """What is run.

    >>> " ".join(command_line(Path("/bin/vllm"), Path("m"), "127.0.0.1", 80, False))
    '/bin/vllm serve m --host 127.0.0.1 --port 80'
    """
    trust = ["--trust-remote-code"] if trust_remote_code else []
    return [str(engine), "serve", str(folder), "--host", host, "--port", str(port), *trust]


def _engine(wanted: str | None) -> Path:
    """The program.

    Raises:
        UserError: it is not installed, or lacks a package.
    """
    from pipelines.base.errors import UserError
    from pipelines.base.project import page

    for name in (wanted,) if wanted else ENGINES:
        beside = Path(sys.executable).with_name(str(name))
        program = shutil.which(str(name)) or (str(beside) if beside.is_file() else None)
        if program:
            if name == "transformers" and Path(program).parent == beside.parent and not find_spec("openai"):
                raise UserError(f"--engine {name}", "its server needs the package openai", "Run `pip install openai`.")
            return Path(program)
    how = (
        f"Install vLLM as {page('servers')} says." if wanted == "vllm" else "Run `pip install 'transformers[serving]'`."
    )
    raise UserError(f"--engine {wanted or ENGINES[-1]}", "there is no program of this name", how)
