"""The house rules: what a reviewer would otherwise have to say twice. tests/test_house_rules.py runs them.

Each rule is a function that is shown one file and names its breaches. Complexity (at most 12) is ruff's C901 to check.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parent.parent

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80
MAX_PARAMETERS = 8
MAX_LINES_OF = {"src/endstop/_agent.py": 300, "src/endstop/cli.py": 400, "README.md": 149}
README_FIRST_PYTHON_BY_LINE = 30
MIN_REASON_LENGTH = 10

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Breach: TypeAlias = tuple[str, str]
"""Where in the file (a qualified name, or a line), and what is wrong there."""


@dataclass(frozen=True)
class File:
    """One file of the tree as the rules see it."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def comments(self) -> dict[int, str]:
        """Line number -> the comment on it."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}

    @cached_property
    def scopes(self) -> list[tuple[str, ast.AST, ast.AST]]:
        """Every node below the module with its parent and the qualified name of what encloses it, outermost first."""
        found: list[tuple[str, ast.AST, ast.AST]] = []

        def visit(parent: ast.AST, scope: str) -> None:
            for node in ast.iter_child_nodes(parent):
                found.append((scope, parent, node))
                named = isinstance(node, FunctionNode | ast.ClassDef)
                visit(node, f"{scope}.{node.name}".lstrip(".") if named else scope)

        visit(self.tree, "")
        return found

    @cached_property
    def functions(self) -> list[tuple[str, ast.AST, FunctionNode]]:
        """Qualified name, parent and node of every function."""
        return [
            (f"{scope}.{node.name}".lstrip("."), parent, node)
            for scope, parent, node in self.scopes
            if isinstance(node, FunctionNode)
        ]

    @cached_property
    def public_functions(self) -> list[tuple[str, FunctionNode]]:
        """Functions and methods that users may call."""
        return [(name, node) for name, _, node in self.functions if self.is_public(name)]

    def is_public(self, name: str) -> bool:
        """Whether users see this: not private, not local, and exported where its module is private."""
        exported = is_public_name(Path(self.path).stem) or name.partition(".")[0] in public_names()
        return (
            exported
            and all(is_public_name(part) for part in name.split("."))
            and not self.is_local(name.rpartition(".")[0])
        )

    def is_local(self, scope: str) -> bool:
        """Whether what has this scope stands inside a function."""
        return any(f"{scope}.".startswith(f"{name}.") for name, _, _ in self.functions)


def is_public_name(name: str) -> bool:
    """Whether a name is for others: not underscored, or a special method."""
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


# --- the rules -----------------------------------------------------------------------------------------------------


def files_are_short(file: File) -> Iterator[Breach]:
    limit = MAX_LINES_OF.get(file.path, MAX_FILE_LINES)
    if len(file.lines) > limit:
        yield "", f"{len(file.lines)} lines, at most {limit}"


def functions_are_short(file: File) -> Iterator[Breach]:
    for name, _, node in file.functions:
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield name, f"{length} lines, at most {MAX_FUNCTION_LINES}"


def parameters_are_few(file: File) -> Iterator[Breach]:
    for name, parent, node in file.functions:
        count = len(all_parameters(node)) - (isinstance(parent, ast.ClassDef) and not is_static(node))
        if count > MAX_PARAMETERS:
            yield name, f"{count} parameters, at most {MAX_PARAMETERS}"


HISTORY = re.compile(
    r"""(?ix) \#\d+\b | \b(issue|ticket|bug|pull\ request|PR|GH)[\ -]?\#?\d+ | \bv\d+\.\d | \bsince\ v?\d+\.\d
    | \bversion\ \d+\.\d | \b(TODO|FIXME|XXX|HACK)\b"""
)


def comments_tell_no_history(file: File) -> Iterator[Breach]:
    for line, text in [*file.comments.items(), *docstrings(file)]:
        if match := HISTORY.search(text):
            yield f"line {line}", f"names {match.group()!r}: say what holds now; history belongs in the changelog"


def imports_stand_at_the_top(file: File) -> Iterator[Breach]:
    for scope, _, node in file.scopes:
        if isinstance(node, ast.Import | ast.ImportFrom) and file.is_local(scope):
            for module in imported_modules(node):
                if not needs_an_extra(module):
                    yield scope, f"imports {module} inside a function; only what an extra brings may wait"


def kernel_does_not_import_the_package_root(file: File) -> Iterator[Breach]:
    if re.match(r"src/endstop/(?!cli|demo/|testing/)", file.path):
        for scope, _, node in file.scopes:
            if isinstance(node, ast.Import | ast.ImportFrom) and "endstop" in imported_modules(node):
                yield scope, "imports from endstop itself, which imports this module: a cycle"


def public_functions_name_their_arguments(file: File) -> Iterator[Breach]:
    for name, node in file.public_functions:
        keywords = node.args.kwarg
        if keywords and not (isinstance(keywords.annotation, ast.Attribute) and keywords.annotation.attr == "kwargs"):
            yield name, f"takes **{keywords.arg}; a ParamSpec's kwargs are the one exception"


def no_broad_except(file: File) -> Iterator[Breach]:
    for scope, _, node in file.scopes:
        if isinstance(node, ast.ExceptHandler):
            names = {"BaseException"} if node.type is None else names_in(node.type)
            reraises = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if "Exception" in names or ("BaseException" in names and not reraises):
                yield scope, f"catches everything at line {node.lineno}: catch what you can handle"
        elif isinstance(node, ast.Call) and "suppress" in names_in(node.func):
            for argument in node.args:
                if names_in(argument) & {"Exception", "BaseException"}:
                    yield scope, f"suppresses everything at line {node.lineno}: name what may be lost"


def public_signatures_have_no_any(file: File) -> Iterator[Breach]:
    for name, node in file.public_functions:
        annotations = [argument.annotation for argument in all_parameters(node)] + [node.returns]
        if any("Any" in names_in(annotation) for annotation in annotations if annotation):
            yield name, "has Any in its signature: say `object`, a type variable or the type"
    for scope, parent, node in file.scopes:
        if isinstance(parent, ast.ClassDef) and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = f"{scope}.{node.target.id}"
            if file.is_public(name) and "Any" in names_in(node.annotation):
                yield name, "is a public field of type Any"


ESCAPE = re.compile(
    r"type:\s*ignore(?P<mypy>\[[\w, -]+\])? | pyright:\s*ignore(?P<pyright>\[\w+(,\s*\w+)*\])?"
    r" | noqa(?P<ruff>:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*)? | pragma:\s*no\s*(?P<coverage>cover|branch)",
    re.VERBOSE,
)


def escapes_say_why(file: File) -> Iterator[Breach]:
    for line, comment in file.comments.items():
        for match in ESCAPE.finditer(comment):
            if not any(match.groupdict().values()):
                yield f"line {line}", f"{match.group()!r} names no code"
            if not is_reason(ESCAPE.sub("", comment)):
                yield f"line {line}", f"{match.group()!r} gives no reason on the line"
    for line, last_line in casts(file):
        if not any(is_reason(file.comments.get(number, "")) for number in range(line, last_line + 1)):
            yield f"line {line}", "casts without a reason on the line"


def records_are_frozen_slotted_keyword_only(file: File) -> Iterator[Breach]:
    for scope, _, node in file.scopes:
        if isinstance(node, ast.ClassDef) and is_public_name(node.name):
            for decorator in node.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                missing = {"frozen", "slots", "kw_only"} - true_keywords(decorator)
                if "dataclass" in names_in(called) and missing:
                    yield f"{scope}.{node.name}".lstrip("."), f"is a dataclass without {', '.join(sorted(missing))}"


def nothing_names_this_machine(file: File) -> Iterator[Breach]:
    for line, text in enumerate(file.lines, start=1):
        if match := MACHINE_PATH.search(text) or REGISTRY_HOST.search(text):
            yield f"line {line}", f"names {match.group()!r}"


MACHINE_PATH = re.compile(r"(?<![\w.~$}/])/(?:work|root|home|Users|opt|mnt)/[\w.]|file:///\w|\b[A-Z]:\\Users")
# Written in pieces, so that this file may name them.
REGISTRIES = ("pypi org", "pythonhosted org", "npmjs org", "npmjs com", "crates io", "anaconda org", "deb debian org")
REGISTRY_HOST = re.compile(r"^--(?:extra-)?index-url|" + "|".join(host.replace(" ", r"\.") for host in REGISTRIES))


def readme_shows_python_early(file: File) -> Iterator[Breach]:
    if file.path == "README.md":
        first = next((number for number, line in enumerate(file.lines, start=1) if line.startswith("```python")), None)
        if first is None or first > README_FIRST_PYTHON_BY_LINE:
            yield "", f"shows its first Python at line {first}, at the latest {README_FIRST_PYTHON_BY_LINE}"


# --- what the rules ask -----------------------------------------------------------------------------------------------


def all_parameters(node: FunctionNode) -> list[ast.arg]:
    arguments = node.args
    variadic = [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *variadic]


def is_static(node: FunctionNode) -> bool:
    return any("staticmethod" in names_in(decorator) for decorator in node.decorator_list)


def names_in(node: ast.AST) -> set[str]:
    """Every name inside an expression, annotations written as strings included."""
    found: set[str] = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.Constant(value=str(text)) if text.strip():
                try:
                    found |= names_in(ast.parse(text.strip(), mode="eval"))
                except SyntaxError:
                    continue
    return found


def docstrings(file: File) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring: also those that stand below a constant."""
    for _, _, node in file.scopes:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def casts(file: File) -> Iterator[tuple[int, int]]:
    """First and last line of each statement that casts; of a statement with a body, those of the cast alone."""
    for _, _, node in file.scopes:
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            if any(is_cast(inner) for inner in ast.walk(node)):
                yield node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.stmt):
            for expression in ast.iter_child_nodes(node):
                for inner in ast.walk(expression) if isinstance(expression, ast.expr) else ():
                    if isinstance(inner, ast.Call) and is_cast(inner):
                        yield inner.lineno, inner.end_lineno or inner.lineno


def is_cast(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("cast", "typing.cast")


def imported_modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]


def true_keywords(decorator: ast.expr) -> set[str | None]:
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    return {k.arg for k in keywords if isinstance(k.value, ast.Constant) and k.value.value is True}


def is_reason(comment: str) -> bool:
    return len(re.sub(r"[^A-Za-z ]", "", comment).strip()) >= MIN_REASON_LENGTH


@cache
def extra_packages() -> frozenset[str]:
    """The import names of what the extras bring, read from pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    requirements = [re.split(r"[^\w-]", requirement)[0] for extra in extras.values() for requirement in extra]
    return frozenset(name.replace("-", "_") for name in requirements) - {"endstop"}


@cache
def needs_an_extra(module: str) -> bool:
    """Whether a module belongs to an extra: a package of one, or a module of ours that imports one at its top."""
    top = module.partition(".")[0]
    if top != "endstop":
        return top in extra_packages()
    path = ROOT / "src" / Path(*module.split("."))
    source = next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)
    if module == "endstop" or source is None:
        return False
    statements = ast.walk(ast.parse(source.read_text(encoding="utf-8")))
    imports = [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom) and node.col_offset == 0]
    return any(needs_an_extra(name) for node in imports for name in imported_modules(node) if name != module)


# --- the whole -----------------------------------------------------------------------------------------------------

Rule: TypeAlias = Callable[[File], Iterable[Breach]]

SOURCE, PYTHON, ANYTHING = r"src/.*\.py", r".*\.py", r".*"

RULES: dict[Rule, str] = {
    files_are_short: r".*\.py|README\.md",
    functions_are_short: PYTHON,
    parameters_are_few: PYTHON,
    comments_tell_no_history: r"(?!tests/cases/).*\.py",
    imports_stand_at_the_top: PYTHON,
    kernel_does_not_import_the_package_root: SOURCE,
    public_functions_name_their_arguments: SOURCE,
    no_broad_except: PYTHON,
    public_signatures_have_no_any: SOURCE,
    escapes_say_why: PYTHON,
    records_are_frozen_slotted_keyword_only: SOURCE,
    nothing_names_this_machine: ANYTHING,
    readme_shows_python_early: r"README\.md",
}
"""Each rule with the paths that it is for. Cases under tests/cases/ quote public reports, by their numbers."""


@cache
def tree() -> tuple[File, ...]:
    """Every text file that is tracked, or would be with the next commit."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: list[File] = []
    for path in sorted(set(filter(None, listed.split("\0")))):
        try:
            found.append(File(path, (ROOT / path).read_text(encoding="utf-8")))
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # not text, or deleted and not yet committed
    return tuple(found)


def undocumented(names: Iterable[str], files: Iterable[File]) -> set[str]:
    """Those of the names that no file defines together with a docstring."""
    documented: set[str] = set()
    for file in files:
        for statement, following in zip(file.tree.body, [*file.tree.body[1:], ast.Pass()], strict=True):
            match statement, following:
                case ((ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name)), _):
                    if ast.get_docstring(statement):
                        documented.add(name)
                case (
                    ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str())),
                ):
                    documented.add(name)
    return set(names) - documented


@cache
def public_names() -> frozenset[str]:
    """What `endstop` exports."""
    init = ROOT / "src" / "endstop" / "__init__.py"
    return frozenset(exported(File("src/endstop/__init__.py", init.read_text(encoding="utf-8"))))


def exported(init: File) -> list[str]:
    """The names in a package's `__all__`."""
    for statement in init.tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return list(ast.literal_eval(value))
    return []
