"""What `pyproject.toml` cannot say: a wheel holds what the code reads beside its packages, in `pipelines/shipped`."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("recipes", "docs", "prefect.yaml")
"""What `pipelines.base.project.resource` finds."""


class BuildWithResources(build_py):
    """Copies files and folders of the source tree beside the packages; an editable install reads them where they are."""

    def run(self) -> None:
        """Build the packages, then add the rest."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "pipelines", "shipped")
        shutil.rmtree(target, ignore_errors=True)
        for name in SHIPPED:
            if Path(name).is_dir():
                shutil.copytree(name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(name, target / name)


setup(cmdclass={"build_py": BuildWithResources})
