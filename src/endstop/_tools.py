"""Tools: plain functions that a model may call, and the running of one batch of calls."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, cast, get_origin, overload

import anyio
import anyio.to_thread
import pydantic
import pydantic_core
from typing_extensions import TypeVar

from endstop._budget import TOOL_UNIT, Budget
from endstop._effects import Effects
from endstop._errors import ConfigError, ToolFatal
from endstop._limits import LimitHit, check_count, check_seconds
from endstop._messages import JsonObject, JsonValue, ToolCall, ToolReturn, ToolSpec, clean_text

DepsT = TypeVar("DepsT", default=object)

MAX_RESULT_CHARS = 20_000
"""The longest tool result that goes into the conversation by default: about 6,000 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext(Generic[DepsT]):
    """What a tool may know of the run it is called in: annotate a parameter with it to get it.

    `deps` is what the run was given as `deps=`. A tool that sends model requests of its own reserves
    them from `budget`, so that they count.
    """

    deps: DepsT
    run_id: str
    path: tuple[str, ...]
    round: int
    call_id: str
    tool: str
    budget: Budget


Arguments: TypeAlias = dict[str, Any]
ToolBody: TypeAlias = Callable[[Arguments, ToolContext[Any]], Awaitable[object]]
CheckArguments: TypeAlias = Callable[[JsonObject], Arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that a model may call. Make one with `@tool`, or give an agent the plain function.

    `read_only` says that it changes nothing (others are named in an ending's `effects`).
    `timeout_seconds` bounds one execution. `retries` is how often an execution that raised is tried
    again, each paid as a tool call. A result above `max_result_chars` is cut, with its full length said.

    `body` runs it with checked arguments and `check` turns the model's JSON into those arguments,
    raising `ValueError` with a text for the model; both are made from the function.
    """

    spec: ToolSpec
    body: ToolBody
    check: CheckArguments
    read_only: bool = False
    timeout_seconds: float | None = None
    retries: int = 0
    max_result_chars: int = MAX_RESULT_CHARS

    def __post_init__(self) -> None:
        check_seconds("timeout_seconds", self.timeout_seconds)
        check_count("retries", self.retries)
        check_count("max_result_chars", self.max_result_chars, least=1)

    @property
    def name(self) -> str:
        """The name that the model calls it by."""
        return self.spec.name


AnyTool: TypeAlias = Tool | Callable[..., object]
"""What an agent takes as a tool: a `Tool`, or a function with type hints and a docstring."""


@overload
def tool(function: Callable[..., object], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    timeout_seconds: float | None = None,
    retries: int = 0,
    max_result_chars: int = MAX_RESULT_CHARS,
) -> Callable[[Callable[..., object]], Tool]: ...
def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    timeout_seconds: float | None = None,
    retries: int = 0,
    max_result_chars: int = MAX_RESULT_CHARS,
) -> Tool | Callable[[Callable[..., object]], Tool]:
    """Make a tool of a function: its parameters' type hints are the schema, its docstring the description.

    A parameter annotated `ToolContext` gets the context and is not shown to the model. A sync function
    runs in a thread, with the context variables of the run.

    Raises:
        ConfigError: a parameter has no usable type hint, or is positional-only, `*args` or `**kwargs`.
    """

    def make(function: Callable[..., object]) -> Tool:
        made = from_function(function, name=name, description=description)
        return replace(
            made,
            read_only=read_only,
            timeout_seconds=timeout_seconds,
            retries=retries,
            max_result_chars=max_result_chars,
        )

    return make if function is None else make(function)


def from_function(function: Callable[..., object], *, name: str | None = None, description: str | None = None) -> Tool:
    """A tool of a function, with the defaults of `Tool`."""
    name = name or getattr(function, "__name__", "")
    if not name or name == "<lambda>":
        raise ConfigError("name", name, "give the tool a name: @tool(name='...')")
    signature, context_name = _visible_signature(function, name)

    def collect(**arguments: Any) -> Arguments:
        return arguments

    collect.__signature__ = signature  # type: ignore[attr-defined]  # how inspect and pydantic learn the real parameters
    collect.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    try:
        adapter: pydantic.TypeAdapter[Arguments] = pydantic.TypeAdapter(
            cast("type[Arguments]", collect)
        )  # by signature
        schema: JsonObject = adapter.json_schema()
    except pydantic.errors.PydanticUserError as error:
        raise ConfigError(
            f"tool {name!r}", function, f"give every parameter a type with a JSON form ({error})"
        ) from error
    schema.setdefault("properties", {})
    schema.setdefault("type", "object")
    return Tool(
        spec=ToolSpec(name=name, description=description or inspect.getdoc(function) or "", parameters=schema),
        body=_body(function, context_name),
        check=functools.partial(_checked, adapter),
    )


def toolbox(tools: Iterable[AnyTool]) -> dict[str, Tool]:
    """The tools by name.

    Raises:
        ConfigError: two have the same name, or one is neither a `Tool` nor a function.
    """
    by_name: dict[str, Tool] = {}
    for given in tools:
        if not isinstance(given, Tool) and not callable(given):
            raise ConfigError("tools", given, "use functions with type hints, or Tool objects")
        made = given if isinstance(given, Tool) else from_function(given)
        if made.name in by_name:
            raise ConfigError("tools", made.name, "give each tool a name of its own: @tool(name='...')")
        by_name[made.name] = made
    return by_name


@dataclass(slots=True, kw_only=True)
class Batch:
    """The calls of one model turn while they are answered. `returns` grows as they finish.

    `hit` is the first limit that kept a call from running, `fatal` the first `ToolFatal`, `started`
    the tools whose execution began. `cut` says that the turn ended at its output cap.
    """

    calls: Sequence[ToolCall]
    returns: dict[str, ToolReturn] = field(default_factory=dict[str, ToolReturn])
    started: list[Tool] = field(default_factory=list[Tool])
    hit: LimitHit | None = None
    fatal: ToolFatal | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What a batch of calls is run with: the tools, who pays, and who is told."""

    tools: Mapping[str, Tool]
    budget: Budget
    effects: Effects
    context: Callable[[ToolCall], ToolContext[Any]]
    on_call: Callable[[ToolCall], Awaitable[None]]
    on_return: Callable[[ToolCall, ToolReturn], Awaitable[None]]


async def run_calls(batch: Batch, shop: Workshop) -> None:
    """Answer every call of the batch: those that the budget allows run at once, each other is told why not.

    Units are taken in the order asked, before anything starts, so a batch that does not fit runs its
    first calls. A tool's exception is its return, with status `error`; siblings always finish.
    """

    async def execute(call: ToolCall, tool: Tool, arguments: Arguments, context: ToolContext[Any]) -> ToolReturn:
        attempt = 0
        while True:
            attempt += 1
            try:
                value = await _within(tool.timeout_seconds, tool.body(arguments, context))
                return _return(call, render(value, tool.max_result_chars))
            except ToolFatal as error:
                batch.fatal = batch.fatal or error
                return _return(call, f"{type(error).__name__}: {error}", "error")
            except Exception as error:  # every fault of a tool is the model's to read
                text = _fault(tool, error)
            if attempt > tool.retries or _charge(shop.budget, tool.name) is not None:
                return _return(call, text, "error")

    async def answer(call: ToolCall, tool: Tool, arguments: Arguments) -> None:
        context = shop.context(call)
        key = f"{context.round}/tool/{call.call_id}"
        result = await shop.effects.step(key, functools.partial(execute, call, tool, arguments, context))
        batch.returns[call.call_id] = result
        await shop.on_return(call, result)

    ready: list[tuple[str, Callable[[], Awaitable[None]]]] = []
    for call in batch.calls:
        await shop.on_call(call)
        accepted = _accept(call, batch, shop)
        if isinstance(accepted, ToolReturn):
            batch.returns[call.call_id] = accepted
            await shop.on_return(call, accepted)
        else:
            tool, arguments = accepted
            batch.started.append(tool)
            ready.append((call.call_id, functools.partial(answer, call, tool, arguments)))
    if len(ready) == 1:
        await ready[0][1]()
    elif ready:
        await shop.effects.parallel(ready)


def render(value: object, max_chars: int = MAX_RESULT_CHARS) -> str:
    """A tool's return value as text for the model: text as it is, anything else as JSON; cut where it is too long."""
    if isinstance(value, str):
        text = clean_text(value)
    elif value is None:
        text = "(no result)"
    else:
        text = pydantic_core.to_json(value, bytes_mode="base64", inf_nan_mode="strings").decode()
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[cut: the first {max_chars} of {len(text)} characters are shown]"


async def _within(seconds: float | None, work: Awaitable[object]) -> object:
    if seconds is None:
        return await work
    with anyio.fail_after(seconds):
        return await work


def _accept(call: ToolCall, batch: Batch, shop: Workshop) -> ToolReturn | tuple[Tool, Arguments]:
    """The tool and arguments to run the call with, its unit paid; or the return that says why it does not run."""
    tool = shop.tools.get(call.name)
    if tool is None:
        names = ", ".join(shop.tools) or "none"
        return _return(call, f"There is no tool {call.name!r}; the tools are: {names}.", "error")
    if call.invalid_arguments is not None:
        why = "were cut off at the output limit; send a shorter call" if batch.cut else "are not one JSON object"
        return _return(call, f"Not run: the arguments {why}. They were: {render(call.invalid_arguments, 500)}", "error")
    try:
        arguments = tool.check(call.arguments)
    except ValueError as error:
        return _return(call, str(error), "error")
    hit = _charge(shop.budget, tool.name)
    if hit is not None:
        batch.hit = batch.hit or hit
        text = f"Not run: the limit {hit.limit} is used up ({hit.used} of {hit.allowed})."
        return _return(call, text, "not_run")
    return tool, arguments


def _charge(budget: Budget, tool_name: str) -> LimitHit | None:
    return budget.charge({"tool_calls": 1, TOOL_UNIT + tool_name: 1})


def _return(call: ToolCall, text: str, status: typing.Literal["ok", "error", "not_run"] = "ok") -> ToolReturn:
    return ToolReturn(call_id=call.call_id, name=call.name, content=text, status=status)


def _fault(tool: Tool, error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"TimeoutError: {tool.name} took longer than {tool.timeout_seconds} seconds"
    return render(f"{type(error).__name__}: {error}", tool.max_result_chars)


def _body(function: Callable[..., object], context_name: str | None) -> ToolBody:
    call = function if inspect.isroutine(function) or not callable(function) else type(function).__call__
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    async def body(arguments: Arguments, context: ToolContext[Any]) -> object:
        if context_name is not None:
            arguments = {**arguments, context_name: context}
        if is_async:
            return await cast("Callable[..., Awaitable[object]]", function)(**arguments)  # is_async says so
        value = await anyio.to_thread.run_sync(functools.partial(function, **arguments), abandon_on_cancel=True)
        return await value if inspect.isawaitable(value) else value

    return body


def _visible_signature(function: Callable[..., object], name: str) -> tuple[inspect.Signature, str | None]:
    """The signature that the model sees, hints resolved, and the name of the context parameter if there is one."""
    try:
        described = function if inspect.isroutine(function) else type(function).__call__
        hints = typing.get_type_hints(described, include_extras=True)
    except NameError as error:
        raise ConfigError(f"tool {name!r}", function, f"make its type hints resolvable ({error})") from error
    visible: list[inspect.Parameter] = []
    context_name: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}", str(parameter), "use named parameters only, no *args or **kwargs")
        hint = hints.get(parameter.name, JsonValue)
        if hint is ToolContext or get_origin(hint) is ToolContext:
            context_name = parameter.name
        else:
            visible.append(parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY))
    return inspect.Signature(visible), context_name


def _checked(adapter: pydantic.TypeAdapter[Arguments], arguments: JsonObject) -> Arguments:
    try:
        return adapter.validate_python(pydantic_core.ArgsKwargs((), arguments))
    except pydantic.ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors(include_url=False)]
        raise ValueError("The arguments do not fit: " + "; ".join(lines)) from error
