"""Write the generated pages into a folder: `python -m scripts.docs [FOLDER]`; the folder is docs unless given.

Into docs it also brings the first defaults of new fields into the record that keys are made with.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from pipelines.recipe import json_schema, shipped
from scripts.docs import api, claims, columns, coming_from, methods, settings, systems
from tasks.keys import sections

PAGES = {
    "api.md": api.markdown,
    "methods.md": methods.markdown,
    "columns.md": columns.markdown,
    "coming-from.md": coming_from.markdown,
    "systems.md": systems.markdown,
    "claims.md": claims.markdown,
    "settings.md": settings.markdown,
    shipped.SCHEMA.name: json_schema.text,
} | {coming_from.file_name(name): partial(coming_from.markdown, name) for name in coming_from.ABOUT}
"""File → what makes its text."""

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    for name, text in PAGES.items():
        (folder / name).write_text(text())
    if len(sys.argv) == 1:
        sections.RECORD.write_text(json.dumps(sections.first_defaults(), indent=1, sort_keys=True) + "\n")
