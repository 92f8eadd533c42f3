"""Build hook: compiles aiodist/_engine where there is a C compiler, and goes on where there is none.

Nothing is written into the clone. The extension goes into the wheel beside the package, also for an editable
installation, where `aiodist/_engine/__init__.py` looks for it.

AIODIST_BUILD_ENGINE: 'require' makes a failed build an error; '0' builds none; unset: as above.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("aiodist/_engine")


class EngineHook(BuildHookInterface[Any]):
    """Adds the compiled engine to a wheel."""

    _made: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say which files the wheel gets."""
        wanted = os.environ.get("AIODIST_BUILD_ENGINE", "").strip().lower()
        if wanted in ("0", "no", "off", "false"):
            return
        try:
            built = self._compile()
        except BaseException as error:  # setuptools ends a failed compilation by SystemExit
            if wanted == "require" or isinstance(error, KeyboardInterrupt):
                self._clear_away()
                raise
            self.app.display_warning(
                f"aiodist is installed without its compiled engine, and will be slower: {error}"
            )
            return
        added = "force_include_editable" if version == "editable" else "force_include"
        build_data[added] = dict(build_data.get(added, {})) | {
            str(path): str(SOURCES / path.name) for path in built
        }
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was made on the way."""
        self._clear_away()

    def _clear_away(self) -> None:
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)

    def _compile(self) -> list[Path]:
        import numpy as np
        from Cython.Build import cythonize
        from setuptools import Distribution, Extension
        from setuptools.command.build_ext import build_ext

        self._made = tempfile.mkdtemp(prefix="aiodist-engine-")
        source, made = Path(self.root) / SOURCES, Path(self._made)
        build = run_path(str(source / "fingerprint.py"))  # an import would write __pycache__
        extensions = [
            Extension(
                f"aiodist._engine.{path.stem}",
                [str(path)],
                include_dirs=[str(source), np.get_include()],
                define_macros=[
                    ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
                    ("NPY_TARGET_VERSION", "NPY_1_25_API_VERSION"),  # it runs with NumPy 1.25 and later
                    ("AIODIST_FINGERPRINT", f'"{build["fingerprint"](source)}"'),
                ],
                extra_compile_args=list(build["FLAGS"]),
                extra_link_args=["-fno-fast-math"],
            )
            for path in sorted(source.glob("*.pyx"))
        ]
        options = {"build_dir": made / "c", "include_path": [self.root], "quiet": True}
        command = build_ext(Distribution({"ext_modules": cythonize(extensions, **options)}))
        command.parallel = os.cpu_count()
        command.build_temp, command.build_lib = str(made / "o"), str(made / "lib")
        command.ensure_finalized()
        command.run()
        return [Path(path) for path in command.get_outputs()]
