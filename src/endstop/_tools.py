"""Tools: plain functions that a model may call, and the running of one batch of calls."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import sys
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, cast, get_origin, overload

import anyio
import anyio.lowlevel
import anyio.to_thread
import pydantic
import pydantic_core
from typing_extensions import TypeVar

from endstop._budget import Budget
from endstop._errors import ConfigError, EndstopError, Interrupt, ToolFatal
from endstop._limits import TOOL_UNIT, LimitHit, check_count, check_seconds
from endstop._messages import JsonObject, JsonValue, ToolCall, ToolReturn, ToolSpec, clean_text
from endstop._pauses import Pause, Reply, approval_pause, bad_schema, interrupt_pause
from endstop._state import RunState, json_text

if TYPE_CHECKING:
    from datetime import datetime

    from endstop._effects import Effects
    from endstop._run import Place
    from endstop._stream import EventQueue

DepsT = TypeVar("DepsT", default=object)

MAX_RESULT_CHARS = 20_000
"""The longest tool result that goes into the conversation by default: about 6,000 tokens."""

MAX_TOOL_THREADS = 1_000
"""Sync tools that run at once in one event loop. A call that waits for a thread uses up its timeout by waiting."""


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
    answers: tuple[JsonValue, ...] = ()
    parent: ParentRun | None = field(default=None, repr=False, compare=False)


class ParentRun(Protocol):
    """A run as far as a delegated one below it needs to know it."""

    @property
    def queue(self) -> EventQueue:
        """Where its events go, and those of the runs below it."""
        ...

    def place_below(self, call_id: str) -> Place:
        """Where a run stands that is delegated in this call."""
        ...

    def waiting_child(self, call_id: str) -> RunState | None:
        """The delegated run that paused in this call, if there is one."""
        ...


Arguments: TypeAlias = dict[str, Any]
ToolBody: TypeAlias = Callable[[Arguments, ToolContext[Any]], Awaitable[object]]
RefuseCall: TypeAlias = Callable[[ToolContext[Any]], str | None]
CheckArguments: TypeAlias = Callable[[JsonObject], Arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that a model may call. Make one with `@tool`, or give an agent the plain function.

    `read_only` says that it changes nothing (others are named in an ending's `effects`).
    `timeout_seconds` bounds one execution. `retries` is how often an execution that raised is tried
    again, each paid as a tool call. A result above `max_result_chars` is cut, with its full length said.

    A call of a tool that `requires_approval` waits for a person before it runs. For the loop detector a
    `polling` tool may repeat more often, and a `repeatable` one as often as it likes.

    `body` runs it with checked arguments and `check` turns the model's JSON into those arguments,
    raising `ValueError` with a text for the model; both are made from the function. `refusal` may say
    why a call is not to be run at all, before it is paid.
    """

    spec: ToolSpec
    body: ToolBody
    check: CheckArguments
    read_only: bool = False
    timeout_seconds: float | None = None
    retries: int = 0
    max_result_chars: int = MAX_RESULT_CHARS
    requires_approval: bool = False
    polling: bool = False
    repeatable: bool = False
    refusal: RefuseCall | None = None

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
    requires_approval: bool = False,
    polling: bool = False,
    repeatable: bool = False,
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
    requires_approval: bool = False,
    polling: bool = False,
    repeatable: bool = False,
) -> Tool | Callable[[Callable[..., object]], Tool]:
    """Make a tool of a function: its parameters' type hints are the schema, its docstring the description.

    A parameter without a hint takes any JSON. One annotated `ToolContext` gets the context and is not
    shown to the model. A sync function runs in a thread, with the context variables of the run.

    Raises:
        ConfigError: a type hint has no JSON form, or a parameter is positional-only, `*args` or `**kwargs`.
    """

    def make(function: Callable[..., object]) -> Tool:
        made = from_function(function, name=name, description=description)
        return replace(
            made,
            read_only=read_only,
            timeout_seconds=timeout_seconds,
            retries=retries,
            max_result_chars=max_result_chars,
            requires_approval=requires_approval,
            polling=polling,
            repeatable=repeatable,
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
    description = description or inspect.getdoc(_unwrapped(function)) or ""
    return Tool(
        spec=ToolSpec(name=name, description=description, parameters=schema),
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
    the tools whose execution began. `cut` says that the turn ended at its output cap. `replies` is what
    people said about the calls before, `paused` what they must say before the calls left out go on.
    """

    calls: Sequence[ToolCall]
    returns: dict[str, ToolReturn] = field(default_factory=dict[str, ToolReturn])
    started: list[Tool] = field(default_factory=list[Tool])
    hit: LimitHit | None = None
    fatal: ToolFatal | None = None
    cut: bool = False
    replies: Mapping[str, Reply] = field(default_factory=dict[str, Reply])
    paused: dict[str, Paused] = field(default_factory=dict[str, "Paused"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """A call that waits for people: for what, and the delegated run that waits in it, if it is one's."""

    pauses: tuple[Pause, ...]
    child: RunState | None = None


class ChildPaused(EndstopError):
    """Raised by the tool of a delegated run that paused: the call waits with it."""

    def __init__(self, child: RunState) -> None:
        self._child = child
        super().__init__(child.run_id)

    def of(self, call: ToolCall) -> Paused:
        """What the call waits for: all that the child does."""
        pauses = tuple(replace(pause, call_id=call.call_id) for pause in self._child.pauses)
        return Paused(pauses=pauses, child=self._child)


class Workshop(NamedTuple):
    """What a batch of calls is run with: the tools, who pays, and who is told."""

    tools: Mapping[str, Tool]
    budget: Budget
    effects: Effects
    context: Callable[[ToolCall, Reply], ToolContext[Any]]
    key: Callable[[ToolCall], str]
    on_call: Callable[[ToolCall], None]
    on_return: Callable[[ToolCall, ToolReturn], None]


async def run_calls(batch: Batch, shop: Workshop) -> None:
    """Answer every call of the batch: those that the budget allows run at once, each other is told why not.

    Units are taken in the order asked, before anything starts, so a batch that does not fit runs its
    first calls. A tool's exception is its return, with status `error`; siblings always finish.
    """

    async def execute(job: _Job) -> ToolReturn | Paused:
        call, tool = job.call, job.tool
        for attempt in itertools.count(1):
            try:
                value = await _within(tool.timeout_seconds, tool.body(job.arguments, job.context))
                return _shown(call, tool, value)
            except Interrupt as interrupt:
                return _interrupted(call, interrupt, job.context, shop.effects.now())
            except ChildPaused as paused:
                return paused.of(call)
            except ToolFatal as error:
                batch.fatal = batch.fatal or error
                return _return(call, _fault(tool, error), "error")
            except Exception as error:  # every fault of a tool is the model's to read
                text = _fault(tool, error)
            if attempt > tool.retries or _charge(shop.budget, tool.name) is not None:
                return _return(call, text, "error")
        raise AssertionError("unreachable")  # pragma: no cover - the count has no end

    async def finish(job: _Job) -> None:
        result = await shop.effects.step(job.key, functools.partial(execute, job))
        if isinstance(result, Paused):
            batch.paused[job.call.call_id] = result
        else:
            shown = replace(result, content=job.preface + result.content) if job.preface else result
            _answer(batch, shop, job.call, shown)

    jobs = [job for call in batch.calls if (job := _accepted(call, batch, shop)) is not None]
    if len(jobs) == 1:
        await finish(jobs[0])
    elif jobs:
        await shop.effects.parallel([(job.key, functools.partial(finish, job)) for job in jobs])


@dataclass(slots=True, kw_only=True)
class _Job:
    """A call that is going to run: its unit is paid and its arguments are checked."""

    call: ToolCall
    tool: Tool
    arguments: Arguments
    context: ToolContext[Any]
    key: str
    preface: str = ""


def _accepted(call: ToolCall, batch: Batch, shop: Workshop) -> _Job | None:
    """The job of a call that may run now; any other is answered or paused here."""
    reply = batch.replies.get(call.call_id)
    if reply is None:
        shop.on_call(call)
    accepted = _accept(call, reply or _NO_REPLY, batch, shop)
    if isinstance(accepted, ToolReturn):
        _answer(batch, shop, call, accepted)
        return None
    if isinstance(accepted, Paused):
        batch.paused[call.call_id] = accepted
        return None
    batch.started.append(accepted.tool)
    return accepted


def _answer(batch: Batch, shop: Workshop, call: ToolCall, result: ToolReturn) -> None:
    batch.returns[call.call_id] = result
    shop.on_return(call, result)


def render(value: object, max_chars: int = MAX_RESULT_CHARS) -> str:
    """A tool's return value as text for the model: text as it is, anything else as JSON; cut where it is too long."""
    if isinstance(value, str):
        text = clean_text(value)
    elif value is None:
        text = "(no result)"
    else:
        text = json_text(value, "strings")
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[cut: the first {max_chars} of {len(text)} characters are shown]"


def _shown(call: ToolCall, tool: Tool, value: object) -> ToolReturn:
    """The return of an execution that went well; a value that is no data is an error, but none to run it again for."""
    try:
        return _return(call, render(value, tool.max_result_chars))
    except ValueError as error:
        return _return(call, render(f"It was run, but its result cannot be shown: {error}"), "error")


async def _within(seconds: float | None, work: Awaitable[object]) -> object:
    try:
        if seconds is None:
            return await work
        with anyio.fail_after(seconds):
            return await work
    except anyio.get_cancelled_exc_class() as error:
        if _must_stop():
            raise
        raise RuntimeError("what it waited for was cancelled") from error


def _must_stop() -> bool:
    """Whether a cancellation is this task's own; on asyncio it may be that of a task which a tool waited for."""
    # Looked at only where it is in use: to import asyncio is a good part of what importing endstop costs.
    asyncio = sys.modules.get("asyncio")
    try:
        task = None if asyncio is None else asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or task.cancelling() > 0


def _accept(call: ToolCall, reply: Reply, batch: Batch, shop: Workshop) -> ToolReturn | Paused | _Job:
    """What is to be done with a call: run it, its unit paid; wait for a person; or say why it does not run."""
    tool = shop.tools.get(call.name)
    if tool is None:
        names = ", ".join(shop.tools) or "none"
        return _return(call, f"There is no tool {call.name!r}; the tools are: {names}.", "error")
    if call.invalid_arguments is not None:
        why = "were cut off at the output limit; send a shorter call" if batch.cut else "are not one JSON object"
        return _return(call, f"Not run: the arguments {why}. They were: {render(call.invalid_arguments, 500)}", "error")
    given = call.arguments if reply.decision is None else _decided(call, reply.decision)
    if isinstance(given, ToolReturn):
        return given
    try:
        arguments = tool.check(given)
    except ValueError as error:
        return _return(call, render(str(error), tool.max_result_chars), "error")
    context = shop.context(call, reply)
    if tool.requires_approval and reply.decision is None:
        pause = approval_pause(call, run_id=context.run_id, path=context.path, parameters=tool.spec.parameters)
        return Paused(pauses=(pause,))
    refusal = tool.refusal(context) if tool.refusal is not None else None
    if refusal is not None:
        return _return(call, refusal, "not_run")
    hit = None if reply.started else _charge(shop.budget, tool.name)
    if hit is not None:
        batch.hit = batch.hit or hit
        text = f"Not run: the limit {hit.limit} is used up ({hit.used} of {hit.allowed})."
        return _return(call, text, "not_run")
    again = f"/{reply.paused}" if reply.paused else ""
    key = f"{shop.key(call)}{again}"
    preface = "" if given is call.arguments else f"[A person changed the arguments to {render(given, 500)}]\n"
    return _Job(call=call, tool=tool, arguments=arguments, context=context, key=key, preface=preface)


def _decided(call: ToolCall, decision: JsonObject) -> JsonObject | ToolReturn:
    """The arguments that a person let the call run with, or the return that stands in its place."""
    message = decision.get("message")
    text = message if isinstance(message, str) else ""
    match decision.get("type"):
        case "edit":
            arguments = decision.get("arguments")
            return arguments if isinstance(arguments, dict) else call.arguments
        case "respond":
            return _return(call, text)
        case "expired":
            return _return(call, "Not run: nobody answered in time.", "not_run")
        case "reject":
            return _return(call, f"Not run: a person rejected it{f': {text}' if text else '.'}", "error")
        case _:
            return call.arguments


def _interrupted(call: ToolCall, interrupt: Interrupt, context: ToolContext[Any], now: datetime) -> ToolReturn | Paused:
    problem = bad_schema(interrupt.schema)
    if problem is not None:
        return _return(call, f"The schema of the answer is no JSON schema: {problem}", "error")
    number = len(context.answers)
    pause = interrupt_pause(call, interrupt, run_id=context.run_id, path=context.path, number=number, now=now)
    return Paused(pauses=(pause,))


_NO_REPLY = Reply()


def _charge(budget: Budget, tool_name: str) -> LimitHit | None:
    return budget.charge({"tool_calls": 1, TOOL_UNIT + tool_name: 1})


def _return(call: ToolCall, text: str, status: typing.Literal["ok", "error", "not_run"] = "ok") -> ToolReturn:
    return ToolReturn(call_id=call.call_id, name=call.name, content=text, status=status)


def said(error: BaseException) -> str:
    """What an exception says, whatever its own words do."""
    try:
        return str(error)
    except Exception:  # an exception that cannot be shown is still one
        return f"({type(error).__name__} says nothing that can be shown)"


def _fault(tool: Tool, error: Exception) -> str:
    if isinstance(error, TimeoutError) and not said(error) and tool.timeout_seconds is not None:
        return f"TimeoutError: {tool.name} took longer than {tool.timeout_seconds} seconds"
    return render(f"{type(error).__name__}: {said(error)}", tool.max_result_chars)


def _body(function: Callable[..., object], context_name: str | None) -> ToolBody:
    call = function if inspect.isroutine(function) or not callable(function) else type(function).__call__
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    async def body(arguments: Arguments, context: ToolContext[Any]) -> object:
        if context_name is not None:
            arguments = {**arguments, context_name: context}
        if is_async:
            return await cast("Callable[..., Awaitable[object]]", function)(**arguments)  # is_async says so
        work = functools.partial(function, **arguments)
        value = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=_threads())
        return await value if inspect.isawaitable(value) else value

    return body


def _threads() -> anyio.CapacityLimiter:
    """The threads of sync tools in this event loop, apart from the 40 that everything else in the program shares."""
    try:
        return _LIMITER.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(MAX_TOOL_THREADS)
        _LIMITER.set(limiter)
        return limiter


_LIMITER: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("endstop_tool_threads")


def _unwrapped(function: Callable[..., object]) -> Callable[..., object]:
    """What a partial was made of: that has the docstring and the hints."""
    return function.func if isinstance(function, functools.partial) else function


def _visible_signature(function: Callable[..., object], name: str) -> tuple[inspect.Signature, str | None]:
    """The signature that the model sees, hints resolved, and the name of the context parameter if there is one."""
    described = _unwrapped(function)
    if not inspect.isroutine(described) and not inspect.isclass(described):
        described = type(described).__call__
    try:
        hints = typing.get_type_hints(described, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except (NameError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        remedy = f"make its signature and type hints resolvable ({error})"
        raise ConfigError(f"tool {name!r}", function, remedy) from error
    # What a partial gives by name is settled: the model is neither asked for it nor told.
    given: Mapping[str, object] = function.keywords if isinstance(function, functools.partial) else {}
    visible: list[inspect.Parameter] = []
    context_name: str | None = None
    for parameter in parameters:
        if parameter.name in given:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}", str(parameter), "use named parameters only, no *args or **kwargs")
        hint = hints.get(parameter.name, JsonValue)
        if hint is ToolContext or get_origin(hint) is ToolContext:
            context_name = parameter.name
        else:
            visible.append(parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY))
    return inspect.Signature(visible), context_name


def _checked(adapter: pydantic.TypeAdapter[Arguments], arguments: JsonObject) -> Arguments:
    if any(isinstance(value, list | dict) for value in arguments.values()):
        arguments = copy.deepcopy(arguments)  # the tool may change what it is given; the history keeps what was asked
    try:
        return adapter.validate_python(pydantic_core.ArgsKwargs((), arguments))
    except pydantic.ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors(include_url=False)]
        raise ValueError("The arguments do not fit: " + "; ".join(lines)) from error
    except _FAULTS_OF_A_VALIDATOR as error:
        raise ValueError(f"The arguments do not fit: {type(error).__name__}: {error}") from error


_FAULTS_OF_A_VALIDATOR = (TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, OSError)
"""What the code of an argument's own type may raise over a value, beside what pydantic takes for a refusal."""
