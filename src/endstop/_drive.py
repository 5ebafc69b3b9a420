"""The loop of every run."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from endstop._errors import LimitExceeded, OutputInvalid
from endstop._events import Done, Truncated
from endstop._steps import CallModel, Fail, Finish, Recall, Repair, RunTools, next_step

if TYPE_CHECKING:
    from endstop._events import Resumed, Started
    from endstop._run import Run
    from endstop._state import RunState


class Leg:
    """One leg of a run: from its start, or from where it is resumed, to its last event."""

    def __init__(self, run: Run, first: Started | Resumed) -> None:
        self._run = run
        self._first = first

    @property
    def state(self) -> RunState:
        """The run's state, its counters up to date."""
        self._run.sync()
        return self._run.state

    def cancel(self) -> None:
        """End the work now, in order."""
        self._run.cancel()

    async def drive(self) -> None:
        """Work within the time there is, end, and tell how."""
        with self._run as run:
            run.tell(self._first)
            while run.state.stop_reason is None:
                with run.working_time() as clock:
                    await _work(run)
                if clock.cancelled_caught or run.is_cancelled:
                    run.work_was_cut()
            if run.state.stop_reason != "cancelled":
                _tell_end(run)


def _tell_end(run: Run) -> None:
    result = run.result()
    if result.truncated and result.ending is not None:
        run.tell(Truncated(ending=result.ending))
        result = run.result()
        if result.ending is not None and run.state.limits.on_limit == "raise":
            raise LimitExceeded(result.ending, result)
    run.tell(Done(result=result))


async def _work(run: Run) -> None:
    """The loop: decide the next step from the state, do it, until the run is over."""
    while not isinstance(step := next_step(run.state, run.plan), Finish):
        if run.is_cancelled:
            return
        match step:
            case Recall(retrieval=retrieval):
                await run.recall(retrieval)
            case CallModel():
                await run.call_model(step)
            case RunTools():
                await run.run_tools(step)
            case Repair():
                run.repair(step.problem)
            case Fail():
                raise OutputInvalid(step.problem)
            case _:
                assert_never(step)
    run.state.stop_reason = step.stop_reason
    await run.apply_extractions()
