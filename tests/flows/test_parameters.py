"""What the forms of flows offer."""

from __future__ import annotations

from flows import parameters


def test_a_form_explains_what_all_stages_flows_take():
    def flow(recipe: str) -> None:
        """Curate."""

    text = parameters.explained(flow).__doc__
    assert text.startswith("Curate.") and all(f"{name}: " in text for name in ("recipe", "overrides", "fresh"))
