"""The catalogue of methods and presets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from whetstone_rlvr.errors import explained
from whetstone_rlvr.recipes import listed

if TYPE_CHECKING:
    import pandas as pd


@explained
def methods(slot: str | None = None, *, plugins: Iterable[str] = ()) -> pd.DataFrame:
    """The methods that recipes can name, as `whetstone methods` lists them: slot, name, title, paper, checked, reads, settings.

    Args:
        slot: of this slot only, such as `advantage`; `presets` lists the presets.
        plugins: files or modules of your own whose methods are listed too.

    Raises:
        UserError: there is no such slot or plug-in.

    >>> advantages = whetstone.methods("advantage")
    >>> advantages.set_index("name").loc["grpo", "paper"]
    '2402.03300'
    """
    import pandas as pd

    from flows.cli import catalogue
    from pipelines.base import plugins as known_plugins
    from pipelines.recipe.read import preset_names

    known_plugins.activate(listed(plugins))
    entries = [] if slot == "presets" else catalogue.entries(slot)
    rows = [entry | {"reads": entry["needs"]} for entry in entries]
    rows += [catalogue.preset(name) | {"settings": None} for name in preset_names() if slot in (None, "presets")]
    return pd.DataFrame(rows, columns=["slot", "name", "title", "paper", "checked", "reads", "settings"])
