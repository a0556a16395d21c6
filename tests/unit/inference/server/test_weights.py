from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentq.errors import ModelPackageMissing
from agentq.inference.server.embedding import runs
from agentq.inference.server.weights import built_once, default_cache_dir, package_folder


def test_a_missing_package_is_named_with_the_way_to_install_it() -> None:
    with pytest.raises(ModelPackageMissing, match=r"'no_such_package'.*: pip install it"):
        package_folder("no_such_package", install="pip install it")


def test_a_package_is_found_without_importing_it() -> None:
    assert (package_folder("pytest", install="") / "__init__.py").is_file()


def test_of_many_that_miss_a_file_one_builds_it(tmp_path: Path) -> None:
    together = threading.Barrier(4)
    built: list[Path] = []

    def build(target: Path) -> None:
        built.append(target)
        target.write_text("weights")

    def ask(_: int) -> Path:
        together.wait()
        return built_once(tmp_path, distribution="pytest", name="x.bin", build=build)

    with ThreadPoolExecutor(4) as threads:
        paths = set(threads.map(ask, range(4)))
    assert len(built) == 1
    assert [path.read_text() for path in paths] == ["weights"]


def test_a_build_that_fails_leaves_no_file_and_is_done_again(tmp_path: Path) -> None:
    def half(target: Path) -> None:
        target.write_text("half")
        raise OSError("disk full")

    def whole(target: Path) -> None:
        target.write_text("whole")

    with pytest.raises(OSError, match="disk full"):
        built_once(tmp_path, distribution="pytest", name="x.bin", build=half)
    path = built_once(tmp_path, distribution="pytest", name="x.bin", build=whole)
    assert path.read_text() == "whole"


def test_the_version_is_part_of_a_built_file_s_name(tmp_path: Path) -> None:
    path = built_once(tmp_path, distribution="pytest", name="x", build=Path.touch)
    assert path.name == f"pytest-{pytest.__version__}-x"


def test_the_cache_lies_where_the_user_s_caches_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_cache_dir() == tmp_path / "cache/agentq/models"


def test_texts_of_like_length_run_together_and_never_too_many_tokens() -> None:
    assert runs([5, 6, 6, 200, 210]) == [range(3), range(3, 5)]
    assert runs([250] * 9) == [range(4), range(4, 8), range(8, 9)]
    assert runs([]) == []
