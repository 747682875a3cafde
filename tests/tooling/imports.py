"""What a Python file imports, read from its syntax tree: nothing is executed."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "wsync_lab"


def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of the package."""
    return {dotted_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def dotted_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(path: Path) -> set[str]:
    """Absolute dotted names, those of ``from a import b`` as ``a`` and ``a.b``."""
    return {name for node in ast.walk(ast.parse(path.read_text())) for name in _names(node)}


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module, "relative imports hide the layer they reach into"
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and _is_import_call(node):
        yield from (str(part.value) for part in node.args[:1] if isinstance(part, ast.Constant))


def _is_import_call(node: ast.Call) -> bool:
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
    return name in ("import_module", "__import__")
