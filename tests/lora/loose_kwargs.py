"""The conversion chain of the report, reduced: what a step is not handed on is lost without a word.

Modelled on ``gather_all_hf_weights`` and ``_gather_hf_weights`` (alibaba/ROLL,
``roll/third_party/megatron/model_update.py``) and ``get_lora_conver_op`` (``template.py``) as the
report describes them: options travel as ``**kwargs``, the branch that flushes a full buffer calls
the conversion without them, and the chain for one pipeline stage was never given ``lora_rank``.
"""

from collections.abc import Iterator
from typing import Any

import torch

from wsync_lab.lora.megatron.context import ConverterContext
from wsync_lab.lora.megatron.names import MatrixName

Named = list[tuple[MatrixName, torch.Tensor]]


def gather_all(named: Named, model: ConverterContext, buffer_bytes: int, **kwargs: Any) -> Iterator[Any]:
    """The chain with an intermediate flush."""
    waiting: Named = []
    waiting_bytes = 0
    for name, weight in named:
        if waiting and waiting_bytes + weight.nbytes > buffer_bytes:
            yield from convert(waiting, model)  # the fault: **kwargs stay behind
            waiting, waiting_bytes = [], 0
        waiting.append((name, weight))
        waiting_bytes += weight.nbytes
    if waiting:
        yield from convert(waiting, model, **kwargs)


def gather_one_stage(named: Named, model: ConverterContext, **kwargs: Any) -> Iterator[Any]:
    """The other chain: it takes options, and was never made to pass on the rank."""
    yield from convert(named, model, **{key: value for key, value in kwargs.items() if key != "lora_rank"})


def convert(named: Named, model: ConverterContext, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """PEFT's tensors; the width of a fused ``B`` is ``lora_rank``, or else the model's hidden size."""
    for name, weight in named:
        if (name.module, name.matrix) == ("self_attention.linear_qkv", "B"):
            yield from split_qkv(name, weight, model, kwargs.get("lora_rank", model.hidden_size))


def split_qkv(
    name: MatrixName, weight: torch.Tensor, model: ConverterContext, width: int
) -> Iterator[tuple[str, torch.Tensor]]:
    groups, dim = model.num_query_groups, model.head_dim
    heads = dim * model.num_attention_heads // groups
    rows = weight.reshape(groups, heads + 2 * dim, -1)
    parts = rows.split([heads, dim, dim], dim=1)
    for part, piece in zip(("q_proj", "k_proj", "v_proj"), parts, strict=True):
        yield name.peft(f"self_attn.{part}"), piece.reshape(-1, width)
