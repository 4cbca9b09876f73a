"""A small hybrid model in plain torch, of Qwen3.5's form, any of whose layers make a stage.

Gated DeltaNet layers, every fourth attention; weights are random by the layer's number, so that a
layer is the same whichever stage has it. Its sizes are written as a config.json, from which arcpp
knows its layers, and what they keep between steps. It is plain and not fast: the recurrence goes
token by token, attention looks at a whole row of the cache under a mask.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import deterministic

_THETA = 10000.0
_EPSILON = 1e-6


@dataclass(frozen=True)
class Sizes:
    """layers: every fourth is attention. hidden, inner: widths of a layer and of its MLP. heads,
    keys: of attention, of ``size`` each. delta_keys, deltas: of Gated DeltaNet. kernel: tokens of
    its convolution. length: most tokens of a request, prompt and answer."""

    layers: int = 12
    hidden: int = 512
    inner: int = 1536
    vocab: int = 4096
    heads: int = 8
    keys: int = 2
    size: int = 64
    delta_keys: int = 4
    deltas: int = 8
    kernel: int = 4
    length: int = 96

    def is_attention(self, layer: int) -> bool:
        return layer % 4 == 3

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return (2 * self.delta_keys + self.deltas) * self.size

    def write(self, folder: Path, dtype: str) -> Path:
        """The model's config.json, in ``folder``."""
        config = {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "dtype": dtype,
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.keys,
            "head_dim": self.size,
            "full_attention_interval": 4,
            "linear_num_key_heads": self.delta_keys,
            "linear_num_value_heads": self.deltas,
            "linear_key_head_dim": self.size,
            "linear_value_head_dim": self.size,
            "linear_conv_kernel_dim": self.kernel,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": self.length,
            "tie_word_embeddings": False,
        }
        place = folder / f"config-{dtype}.json"
        place.write_text(json.dumps(config, indent=1), encoding="utf-8")
        return place


@dataclass(frozen=True)
class Batch:
    """What one step computes, on a stage's device, token by token and request by request.

    positions, rows: of each token, its place in its request and its request's row of the KV
    cache. spans: the tokens of each request, (first, count). reads, writes: each request's places
    in the tables of state. last: each request's last token.
    """

    positions: Tensor
    rows: Tensor
    spans: Sequence[tuple[int, int]]
    reads: Tensor
    writes: Tensor
    last: Tensor


class Stage:
    """Layers [low, high) on ``device``, with the embedding if it is first, the head if last.

    state: arrays of the recurrent layers, [places, ...], named as arcpp.stage_state names them.
    rows: of the KV cache, one per request at once; allocated here and never again.
    """

    def __init__(
        self,
        sizes: Sizes,
        low: int,
        high: int,
        *,
        dtype: torch.dtype,
        device: str,
        state: dict[str, Tensor],
        rows: int,
    ) -> None:
        self.sizes, self.low, self.high = sizes, low, high
        self.device, self.dtype, self.state = device, dtype, state
        self.layers = [self._loaded(layer_weights(sizes, layer)) for layer in range(low, high)]
        ends = end_weights(sizes)
        held = (["embed"] if low == 0 else []) + (["norm", "head"] if high == sizes.layers else [])
        self.ends = self._loaded({name: ends[name] for name in held})
        shape = (rows, sizes.length, 2, sizes.keys, sizes.size)
        self.caches = {
            layer: torch.zeros(shape, dtype=dtype, device=device)
            for layer in range(low, high)
            if sizes.is_attention(layer)
        }
        self._all = torch.arange(sizes.length, device=device)
        self._turns = _THETA ** (-torch.arange(0, sizes.size, 2, device=device) / sizes.size)

    def _loaded(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: each.to(self.device, self.dtype) for name, each in weights.items()}

    def layer_bytes(self) -> list[int]:
        """Bytes of each layer's weights."""
        return [sum(each.nbytes for each in layer.values()) for layer in self.layers]

    def embed(self, tokens: Tensor) -> Tensor:
        """[tokens] -> [tokens, hidden]; of the first stage."""
        return self.ends["embed"][tokens]

    def through(self, hidden: Tensor, batch: Batch) -> Tensor:
        """[tokens, hidden] before this stage's layers -> after them."""
        for number, weights in enumerate(self.layers, self.low):
            x = _norm(hidden, weights["norm"])
            if self.sizes.is_attention(number):
                hidden = hidden + self._attention(weights, self.caches[number], x, batch)
            else:
                hidden = hidden + self._delta(weights, number, x, batch)
            x = _norm(hidden, weights["mlp_norm"])
            gated = functional.silu(x @ weights["gate"].T) * (x @ weights["up"].T)
            hidden = hidden + gated @ weights["down"].T
        return hidden

    def sample(self, hidden: Tensor, batch: Batch) -> Tensor:
        """The likeliest next token of each request; of the last stage."""
        x = _norm(hidden[batch.last], self.ends["norm"])
        return (x @ self.ends["head"].T).argmax(-1)

    def _attention(self, w: dict[str, Tensor], cache: Tensor, x: Tensor, batch: Batch) -> Tensor:
        sizes, tokens = self.sizes, len(x)
        query, gate = (x @ w["q"].T).view(tokens, sizes.heads, 2, sizes.size).unbind(2)
        key = _norm((x @ w["k"].T).view(tokens, sizes.keys, sizes.size), w["k_norm"])
        value = (x @ w["v"].T).view(tokens, sizes.keys, sizes.size)
        angles = batch.positions[:, None] * self._turns
        query, key = _turned(_norm(query, w["q_norm"]), angles), _turned(key, angles)
        cache[batch.rows, batch.positions] = torch.stack([key, value], 1)
        keys, values = cache[batch.rows].unbind(2)  # [tokens, length, keys, size]
        query = query.view(tokens, sizes.keys, -1, sizes.size)
        scores = torch.einsum("tkgs,tlks->tkgl", query, keys).float() / math.sqrt(sizes.size)
        later = self._all > batch.positions[:, None]
        weights = scores.masked_fill(later[:, None, None], -math.inf).softmax(-1).to(self.dtype)
        out = torch.einsum("tkgl,tlks->tkgs", weights, values).reshape(tokens, sizes.heads, -1)
        return (out * torch.sigmoid(gate)).flatten(1) @ w["o"].T

    def _delta(self, w: dict[str, Tensor], number: int, x: Tensor, batch: Batch) -> Tensor:
        """Reads every request's state before it writes any: places may be exchanged."""
        window, matrix = self.state[f"conv.{number}"], self.state[f"ssm.{number}"]
        mixed, gates = x @ w["qkv"].T, x @ w["ba"].T
        windows, matrices = window[batch.reads], matrix[batch.reads]
        outputs, ends = [], []
        for first, last, tokens in _alike(batch.spans):
            begin, count = batch.spans[first]
            part = slice(begin, begin + tokens)
            shape = (last - first, count, -1)
            out, *end = self._recur(
                w, windows[first:last], matrices[first:last],
                mixed[part].view(shape), gates[part].view(shape),
            )  # fmt: skip
            outputs.append(out)
            ends.append(end)
        window[batch.writes] = torch.cat([end[0] for end in ends])
        matrix[batch.writes] = torch.cat([end[1] for end in ends])
        out = _norm(torch.cat(outputs).to(self.dtype), w["delta_norm"])
        out = out * functional.silu(x @ w["z"].T).view(out.shape)
        return out.flatten(1) @ w["out"].T

    def _recur(
        self, w: dict[str, Tensor], window: Tensor, matrix: Tensor, mixed: Tensor, gates: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Requests with equally many tokens: outputs [all tokens, heads, size], and both states.

        mixed [requests, tokens, channels], gates [requests, tokens, 2 heads].
        """
        sizes, each = self.sizes, self.sizes.deltas // self.sizes.delta_keys
        split = [sizes.delta_keys * sizes.size] * 2 + [sizes.deltas * sizes.size]
        outputs = []
        for token in range(mixed.shape[1]):
            seen = torch.cat([window, mixed[:, token : token + 1]], 1)
            window = seen[:, 1:]
            y = functional.silu((seen.float() * w["kernel"].float()).sum(1))
            q, k, v = (part.unflatten(1, (-1, sizes.size)) for part in y.split(split, 1))
            q, k = (_repeated(functional.normalize(part, dim=-1), each) for part in (q, k))
            beta, step = gates[:, token].float().chunk(2, -1)
            decay = torch.exp(-w["a_log"].float().exp() * functional.softplus(step + w["dt_bias"]))
            matrix = matrix * decay[..., None, None]
            error = (v - (matrix * k[:, :, None]).sum(-1)) * torch.sigmoid(beta)[..., None]
            matrix = matrix + error[..., None] * k[:, :, None]
            outputs.append((matrix * q[:, :, None]).sum(-1))
        return torch.stack(outputs, 1).flatten(0, 1), window, matrix


def layer_weights(sizes: Sizes, layer: int) -> dict[str, Tensor]:
    """Weights of a layer, in float32 on the CPU; names and shapes as Qwen3.5 has them."""
    made = torch.Generator().manual_seed(100 + layer)
    hidden, size = sizes.hidden, sizes.size
    shapes: dict[str, tuple[int, int]] = {
        "gate": (sizes.inner, hidden),
        "up": (sizes.inner, hidden),
        "down": (hidden, sizes.inner),
    }
    ones = {"norm": hidden, "mlp_norm": hidden}
    others = {}
    if sizes.is_attention(layer):
        shapes |= {"q": (2 * sizes.heads * size, hidden), "o": (hidden, sizes.heads * size)}
        shapes |= {"k": (sizes.keys * size, hidden), "v": (sizes.keys * size, hidden)}
        ones |= {"q_norm": size, "k_norm": size}
    else:
        shapes |= {"qkv": (sizes.channels, hidden), "ba": (2 * sizes.deltas, hidden)}
        shapes |= {"z": (sizes.deltas * size, hidden), "out": (hidden, sizes.deltas * size)}
        ones |= {"delta_norm": size}
        others["kernel"] = torch.randn(sizes.kernel, sizes.channels, generator=made)
        # Decays from 0.5 to nearly 1 a token: state that is wrong stays so for a while.
        others["a_log"] = torch.rand(sizes.deltas, generator=made) * 2 - 2
        others["dt_bias"] = torch.rand(sizes.deltas, generator=made) * 4 - 4
    weights = {name: _matrix(shape, made) for name, shape in shapes.items()}
    return weights | {name: torch.ones(count) for name, count in ones.items()} | others


def end_weights(sizes: Sizes) -> dict[str, Tensor]:
    """Embedding, last norm and head."""
    made = torch.Generator().manual_seed(99)
    return {
        "embed": torch.randn(sizes.vocab, sizes.hidden, generator=made),
        "norm": torch.ones(sizes.hidden),
        "head": _matrix((sizes.vocab, sizes.hidden), made),
    }


def make_exact(device: str) -> None:
    """The same bits whenever the same is computed on this kind of device, in this process.

    To be called before anything is. Two processes, and two cards of one kind, then agree.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    deterministic.fill_uninitialized_memory = False  # it costs time, and hides what is read
    if torch.device(device).type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def _alike(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Adjacent requests with equally many tokens: (first, last + 1, tokens of all)."""
    found: list[tuple[int, int, int]] = []
    for at, (_, count) in enumerate(spans):
        if found and spans[found[-1][0]][1] == count:
            first, _, tokens = found[-1]
            found[-1] = first, at + 1, tokens + count
        else:
            found.append((at, at + 1, count))
    return found


def _matrix(shape: tuple[int, int], made: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=made) / math.sqrt(shape[1])


def _repeated(x: Tensor, times: int) -> Tensor:
    """x [requests, heads, size] -> [requests, heads * times, size]."""
    return x[:, :, None].expand(-1, -1, times, -1).flatten(1, 2)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPSILON)
    return scaled.to(x.dtype) * weight


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions: x [tokens, heads, size], angles [tokens, size / 2]."""
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    one, other = x.float().chunk(2, -1)
    turned = torch.cat([one * cosine - other * sine, other * cosine + one * sine], -1)
    return turned.to(x.dtype)
