"""What embedding models and rerankers are made of: a BERT-like encoder with a WordPiece vocabulary, and a decoder whose
last token says it all, each with random weights.

The encoder's weights are single precision: a computation apart from llama.cpp can be held against it. Knows GGUF's
names of keys and tensors; it must not know the daemon.
"""

from __future__ import annotations

import math
import string

from gguf import GGUFWriter, PoolingType, TokenType

from scripts.draft_models import Builder
from scripts.gguf_weights import Sizes, Weights

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = ("the", "an", "of", "to", "in", "is", "are", "and", "what", "which", "city", "machine", "learning", "paris",
          "capital", "france", "river", "mountain", "model")  # fmt: skip
_PIECES = ("ing", "ed", "er", "ly", "tion", "ness", "es", "th")
# As converters write them: a word's beginning carries U+2581, what goes on a word nothing.
WORDPIECES = (
    *SPECIAL,
    *(f"\u2581{text}" for text in (*_WORDS, *string.ascii_lowercase, *string.digits, *string.punctuation)),
    *_PIECES,
    *string.ascii_lowercase,
    *string.digits,
)
RERANK_TEMPLATE = "<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n"


def write_wordpieces(w: GGUFWriter) -> int:
    """Returns the number of tokens."""
    w.add_tokenizer_model("bert")
    w.add_tokenizer_pre("default")
    w.add_token_list(WORDPIECES)
    w.add_token_types([TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(WORDPIECES) - len(SPECIAL)))
    w.add_token_type_count(2)
    w.add_pad_token_id(0)
    w.add_unk_token_id(1)
    w.add_bos_token_id(2)
    w.add_sep_token_id(3)
    w.add_mask_token_id(4)
    return len(WORDPIECES)


def bert(pooling: PoolingType) -> Builder:
    """With RANK also a classification head with one score."""

    def build(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
        w.add_block_count(s.n_layer)
        w.add_context_length(s.n_ctx)
        w.add_embedding_length(s.n_embd)
        w.add_feed_forward_length(s.n_ff)
        w.add_head_count(s.n_head)
        w.add_layer_norm_eps(1e-12)
        w.add_causal_attention(False)
        w.add_pooling_type(pooling)

        def dense(name: str, n_in: int, n_out: int) -> None:
            t.normal(f"{name}.weight", n_in, n_out, deviation=1.5 / math.sqrt(n_in))
            t.normal(f"{name}.bias", n_out, deviation=0.1)

        def norm(name: str) -> None:
            t.norm(f"{name}.weight", s.n_embd)
            t.normal(f"{name}.bias", s.n_embd, deviation=0.1)

        t.normal("token_embd.weight", s.n_embd, n_vocab, deviation=1.0)
        t.normal("position_embd.weight", s.n_embd, s.n_ctx, deviation=0.3)
        t.normal("token_types.weight", s.n_embd, 2, deviation=0.1)
        norm("token_embd_norm")
        for i in range(s.n_layer):
            b = f"blk.{i}."
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                dense(b + name, s.n_embd, s.n_embd)
            norm(b + "attn_output_norm")
            dense(b + "ffn_up", s.n_embd, s.n_ff)
            dense(b + "ffn_down", s.n_ff, s.n_embd)
            norm(b + "layer_output_norm")
        if pooling is PoolingType.RANK:
            dense("cls", s.n_embd, s.n_embd)
            dense("cls.output", s.n_embd, 1)

    return build


def last_token(decoder: Builder) -> Builder:
    """The same decoder as an embedding model, which ends each text with its end token."""

    def build(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
        w.add_pooling_type(PoolingType.LAST)
        w.add_add_eos_token(True)
        decoder(w, t, s, n_vocab)

    return build


def yes_or_no(decoder: Builder) -> Builder:
    """The same decoder as a reranker, whose head tells yes from no."""

    def build(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
        w.add_pooling_type(PoolingType.RANK)
        w.add_array(f"{s.arch}.classifier.output_labels", ["yes", "no"])
        w.add_string("tokenizer.chat_template.rerank", RERANK_TEMPLATE)
        decoder(w, t, s, n_vocab)
        t.normal("cls.output.weight", s.n_embd, 2, deviation=1 / math.sqrt(s.n_embd))

    return build
