"""What several files of unit tests share: places of a node's journals, a folder of traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc.recovery import folders


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where journals lie in this test, in place of the machine's shared memory and temporary folder."""
    bases = [tmp_path / "shm" / "rankwise-7", tmp_path / "tmp" / "rankwise-7"]
    for base in bases:
        base.parent.mkdir()
    monkeypatch.setattr(folders, "_bases", lambda: bases)
    return bases


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def font_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """matplotlib keeps its list of fonts in the home folder, unless this variable names another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("matplotlib")))
        yield
