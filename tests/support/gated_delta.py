"""A real, small Gated DeltaNet layer over state tables: convolution window and matrix state.

One token x, per head: y = silu(window(x) * kernel), split into q, k, v (q and k normalised);
S <- g S; S <- S + beta k (v - S^T k)^T; out = S^T q. g and beta come from x.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from arcpp.backends.torch_state import TorchTables
from arcpp.link.frame import TensorSpec
from arcpp.state import SlotPool, Window


@dataclass
class GatedDelta:
    """Weights. heads of key and value size ``size``; ``width``: of the convolution."""

    dtype: torch.dtype
    heads: int = 2
    size: int = 8
    width: int = 4

    def __post_init__(self) -> None:
        made = torch.Generator().manual_seed(3)
        channels = 3 * self.heads * self.size
        self.kernel = torch.randn(channels, self.width, generator=made, dtype=self.dtype)
        self.into = torch.randn(channels + 2 * self.heads, 6, generator=made, dtype=self.dtype)

    @property
    def arrays(self) -> tuple[TensorSpec, ...]:
        """One place: the last width - 1 inputs of the convolution, and a matrix per head."""
        name = str(self.dtype).removeprefix("torch.")
        return (
            TensorSpec("conv", name, (3 * self.heads * self.size, self.width - 1)),
            TensorSpec("ssm", name, (self.heads, self.size, self.size)),
        )

    def run(self, tables: TorchTables, read: int, writes: list[int], tokens: Tensor) -> Tensor:
        """Outputs [tokens, heads, size]; the state after token i goes to writes[i]."""
        conv, ssm = tables.tensors["conv"][read].clone(), tables.tensors["ssm"][read].clone()
        outputs = []
        for token, place in zip(tokens, writes, strict=True):
            conv, ssm, out = self._token(conv, ssm, token)
            tables.tensors["conv"][place] = conv
            tables.tensors["ssm"][place] = ssm
            outputs.append(out)
        return torch.stack(outputs)

    def _token(self, conv: Tensor, ssm: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mixed = self.into @ token
        x, gates = mixed[: -2 * self.heads], mixed[-2 * self.heads :].view(2, self.heads, 1, 1)
        window = torch.cat([conv, x[:, None]], dim=1)
        parts = functional.silu((window * self.kernel).sum(1)).view(3, self.heads, self.size)
        q, k = functional.normalize(parts[0], dim=-1), functional.normalize(parts[1], dim=-1)
        ssm = ssm * torch.sigmoid(gates[0])
        error = parts[2] - torch.einsum("hkv,hk->hv", ssm, k)
        ssm = ssm + torch.sigmoid(gates[1]) * torch.einsum("hk,hv->hkv", k, error)
        return window[:, 1:], ssm, torch.einsum("hkv,hk->hv", ssm, q)


def places(window: Window, tokens: int) -> list[int]:
    """Where each of ``tokens`` goes: a step of several leaves only its end."""
    return list(window.writes) * tokens if len(window.writes) == 1 else list(window.writes)


def straight(layer: GatedDelta, tokens: Tensor) -> Tensor:
    """Outputs of one request alone, token by token, from state that is zero."""
    tables = TorchTables.allocate(layer.arrays, 1, "cpu")
    tables.zero([0])
    return torch.cat([layer.run(tables, 0, [0], token[None]) for token in tokens])


def prefill(layer: GatedDelta, pool: SlotPool, slot: object, tokens: Tensor) -> Tensor:
    """Outputs of one step of all ``tokens``."""
    window = pool.step(slot)  # type: ignore[arg-type]
    return layer.run(pool.tables, window.read, places(window, len(tokens)), tokens)  # type: ignore[arg-type]
