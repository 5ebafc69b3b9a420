"""Every error that endstop raises, in one tree.

::

    EndstopError
    ├── UsageError                  misuse: refused before anything ran, nothing is lost
    │   ├── ConfigError             a setting has a value that cannot be used
    │   ├── StateError              stored bytes are not a state or result of this format
    │   ├── ResumeError             this run cannot be continued in this way
    │   └── PriceUnknown            a cost limit is set and the model has no known price
    ├── Interrupt                   no failure: raised by a tool to ask a person, it pauses the run
    └── RunError                    a run failed; `state` holds everything done before it
        ├── ModelError              the model's answer could not be had
        │   └── ContextOverflow     the request is larger than the model's context
        ├── ToolFatal               a tool said that the run must not go on
        ├── OutputInvalid           no valid structured output within the repair rounds
        └── LimitExceeded           a limit was reached and the run was asked to raise

Every class has a `code` that a program can branch on; the message is for people and names the
field, the value and the remedy. An error carries its data and never logs itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from endstop._messages import JsonObject
    from endstop._results import AgentResult, Ending
    from endstop._state import RunState


class EndstopError(Exception):
    """The root of every error that endstop raises on purpose."""

    code: ClassVar[str] = "endstop_error"

    def __reduce__(self) -> tuple[object, ...]:
        """Copying and pickling keep message and data: they do not call `__init__`, which takes other arguments."""
        return Exception.__new__, (type(self), *self.args), self.__dict__


class UsageError(EndstopError):
    """The caller asked for something that cannot be done; nothing was run."""

    code: ClassVar[str] = "usage"


class ConfigError(UsageError):
    """A setting has a value that cannot be used.

    `field` is the setting's name, `value` what was given, `remedy` what would be accepted.
    """

    code: ClassVar[str] = "config"

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(f"{field}={_shown(value)} cannot be used: {remedy}")


class StateError(UsageError):
    """Stored bytes are not a run state, result or message list of a format that this version reads.

    `field` is the path of the offending value inside the document (empty for the whole).
    """

    code: ClassVar[str] = "state"

    def __init__(self, message: str, *, field: str = "") -> None:
        self.field = field
        super().__init__(message)


class ResumeError(UsageError):
    """A run cannot be continued in the way that was asked.

    `limit` names the limit that is still used up, where that is the reason.
    """

    code: ClassVar[str] = "resume"

    def __init__(self, message: str, *, limit: str | None = None) -> None:
        self.limit = limit
        super().__init__(message)


class PriceUnknown(UsageError):
    """A cost limit is set, the model has no known price and none is assumed; `model` is its name."""

    code: ClassVar[str] = "price_unknown"

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(
            f"max_cost is set but no price is known for the model {model!r}: install endstop[prices], "
            "pass prices=, or set PlanLimits(assume_price=Price(...)) to charge a price of your own"
        )


class Interrupt(EndstopError):
    """Raised by a tool to ask a person: it pauses the run, and no call goes on until the answer is there.

    `question` is shown to the person, `schema` is the JSON schema that the answer must fit (`None`: any
    JSON), `expires_in_seconds` how long an answer is taken. After the answer the tool is called again
    from its beginning, with the answers so far in `ToolContext.answers`.
    """

    code: ClassVar[str] = "interrupt"

    def __init__(
        self,
        question: str,
        *,
        schema: JsonObject | None = None,
        expires_in_seconds: float | None = None,
        asks_user: bool = False,
    ) -> None:
        _check_question(question, expires_in_seconds)
        self.question = question
        self.schema = schema
        self.expires_in_seconds = expires_in_seconds
        self.asks_user = asks_user
        super().__init__(question)


class RunError(EndstopError):
    """A run failed. `state` is everything done before it: `agent.resume(error.state)` goes on from there.

    It is `None` where the error was made outside a run.
    """

    code: ClassVar[str] = "run"
    state: RunState | None = None


class ModelError(RunError):
    """The model's answer could not be had, and retrying will not help or was used up.

    `retryable` says whether the same request may succeed later, `retry_after_seconds` what the
    provider asked to wait, `status` the HTTP status where there was one.
    """

    code: ClassVar[str] = "model"

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after_seconds: float | None = None,
        status: int | None = None,
    ) -> None:
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds
        self.status = status
        super().__init__(message)


class ContextOverflow(ModelError):
    """The request is larger than the model's context; sending it again cannot help."""

    code: ClassVar[str] = "context_overflow"


class ToolFatal(RunError):
    """Raised by a tool to end the run: going on would do harm. Every other exception goes back to the model."""

    code: ClassVar[str] = "tool_fatal"


class OutputInvalid(RunError):
    """The model gave no valid structured output within the repair rounds; `problem` is the last complaint."""

    code: ClassVar[str] = "output_invalid"

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"no valid output within the repair rounds; the last problem: {problem}")


class LimitExceeded(RunError):
    """A limit was reached under `on_limit="raise"`; `ending` names it and `result` is the whole partial result."""

    code: ClassVar[str] = "limit_exceeded"

    def __init__(self, ending: Ending, result: AgentResult[object]) -> None:
        self.ending = ending
        self.result = result
        super().__init__(ending.reason)


def _check_question(question: object, expires_in_seconds: object) -> None:
    """Check what a tool asks with; tools are not all type-checked."""
    if not isinstance(question, str):
        raise ConfigError("question", question, "use text that a person can answer")
    seconds = expires_in_seconds
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        raise ConfigError("expires_in_seconds", seconds, "use a number of seconds, or None")


def _shown(value: object) -> str:
    """A value as an error message shows it: its repr, cut where it would drown the message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
