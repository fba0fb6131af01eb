"""How a source file is broken, one place at a time: its Python by the syntax tree, its SQL by words."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Mutant", "mutants_of"]

_SWAPPED_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SWAPPED_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_SWAPPED_NAMES: Final = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "popleft": "pop",
    "extendleft": "extend",
    "DONE": "DEAD",
    "DEAD": "DONE",
    "PENDING": "LEASED",
    "LEASED": "PENDING",
    "RETRY": "PERMANENT",
    "PERMANENT": "RETRY",
    "EXHAUSTED": "DEADLINE",
    "DEADLINE": "EXHAUSTED",
    "CANCELLED": "PERMANENT",
}
_REMOVED: Final = (ast.AugAssign, ast.Delete, ast.Continue, ast.Break)
_QUIET: Final = ("log", "add_note")  # what is said to people decides nothing

_SQL_WORDS: Final = (
    (r"(?<![<>=-])<=", "<"),
    (r"(?<![<>=-])>=", ">"),
    (r"(?<![<>=-])<(?![<>=])", "<="),
    (r"(?<![<>=-])>(?![<>=])", ">="),
    (r"<>", "="),
    (r"\bAND\b", "OR"),
    (r"\bOR\b(?! (?:IGNORE|REPLACE))", "AND"),
    (r"\bNOT EXISTS\b", "EXISTS"),
    (r"\bNOT IN\b", "IN"),
    (r"\bIS NOT NULL\b", "IS NULL"),
    (r"\bIS NULL\b", "IS NOT NULL"),
    (r" \+ (?:1|:\w+|\([^()]*\))", ""),
    (r" - (?:1|:\w+)", ""),
    (r"\bmin\(", "max("),
    (r"\bmax\(", "min("),
    (r" DESC\b", ""),
    (r" OR IGNORE\b", ""),
    (r"\('pending','leased'\)", "('pending')"),
    (r"\('pending','leased'\)", "('leased')"),
    (r", \w+ = (?:NULL|0|:\w+|'\w+')(?=[,\s])", ""),  # one column of a SET less
    (r"\bNULLIF\b", "IFNULL"),
    (r"(?<==)(?:FULL|EXTRA)\b", "NORMAL"),
    (r" IMMEDIATE\b", ""),
)
_SQL_ENDS: Final = re.compile(
    r"\b(?:AND|OR|THEN|WHEN|ELSE|END|ORDER|LIMIT|RETURNING|GROUP|UNION|ON|FROM|WHERE|SET)\b|[()]|\bCASE\b"
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: bytes `start` to `end` of the source become `text`. `place` is what it stands in."""

    place: str
    line: int
    start: int
    end: int
    text: str
    was: str
    now: str

    def applied_to(self, source: bytes) -> bytes:
        """Return the source with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_of(source: bytes) -> list[Mutant]:
    """Return every mutant of a file that still compiles, in order of place; no two have the same text."""
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found: dict[bytes, Mutant] = {}
    for place, start, end, text in _Walk(source, lines).edits():
        mutated = source[:start] + text.encode() + source[end:]
        if mutated == source or mutated in found or not _compiles(mutated):
            continue
        first = source.rfind(b"\n", 0, start) + 1
        last = (source + b"\n").find(b"\n", end)
        was = source[first:last].decode()
        now = source[first:start].decode() + text + source[end:last].decode()
        number = source.count(b"\n", 0, start) + 1
        found[mutated] = Mutant(place, number, start, end, text, " ".join(was.split()), " ".join(now.split()))
    return sorted(found.values(), key=lambda mutant: (mutant.start, mutant.end, mutant.text))


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


Edit = tuple[str, int, int, str]


class _Walk:
    """Walks a module and names the edits; `place` is the dotted name of what it is in."""

    def __init__(self, source: bytes, lines: list[int]) -> None:
        self._source = source
        self._lines = lines

    def edits(self) -> Iterator[Edit]:
        yield from self._body(ast.parse(self._source).body, "")

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[end_line - 1] + end_column

    def _edit(self, place: str, node: ast.expr | ast.stmt, text: str) -> Edit:
        return (place, *self._span(node), text)

    def _body(self, body: list[ast.stmt], place: str) -> Iterator[Edit]:
        for number, statement in enumerate(body):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_text or number > 0:
                yield from self._statement(statement, place)

    def _statement(self, node: ast.stmt, place: str) -> Iterator[Edit]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield from self._definition(node, f"{place}.{node.name}".lstrip("."))
            case ast.Import() | ast.ImportFrom() | ast.Assert():
                return
            case ast.Assign() | ast.AnnAssign():
                yield from self._assignment(node, place)
            case ast.Raise():
                yield self._edit(place, node, "pass")
            case _ if not _is_quiet(node):
                if _is_removable(node):
                    yield self._edit(place, node, "pass")
                if isinstance(node, ast.Return) and node.value is not None:
                    yield self._edit(place, node, "return None")
                if isinstance(node, ast.If | ast.While):
                    yield from self._condition(node.test, place)
                yield from self._children(node, place)

    def _definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, place: str
    ) -> Iterator[Edit]:
        if isinstance(node, ast.ClassDef):
            if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
                return
        else:
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    yield from self._expression(default, place)
        yield from self._body(node.body, place)

    def _assignment(self, node: ast.Assign | ast.AnnAssign, place: str) -> Iterator[Edit]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        first = targets[0]
        if isinstance(first, ast.Name):
            if first.id in {"__all__", "__slots__"}:
                return
            place = place or first.id
        elif node.value is not None:
            yield self._edit(place, node, "pass")
        if node.value is not None:
            yield from self._expression(node.value, place)

    def _children(self, node: ast.AST, place: str) -> Iterator[Edit]:
        for name, value in ast.iter_fields(node):
            if name == "annotation":
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    yield from self._statement(child, place)
                elif isinstance(child, ast.expr):
                    yield from self._expression(child, place)
                elif isinstance(child, ast.AST):
                    yield from self._children(child, place)

    def _expression(self, node: ast.expr, place: str) -> Iterator[Edit]:  # noqa: C901, PLR0912 - a list of kinds
        match node:
            case ast.JoinedStr():
                yield from self._sql(node, place)
                return
            case ast.Subscript(slice=ast.Tuple()):  # the parameters of a type are no table of data
                yield from self._expression(node.value, place)
                return
            case ast.Constant(value=bool() as value):
                yield self._edit(place, node, str(not value))
            case ast.Constant(value=int() as value):
                yield self._edit(place, node, str(value + 1))
            case ast.Constant(value=str()):
                yield from self._sql(node, place)
            case ast.Compare(ops=[operator]) if type(operator) in _SWAPPED_COMPARISONS:
                swapped = ast.Compare(node.left, [_SWAPPED_COMPARISONS[type(operator)]()], node.comparators)
                yield self._edit(place, node, f"({ast.unparse(swapped)})")
            case ast.BoolOp(values=values):
                other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
                yield self._edit(place, node, f"({ast.unparse(ast.BoolOp(other, values))})")
                for number in range(len(values)):
                    rest = values[:number] + values[number + 1 :]
                    left = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                    yield self._edit(place, node, f"({ast.unparse(left)})")
            case ast.UnaryOp(op=ast.Not()):
                yield self._edit(place, node, f"bool({ast.unparse(node.operand)})")
            case ast.BinOp(op=operator) if type(operator) in _SWAPPED_ARITHMETIC and not _is_textual(node):
                other_binary = ast.BinOp(node.left, _SWAPPED_ARITHMETIC[type(operator)](), node.right)
                yield self._edit(place, node, f"({ast.unparse(other_binary)})")
            case ast.IfExp():
                yield from self._condition(node.test, place)
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _SWAPPED_NAMES:
                end = self._span(node)[1]
                yield (place, end - len(name), end, _SWAPPED_NAMES[name])
            case ast.Call(keywords=keywords):
                for number in range(len(keywords)):
                    fewer = keywords[:number] + keywords[number + 1 :]
                    yield self._edit(place, node, ast.unparse(ast.Call(node.func, node.args, fewer)))
            case ast.Tuple(elts=elements) if place.isidentifier() and len(elements) > 1:  # a table of data
                for number in range(len(elements)):
                    fewer_elements = elements[:number] + elements[number + 1 :]
                    yield self._edit(place, node, ast.unparse(ast.Tuple(fewer_elements, ast.Load())))
            case _:
                pass
        yield from self._children(node, place)

    def _condition(self, test: ast.expr, place: str) -> Iterator[Edit]:
        is_swapped_anyway = isinstance(test, ast.Compare | ast.Constant) or (
            isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        )
        if not is_swapped_anyway:
            yield self._edit(place, test, f"(not ({ast.unparse(test)}))")

    def _sql(self, node: ast.expr, place: str) -> Iterator[Edit]:
        """Break the words of a text, if it is SQL: it is all there is of a constant of its own."""
        start, end = self._span(node)
        text = self._source[start:end].decode()
        if not re.search(r"\b(?:SELECT|UPDATE|INSERT|DELETE|PRAGMA|BEGIN|CASE|status|item|queue)\b", text):
            return
        if len(text) != end - start:
            raise ValueError(f"{place}: SQL is ASCII here")
        plain = re.sub(r"\{[^{}]*\}", lambda found: "#" * len(found.group()), text)
        for pattern, other in _SQL_WORDS:
            for found in re.finditer(pattern, plain):
                yield (place, start + found.start(), start + found.end(), other)
        for found in re.finditer(r"\bAND\b", plain):
            yield (place, start + found.start(), start + _end_of_operand(plain, found.end()), "")
        for found in re.finditer(r"(?<=LIMIT )\d+|(?<=>> )\d+|(?<=< )\d+", plain):
            yield (place, start + found.start(), start + found.end(), str(int(found.group()) + 1))


def _is_textual(node: ast.BinOp) -> bool:
    return any(isinstance(p, ast.JoinedStr | ast.Constant) and not _is_number(p) for p in (node.left, node.right))


def _is_removable(node: ast.stmt) -> bool:
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    return is_call or isinstance(node, _REMOVED)


def _is_quiet(node: ast.stmt) -> bool:
    """Tell whether a statement only calls what speaks to people."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    target = node.value.func
    if not isinstance(target, ast.Attribute):
        return False
    return target.attr in _QUIET or (isinstance(target.value, ast.Name) and target.value.id in _QUIET)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _end_of_operand(sql: str, begin: int) -> int:
    """Return where the condition that begins here ends: at the next word of its own level, or its parenthesis."""
    depth = 0
    for found in _SQL_ENDS.finditer(sql, begin):
        word = found.group()
        if word in {"(", "CASE"}:
            depth += 1
        elif depth and word in {")", "END"}:
            depth -= 1
        elif not depth:
            return found.start()
    quote = '"""' if sql.endswith('"""') else sql[-1]
    return len(sql) - len(quote)
