"""An odometer for a graph with several loops of its own: every node counts its executions in the graph's state.

Local guards, such as "at most three rewrites", never add up to one bound, and running out of LangGraph's
`recursion_limit` loses the whole run. Here each node adds `step_delta` to what it returns, and a node that can end the
run asks `should_truncate` first, and ends it with `honest_truncation_delta` instead of doing its work::

    class State(StepBudgetState, total=False):
        draft: str
        review_decision: str

    def writer(state):
        return {"draft": write(state), **step_delta("writer", state["question"])}

    def reviewer(state):
        stop, reason = should_truncate(state)
        ending = honest_truncation_delta(reason) if stop else {"review_decision": review(state["draft"])}
        return {**ending, **step_delta("reviewer", state["draft"])}

Counted are node executions: N nodes that run in parallel are N steps here and one super-step of `recursion_limit`.
Both switches are off by default; then nothing is ever truncated.
"""

from __future__ import annotations

import hashlib
import operator
import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, TypedDict, cast

from endstop._errors import ConfigError
from endstop._limits import check_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Language: TypeAlias = Literal["zh", "en"]
"""The language of reasons and banners."""

_LANGUAGES: tuple[Language, ...] = ("zh", "en")

ENVIRONMENT_PREFIX = "ENDSTOP_"
"""What opens the name of each setting in the environment: `ENDSTOP_MAX_TOTAL_STEPS` is `max_total_steps`."""

SIGNED_CHARACTERS = 80
"""How much of a parameter a signature tells apart."""

BANNERS: Mapping[Language, str] = MappingProxyType(
    {
        "zh": "⚠️ 本次研究因步数预算/循环检测被截断，以下为基于已有材料的部分结果。",
        "en": "⚠️ This research was cut short by its step budget or loop detection; "
        "what follows is a partial result from the material at hand.",
    }
)
"""What a truncated report opens with, so that nobody takes it for the whole."""

_OVER_BUDGET: Mapping[Language, str] = {
    "zh": "步数预算超限（{count}/{limit}）",
    "en": "step budget exceeded ({count}/{limit})",
}
_LOOP: Mapping[Language, str] = {"zh": "检测到动作循环", "en": "action loop detected"}
_FEEDBACK: Mapping[Language, str] = {"zh": "诚实收尾：{reason}", "en": "honest ending: {reason}"}


def add_int(left: int | None, right: int | None) -> int:
    """The reducer of `step_count`: the writes of parallel nodes add up, and none overwrites another."""
    return (left or 0) + (right or 0)


class StepBudgetState(TypedDict, total=False):
    """The state that the odometer needs; a graph's own state inherits from it."""

    step_count: Annotated[int, add_int]
    truncated: bool
    action_history: Annotated[list[str], operator.add]


class StepDelta(TypedDict):
    """What one execution of a node adds to the state."""

    step_count: int
    action_history: list[str]


class TruncationDelta(TypedDict):
    """What a node that ends the run early writes. A key that a graph's state does not have is ignored by LangGraph."""

    truncated: bool
    review_decision: str
    review_feedback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBudgetSettings:
    """When a run is to end. Both switches are off by default.

    Raises:
        ConfigError: a value cannot be used; the error names the field.
    """

    enable_step_budget: bool = False
    max_total_steps: int = 30
    """Node executions from which on `should_truncate` says so; the node that asks still counts itself."""
    enable_loop_detect: bool = False
    loop_window: int = 3
    """How many equal actions running are a loop; at least 2."""
    language: Language = "zh"

    def __post_init__(self) -> None:
        for name in ("enable_step_budget", "enable_loop_detect"):
            value: object = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(name, value, "use True or False")
        check_count("max_total_steps", self.max_total_steps)
        check_count("loop_window", self.loop_window, least=2)
        if self.language not in _LANGUAGES:
            raise ConfigError("language", self.language, "use 'zh' or 'en'")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> StepBudgetSettings:
        """The settings of the environment: each field in capitals behind `ENDSTOP_`, the default where it is not set.

        Switches are `1`, `true`, `yes`, `on` or `0`, `false`, `no`, `off`, in any case. An empty value is none.

        Raises:
            ConfigError: a variable has a value that cannot be used; the error names the variable.
        """
        given, default = os.environ if environ is None else environ, cls()
        try:
            return cls(
                enable_step_budget=_switch(given, "enable_step_budget", default.enable_step_budget),
                max_total_steps=_count(given, "max_total_steps", default.max_total_steps),
                enable_loop_detect=_switch(given, "enable_loop_detect", default.enable_loop_detect),
                loop_window=_count(given, "loop_window", default.loop_window),
                language=_language(given, "language", default.language),
            )
        except ConfigError as error:
            raise ConfigError(_variable(error.field), error.value, error.remedy) from None


def step_delta(node: str, param: str) -> StepDelta:
    """One execution of `node`, to be merged into what it returns; `param` is what it worked on."""
    return {"step_count": 1, "action_history": [_signature(node, param)]}


def detect_loop(action_history: Sequence[str], window: int = 3) -> bool:
    """Whether the last `window` signatures are all the same; a shorter history never is a loop.

    This is the plain rule, which nodes that take turns never meet. `endstop.LoopPolicy` describes a detector that also
    sees cycles, and compares whole texts.
    """
    check_count("window", window, least=1)
    return len(action_history) >= window and len(set(action_history[-window:])) == 1


def should_truncate(state: Mapping[str, object], settings: StepBudgetSettings | None = None) -> tuple[bool, str]:
    """Whether the run is to end here, and why; the reason is empty where it is not.

    Without `settings` the environment has them, read at every call.
    """
    chosen = StepBudgetSettings.from_env() if settings is None else settings
    # A channel that nothing was written to is missing, or None where the graph gave it no reducer.
    count = cast("int", state.get("step_count") or 0)  # `add_int` made it
    history = cast("Sequence[str]", state.get("action_history") or ())  # `step_delta` made what is in it
    if chosen.enable_step_budget and count >= chosen.max_total_steps:
        return True, _OVER_BUDGET[chosen.language].format(count=count, limit=chosen.max_total_steps)
    if chosen.enable_loop_detect and detect_loop(history, chosen.loop_window):
        return True, _LOOP[chosen.language]
    return False, ""


def honest_truncation_delta(reason: str, *, language: Language = "zh") -> TruncationDelta:
    """What the node that ends the run writes: the mark, and a review that passes what is there and says why.

    The report then opens with the banner of `BANNERS`.
    """
    return {
        "truncated": True,
        "review_decision": "pass",
        "review_feedback": _FEEDBACK[language].format(reason=reason),
    }


def _signature(node: str, param: str) -> str:
    """The node, and eight hexadecimal digits that stand for what it worked on."""
    # Text with half a surrogate pair, which models do write, is no valid UTF-8 and must be signed all the same.
    signed = param[:SIGNED_CHARACTERS].encode("utf-8", "surrogatepass")
    return f"{node}:{hashlib.md5(signed, usedforsecurity=False).hexdigest()[:8]}"


def _variable(field: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{field.upper()}"


def _switch(environ: Mapping[str, str], field: str, default: bool) -> bool:
    text = environ.get(_variable(field), "").strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    if text:
        raise ConfigError(field, text, "use 1, true, yes or on, or 0, false, no or off")
    return default


def _count(environ: Mapping[str, str], field: str, default: int) -> int:
    text = environ.get(_variable(field), "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigError(field, text, "use a whole number")
    return int(text) if text else default


def _language(environ: Mapping[str, str], field: str, default: Language) -> Language:
    text = environ.get(_variable(field), "").strip().lower()
    for language in _LANGUAGES:
        if text == language:
            return language
    if text:
        raise ConfigError(field, text, "use 'zh' or 'en'")
    return default
