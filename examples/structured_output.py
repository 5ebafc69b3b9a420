"""Structured output: a type in, a checked value out, and what is sent back to the model where it does not fit."""

from datetime import date
from typing import Literal

from pydantic import BaseModel, Field

from endstop import Agent, OutputInvalid
from endstop.models.scripted import ScriptedModel, forever


class Ticket(BaseModel):
    """What a complaint is about."""

    product: str
    urgency: Literal["low", "high"]
    bought_on: date | None = None
    pieces: int = Field(gt=0)


model = ScriptedModel(
    [
        '{"product": "lamp", "urgency": "very high", "pieces": 2}',
        '```json\n{"product": "lamp", "urgency": "high", "pieces": 2, "bought_on": "2030-01-31"}\n```',
    ]
)
agent = Agent(model, output_type=Ticket)

if __name__ == "__main__":
    result = agent.run_sync("Both of the lamps that I bought on 31 January are broken, and it is dark!")
    ticket = result.output
    assert ticket is not None
    print(f"{ticket.pieces} x {ticket.product}, {ticket.urgency}, bought on {ticket.bought_on:%d.%m.%Y}")
    print(f"requests: {result.spent.model_calls}")

    # A model that never gets it right is asked again `output_repairs` times, inside the limits.
    hopeless = Agent(ScriptedModel([forever("It is urgent.")]), output_type=Ticket, output_repairs=1)
    try:
        hopeless.run_sync("My lamp is broken.")
    except OutputInvalid as error:
        print(f"{error.code}: {error.problem}")
