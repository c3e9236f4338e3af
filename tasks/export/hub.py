"""A model into a repository of the Hugging Face hub, or of a server that speaks its protocol (`HF_ENDPOINT`)."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

from pipelines.base.errors import UserError
from pipelines.base.secrets import redact
from tasks.export import folder
from tasks.export.trained import Trained

CLIENTS = ("httpx", "httpx2", "requests")
"""Packages through which versions of huggingface_hub talk; their errors pass through it."""
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def push(
    model: Trained,
    repository: str,
    *,
    public: bool = False,
    licence: str | None = None,
    gguf: str | None = None,
    only_adapter: bool = False,
) -> str:
    """Upload the model as `tasks.export.folder` writes it, in one commit; returns its address.

    The token is that of `hf auth login` or of `HF_TOKEN`. Nothing is uploaded but what an export has: no logs, no folders of this
    machine.

    Args:
        repository: OWNER/NAME; made where it is not there, private unless `public`. One that is there stays as visible as it is.

    Raises:
        UserError: a name that no repository can have, no token, or the hub refuses or does not answer.
    """
    if not REPOSITORY.fullmatch(repository):
        raise UserError(repository, "a repository is OWNER/NAME, of letters, digits, '.', '_' and '-'", "Name it so.")
    folder.check(model, gguf, only_adapter=only_adapter)  # before the repository is made
    hub = HfApi()
    try:
        address = str(hub.create_repo(repository, private=not public, exist_ok=True))
        with tempfile.TemporaryDirectory(prefix="whetstone-") as scrap:
            to = Path(scrap) / "model"
            folder.write(model, to, name=repository, licence=licence, gguf=gguf, only_adapter=only_adapter)
            message = f"{model.artifact.name} of the recipe {model.recipe}"
            hub.upload_folder(repo_id=repository, folder_path=to, commit_message=redact(message))
    except UserError:
        raise
    except LocalTokenNotFoundError:
        raise UserError(repository, "the hub asks who you are", "Run `hf auth login`, or set HF_TOKEN.") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        fix = (
            "Run `hf auth login` with a token that may write there, or set HF_TOKEN."
            if status in (401, 403)
            else "Check the name and HF_ENDPOINT, and try again; the upload goes on where it stopped."
        )
        raise UserError(repository, f"{hub.endpoint} refuses it ({redact(str(error).splitlines()[0])})", fix) from None
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in CLIENTS:
            raise
        raise UserError(
            repository, f"{hub.endpoint} does not answer ({redact(error)})", "Check HF_ENDPOINT and the network."
        ) from None
    return address
