"""Reading a Hugging Face config dict so that nothing in it is overlooked.

`ConfigReader` hands out fields one by one and remembers them; `finish()` refuses whatever was neither read nor
known to be without effect on the computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.core.errors import UnsupportedModel

_INERT = """
architectures model_type transformers_version torch_dtype dtype use_cache initializer_range attention_dropout
hidden_dropout attn_pdrop embd_pdrop resid_pdrop dropout classifier_dropout
bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id forced_bos_token_id
forced_eos_token_id suppress_tokens begin_suppress_tokens bad_words_ids
_name_or_path name_or_path _commit_hash return_dict return_dict_in_generate output_attentions
output_hidden_states output_scores id2label label2id problem_type task_specific_params tokenizer_class prefix
finetuning_task chunk_size_feed_forward torchscript use_bfloat16 tf_legacy_loss is_llama_config
transformers.js_config unsloth_version unsloth_fixed _attn_implementation _attn_implementation_autoset
attn_implementation quantization_config
temperature top_k top_p typical_p do_sample max_length min_length max_new_tokens num_beams num_beam_groups
num_return_sequences early_stopping repetition_penalty length_penalty no_repeat_ngram_size
encoder_no_repeat_ngram_size diversity_penalty exponential_decay_length_penalty remove_invalid_values
output_router_logits router_aux_loss_coef router_jitter_noise
"""
#: Fields that do not change what a forward pass computes: training, bookkeeping, generation defaults (which the
#: engine reads from generation_config.json), and `quantization_config`, which the checkpoint reader has honoured.
INERT_FIELDS = frozenset(_INERT.split())

#: Fields that would change the computation, and the one value under which they do not.
NEUTRAL_VALUES: dict[str, Any] = {
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "tie_encoder_decoder": False,
    "pruned_heads": {},
    "rope_interleaved": False,
    "use_bidirectional_attention": False,
}


class ConfigReader:
    """One pass over a config. Every `take` names the type it wants; a wrong one is an `UnsupportedModel`."""

    def __init__(self, config: Mapping[str, Any], prefix: str = "") -> None:
        self._config = config
        self._prefix = prefix
        self._taken: set[str] = set()

    def take(self, name: str, default: Any = None) -> Any:
        """The raw value; absent and null are both `default`."""
        self._taken.add(name)
        value = self._config.get(name)
        return default if value is None else value

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.take(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            self.refuse(name, "a whole number above zero is needed")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.take(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.refuse(name, "a number is needed")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            self.refuse(name, "true or false is needed")
        return value

    def softcap(self, name: str) -> float | None:
        return None if self.take(name) is None else self.number(name)

    def refuse(self, name: str, reason: str) -> None:
        """Raise `UnsupportedModel` naming the field and its value."""
        raise UnsupportedModel(f"config field {self._prefix}{name} is {self._config.get(name)!r}: {reason}")

    def finish(self) -> None:
        """Refuse every field that is set, was not taken and is not known to be inert."""
        for name, value in self._config.items():
            if value is None or name in self._taken or name in INERT_FIELDS:
                continue
            if name in NEUTRAL_VALUES:
                if value != NEUTRAL_VALUES[name]:
                    self.refuse(name, f"only {NEUTRAL_VALUES[name]!r} is understood")
                continue
            self.refuse(name, "this field is not understood, and might change what the model computes")
