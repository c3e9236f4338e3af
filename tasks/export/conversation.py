"""A model loaded to be talked to: of a run, of an artifact, or of any folder in Hugging Face's format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pipelines.base.errors import UserError
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from tasks.export import trained
from tasks.store.known import Known

if TYPE_CHECKING:
    from pipelines.engine.chat_model import ChatModel


def sampling_of(prefix: str = "--", **fields: Any) -> Sampling:
    """How replies are drawn.

    Args:
        prefix: of the options that the fields are set by.
        fields: of `Sampling`.

    Raises:
        UserError: names the option.
    """
    try:
        return Sampling(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0])
        option = option.replace("_", "-") if prefix else option
        raise UserError(f"{prefix}{option}", first["msg"], "Choose another value.") from None


def load(name: str, progress: Callable[[str], None] = lambda what: None) -> tuple[ChatModel, str | None]:
    """A model, and the system message that it was trained with; None without one.

    Args:
        name: as `trained.find` takes it, or a folder with a `config.json`.
        progress: called with what is being done.

    Raises:
        UserError: as `trained.find` does, or the model cannot be loaded.
    """
    folder, settings = place(name, progress)
    progress(f"loading {folder}")
    import transformers

    from pipelines.engine.chat_model import ChatModel
    from pipelines.engine.models import system_prompt_of

    transformers.utils.logging.disable_progress_bar()
    return ChatModel(str(folder), settings), system_prompt_of(folder)


def place(name: str, progress: Callable[[str], None]) -> tuple[Path, Model]:
    """The folder of a model, and how it is loaded; the same names and errors as for `load`."""
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file() and Known().by_name(name) is None:
        return folder, Model(path=str(folder.resolve()))
    model = trained.find(name, progress)
    return model.folder, model.settings
