"""Chat models for the assistant: a scripted one, and any model of endstop behind LangChain's interface."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from anyio.from_thread import BlockingPortal
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import ConfigDict, PrivateAttr, SkipValidation

from endstop import Agent, AgentResult, Model

from .nodes import RESEARCH_TEAM, RESEARCHER, REVIEWER, SPLIT, SUMMARIZE, WRITER

DEMO_QUESTION = "Which is the safe way to wire an endstop, normally open or normally closed, if a wire breaks?"
"""A question on which two of the documents contradict each other."""


class ScriptedChat(BaseChatModel):
    """Answers each node from a list of its own, in order; the last answer of a list comes again and again.

    `script` has the nodes' instructions as keys. It serves parallel nodes: only the order within one list is kept.
    """

    script: Mapping[str, Sequence[str]]
    _given: dict[str, int] = PrivateAttr(default_factory=dict)
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @classmethod
    def demo(cls) -> ScriptedChat:
        """A run on `DEMO_QUESTION` with one conflict of facts and one rewrite."""
        return cls(script=DEMO_SCRIPT)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> ChatResult:
        prompt = str(messages[-1].text)
        instructions = next(each for each in self.script if prompt.endswith(each))
        answers = self.script[instructions]
        with self._lock:
            given = self._given.get(instructions, 0)
            self._given[instructions] = given + 1
        return _result(answers[min(given, len(answers) - 1)])


class EndstopChat(BaseChatModel):
    """A model of endstop (`OpenAIModel`, or any other) as a chat model of LangChain: text in, text out, no tools.

    Each answer is a run of an agent in the event loop of `portal`, so that nodes may ask from any thread, and what
    fails in passing is sent again.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    answers: SkipValidation[Model]
    portal: BlockingPortal
    _asked: list[Future[AgentResult[str]]] = PrivateAttr(default_factory=list)
    _cancelled: bool = PrivateAttr(default=False)

    def cancel(self) -> None:
        """End every request that is under way, and each that may still come, with `CancelledError`."""
        self._cancelled = True
        for asked in list(self._asked):
            asked.cancel()

    @property
    def _llm_type(self) -> str:
        return "endstop"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> ChatResult:
        prompt = "\n\n".join(str(message.text) for message in messages)
        asked = self.portal.start_task_soon(Agent(self.answers).run, prompt)
        self._asked.append(asked)
        if self._cancelled:
            asked.cancel()
        result = asked.result()
        used = UsageMetadata(
            input_tokens=result.spent.input_tokens,
            output_tokens=result.spent.output_tokens,
            total_tokens=result.spent.tokens,
        )
        return _result(result.text, used)


def _result(text: str, used: UsageMetadata | None = None) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=AIMessage(text, usage_metadata=used))])


DEMO_SCRIPT: Mapping[str, Sequence[str]] = {
    SPLIT: [
        "What does a normally closed endstop do when its wire breaks?\n"
        "What does a normally open endstop do when its wire breaks?\n"
        "How are several endstops wired to one input?"
    ],
    RESEARCHER: ["The sources answer this; see the documents named below."],
    SUMMARIZE: [
        "Normally closed circuits carry current until the switch is pressed [normally-closed-wiring.md]. The club note "
        "calls normally open wiring the safe one [club-note-on-switch-wiring.md]; the two contradict each other."
    ],
    RESEARCH_TEAM: [
        "A broken wire opens a normally closed circuit [normally-closed-wiring.md]; the club says that it does no harm "
        "to a normally open one [club-note-on-switch-wiring.md].",
        "Trust normally-closed-wiring.md: it says why, and how to check it. The club note says itself that nobody has "
        "tried to unplug a wire.",
    ],
    WRITER: [
        "Sources differ on whether normally closed or normally open wiring is safe.",
        "Wire them normally closed [normally-closed-wiring.md].",
        "Wire the endstops normally closed, in series where they share an input. A broken wire then reads as a pressed "
        "switch and stops the machine at once, standing still; with a normally open switch it would be noticed only "
        "when the carriage does not stop [normally-closed-wiring.md]. The club note that says the opposite was never "
        "put to the test [club-note-on-switch-wiring.md].",
    ],
    REVIEWER: [
        "CONFLICT: does a broken wire to a normally open switch stop the machine?",
        "REWRITE: say why, and what becomes of the source that says the opposite.",
        "PASS",
    ],
}
"""What the scripted model answers in a demo without any other model."""
