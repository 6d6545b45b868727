"""Where the columns of the two streams stand, and the rule of who may attend to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

PADDING = -1  # the document of columns that hold nothing; they see each other, and nobody sees them


@dataclass(frozen=True)
class Columns:
    """Where each column of R rows stands.

    Attributes:
        noisy: [R, S], True in the noisy stream.
        document: [R, S], number of the example it belongs to, or `PADDING`.
        position: [R, S], in its document; the same in both streams.
        block: [R, S], position at which its block starts; of noisy columns.
    """

    noisy: torch.Tensor
    document: torch.Tensor
    position: torch.Tensor
    block: torch.Tensor

    def up_to(self, stop: int) -> Columns:
        """The first columns of each row."""
        return Columns(*(tensor[:, :stop] for tensor in vars(self).values()))


def may_attend(
    columns: Columns, row: Any, query: Any, key: Any, sliding_window: int | None = None
) -> torch.Tensor:
    """True where column `query` of a row may attend to column `key` of it.

    The rules of arXiv 2604.07023, section on training, within one document:

    - clean → clean: causal;
    - noisy → noisy: same block, causal;
    - noisy → clean: strictly before the query's block;
    - clean → noisy: never.

    With a sliding window of w positions a query also sees none further back than w − 1. Row, query and key
    are indices (whole-number tensors) that broadcast; so this is FlexAttention's ``mask_mod`` too.
    """
    query_noisy, key_noisy = columns.noisy[row, query], columns.noisy[row, key]
    query_position, key_position = columns.position[row, query], columns.position[row, key]
    query_block, key_block = columns.block[row, query], columns.block[row, key]
    causal = key_position <= query_position
    clean_to_clean = ~query_noisy & ~key_noisy & causal
    noisy_to_noisy = query_noisy & key_noisy & (query_block == key_block) & causal
    noisy_to_clean = query_noisy & ~key_noisy & (key_position < query_block)
    allowed = clean_to_clean | noisy_to_noisy | noisy_to_clean
    allowed = allowed & (columns.document[row, query] == columns.document[row, key])
    if sliding_window is not None:
        allowed = allowed & (key_position > query_position - sliding_window)
    return allowed
