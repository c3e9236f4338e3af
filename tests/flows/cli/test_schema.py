"""`whetstone schema` with a method of one's own."""

from __future__ import annotations

import json
import re

import pytest
import toys

PAGE = (toys.ROOT / "docs" / "plugins.md").read_text()


@pytest.mark.slow
def test_methods_of_a_plug_in_are_in_it(tmp_path):
    text = re.search(r"^```python\n# my_method.py\n(.*?)^```$", PAGE, re.M | re.S)[1]
    (tmp_path / "my_method.py").write_text(text)
    done = toys.whetstone("schema", "--plugin", str(tmp_path / "my_method.py"), home=tmp_path / "home")
    schema = json.loads(done.stdout)
    (name,) = re.findall(r'"rlvr.advantage": {"(\w+)"', text)
    assert schema["$defs"][f"rlvr.advantage.{name}"]["additionalProperties"] is False
    assert name in schema["$defs"]["name.rlvr.advantage"]["anyOf"][0]["enum"]
    assert "places" in schema["$defs"]["name.verifier"]["anyOf"][0]["enum"]
    shipped = json.loads((toys.ROOT / "docs" / "recipe.schema.json").read_text())
    assert schema["$defs"].keys() - shipped["$defs"].keys() == {f"rlvr.advantage.{name}"}


def test_a_plug_in_that_is_not_there(tmp_path):
    done = toys.whetstone("schema", "--plugin", "no.py", home=tmp_path / "home", check=False)
    assert done.returncode == 2 and "there is no file no.py" in done.stderr
