"""What every `Model` must keep, as contracts that can be run on any adapter.

An adapter is tried through a `ModelHarness`: it makes a model whose provider gives the answers that a
contract asks for, and reads back what that provider was sent.

::

    for result in await check_model(MyHarness()):
        print(result)

or, one test for each contract::

    @pytest.mark.parametrize("contract", model_contracts(), ids=str)
    async def test_contract(contract):
        await contract.check(MyHarness())
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import anyio

from endstop.testing._model_contracts import CONTRACTS
from endstop.testing._model_wire import (
    Contract,
    ContractBroken,
    ModelHarness,
    Unsupported,
    WireAnswer,
    WireCall,
    WireFailure,
)

__all__ = [
    "Contract",
    "ContractBroken",
    "ContractResult",
    "ModelHarness",
    "Unsupported",
    "WireAnswer",
    "WireCall",
    "WireFailure",
    "check_model",
    "model_contracts",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractResult:
    """How a contract went; `detail` says why it is broken or was skipped."""

    contract: Contract
    status: Literal["held", "broken", "skipped"]
    detail: str = ""

    def __str__(self) -> str:
        line = f"{self.status:7} {self.contract}: {self.contract.rule}"
        return f"{line} ({self.detail})" if self.detail else line


def model_contracts() -> tuple[Contract, ...]:
    """Every contract, in order."""
    return tuple(CONTRACTS)


async def check_model(harness: ModelHarness, *, contract_seconds: float = 30.0) -> list[ContractResult]:
    """Try every contract on an adapter. One that raises, or takes longer, is broken, and the next is tried."""
    results: list[ContractResult] = []
    for contract in model_contracts():
        status: Literal["held", "broken", "skipped"] = "held"
        detail = ""
        try:
            with anyio.fail_after(contract_seconds):
                await contract.check(harness)
        except Unsupported as reason:
            status, detail = "skipped", str(reason)
        except Exception as error:
            status, detail = "broken", str(error) if isinstance(error, ContractBroken) else repr(error)
        results.append(ContractResult(contract=contract, status=status, detail=detail))
    return results
