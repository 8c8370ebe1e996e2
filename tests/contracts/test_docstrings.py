"""Docstrings: on everything public, with shapes in rlkit.ops, and none starts with a question word."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from public_definitions import definitions

import rlkit

ROOT = Path(__file__).parents[2]
QUESTION_WORDS = {"what", "where", "whether", "how", "who", "when", "why"}
MODULES = ["rlkit", *(info.name for info in pkgutil.walk_packages(rlkit.__path__, "rlkit."))]


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith("__main__")])
def test_everything_public_has_a_docstring(module: str):
    assert importlib.import_module(module).__doc__, f"{module} has no docstring"
    missing = [name for name, member in definitions(module, methods=False) if not inspect.getdoc(member)]
    assert not missing, f"{module}: no docstring on {missing}"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("rlkit.ops.") and "._" not in name])
def test_ops_name_their_shapes(module: str):
    without = [name for name, member in definitions(module, methods=True) if "[" not in (inspect.getdoc(member) or "")]
    assert not without, f"{module}: no shape in the docstring of {without}"


@pytest.mark.parametrize("record", ["Agent", "Buffer", "Network", "Sample", "Transition"])
def test_help_on_a_record_describes_each_of_its_fields(record: str):
    cls = getattr(rlkit.types, record)
    text = inspect.getdoc(cls) or ""
    described = re.findall(r"^  (\w+): \S", text, re.MULTILINE)
    assert described == list(cls._fields)
    functions = [name for name, hint in cls.__annotations__.items() if "Callable[" in str(hint) and name != "parts"]
    assert [name for name in functions if not re.search(rf"^  {name}: .*->", text, re.MULTILINE)] == []


def questions(source: str) -> list[str]:
    """Line and first line of each docstring, of private definitions too, that starts with a question word."""
    matches = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            first_word = re.match(r"\W*([^\W_]*)", text)
            if first_word and first_word[1].lower() in QUESTION_WORDS:
                matches.append(f"{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
    return matches


@pytest.mark.parametrize("path", sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "rlkit").rglob("*.py")))
def test_docstrings_start_with_a_verb_or_a_noun(path: str):
    assert questions((ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ('"""What a module holds."""', 1),
        ('def _f():\n    """Whether it is so."""', 1),
        ('class A:\n    """`Where` rows go."""\n    async def f(self):\n        """How it works."""', 2),
        ('"""Whatever is written here."""\ndef f():\n    """True where it is so."""', 0),
    ],
)
def test_a_planted_question_is_reported(source: str, number: int):
    assert len(questions(source)) == number
