from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "benchmarks/mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_mutant_fits_the_sources_and_names_tests_that_are_there() -> None:
    mutants = script().read([], "")
    assert mutants
    for mutant in mutants:
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert mutant.changed(text) != text
        assert all((ROOT / test.split("::")[0]).exists() for test in mutant.tests)


def test_a_mutant_that_fits_no_more_is_refused_by_name() -> None:
    mutant = script().Mutant(room="a", name="b", file="c", old="x", new="y", tests=[])
    with pytest.raises(ValueError, match="a: 'b': `old` stands 2 times in c"):
        mutant.changed("xx")
