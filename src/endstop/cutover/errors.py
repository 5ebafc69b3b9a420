"""What the callers of a LangGraph agent catch, raised for turns that the kernel served.

::

    RunError                              a run failed; `state` holds what was done before
    ├── AgentError                        the turn failed, as the legacy stream tells it
    └── RecursionExhaustedError           the round budget ran out without an answer
                                          (a GraphRecursionError of LangGraph's, too)

`except GraphRecursionError` catches the second, as it does where the graph itself runs out of super-steps. Neither is
the other, as with the errors of the graph: a handler of failures does not see a budget that ran out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from langgraph.errors import GraphRecursionError

from endstop._errors import RunError

if TYPE_CHECKING:
    from endstop._state import RunState


class AgentError(RunError):
    """The turn failed; the message is the kernel's own account of it."""

    code: ClassVar[str] = "agent"


class RecursionExhaustedError(RunError, GraphRecursionError):
    """The model rounds that the recursion limit stands for were used up without an answer.

    `run_id` is the turn's, and `state` what was done until then, `None` where that is not known:
    `agent.resume(error.state, limits=...)` goes on from it.
    """

    code: ClassVar[str] = "recursion_exhausted"

    def __init__(self, run_id: str = "", *, state: RunState | None = None) -> None:
        self.run_id = run_id
        self.state = state
        whose = f" of run {run_id!r}" if run_id else ""
        super().__init__(
            f"recursion_exhausted: the round budget{whose} ran out without an answer; "
            "raise config.agent.recursion_limit, or ask for less in one turn"
        )
