"""From a stream of token ids to a stream of text, whole characters only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.text.token_decoder import TextAssembler

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

#: Tokens of the prompt that matter to what follows: a character has at most four bytes, so four tokens.
_PROMPT_TAIL_TOKENS = 4


class IncrementalDetokenizer:
    """Turns ids into text one by one; all deltas and the flush joined equal `tokenizer.decode(ids)`.

    `prompt` are the ids that stand before the first pushed one: then the text is a continuation, its first word keeps
    its space, and a character that the prompt began is finished here. Every push is constant work
    and holds at most three bytes back. One detokenizer serves one sequence.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._assembler = TextAssembler(tokenizer.decoder)
        self._at_start = True
        for token in prompt[-_PROMPT_TAIL_TOKENS:]:
            self.push(token)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes, perhaps none. Raises `InvalidField` for a negative id."""
        if token_id in self._hidden_ids:
            return ""
        if self._assembler.is_clean and not self._at_start:
            text = self._tokenizer.whole_text(token_id)
            if text is not None:
                return text
        piece = self._tokenizer.piece_bytes(token_id, first=self._at_start)
        self._at_start = False
        return self._assembler.push(piece)

    def flush(self) -> str:
        """The rest at the end of a sequence: U+FFFD for a character that was never finished."""
        return self._assembler.push(b"", final=True)
