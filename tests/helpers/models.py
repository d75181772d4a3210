"""Targets of the tests: random Transformers models of each architecture, and a table that acts as a model."""

from __future__ import annotations

import functools
import itertools

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from breakeven.config import RandomSpec
from breakeven.models.adapter import LayeredModel
from breakeven.models.cache import KVCache
from breakeven.models.sources import random

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3_text", "gpt2")
WINDOW = 8  # Gemma's sliding window, far below the contexts that the tests use
CONTEXT = 256


@functools.cache
def random_model(
    architecture: str, dtype: torch.dtype = torch.float64, *, layers: int = 4, seed: int = 0, pad: int = 1
) -> LayeredModel:
    """Return a random model of an architecture; the same object for the same arguments."""
    kv_heads = {"gpt2": 4, "gemma3_text": 1}.get(architecture, 2)
    spec = RandomSpec(architecture, seed, layers, 32, 4, kv_heads, 8, CONTEXT, WINDOW)
    model, tokenizer = random.build(spec, pad_vocab_to_multiple_of=pad)
    return LayeredModel(model.to(dtype), tokenizer, f"random-{architecture}")


def word_tokenizer(n_tokens: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of n_tokens words "0", "1", ..."""
    core = Tokenizer(WordLevel({str(i): i for i in range(n_tokens)}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=core)


def small_llama(n_tokens: int, *, layers: int = 2, seed: int = 0) -> LayeredModel:
    """Return a float64 Llama with a vocabulary of n_tokens, small enough to enumerate its texts."""
    config = LlamaConfig(
        vocab_size=n_tokens, hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=CONTEXT, tie_word_embeddings=False, initializer_range=0.6,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    return LayeredModel(model.double().eval(), word_tokenizer(n_tokens), f"llama-{n_tokens}")


class TableModel(LayeredModel):
    """A target whose next-token logits stand in a table, by the last two tokens and the exit layer.

    The token before the last is read from the deepest layer's cache, so a cache that was rolled back wrongly shows
    in the logits. Everything else (loop, drafters, cache) is the real code.
    """

    def __init__(self, n_tokens: int, *, n_layers: int = 2, seed: int = 0, spread: float = 1.5) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (n_tokens + 1, n_tokens, n_tokens)  # token before last (n_tokens: none), last token, next token
        top = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
        noise = torch.randn((n_layers, *shape), generator=generator, dtype=torch.float64)
        depth = torch.arange(n_layers - 1, -1, -1, dtype=torch.float64)[:, None, None, None]
        self.tables = top + noise * depth  # [n_layers, ...]: the shallower the exit, the further from the last layer
        self.name, self.n_layers, self.n_kv_heads, self.n_query_heads, self.head_dim = "table", n_layers, 1, 1, 1
        self.vocab_size, self.max_context_tokens = n_tokens, 100_000
        self.dtype, self.device = torch.float64, torch.device("cpu")
        self.tokenizer = word_tokenizer(n_tokens)

    def embed(self, tokens: Tensor, start: int) -> Tensor:
        return tokens.double()[..., None]

    def run_layers(self, hidden: Tensor, start: int, first: int, last: int, cache: KVCache) -> Tensor:
        tokens = hidden[..., :1]
        for index in range(first, last):
            if cache.lengths[index] != start:
                raise ValueError(f"layer {index} holds {cache.lengths[index]} tokens, position {start} comes next.")
            keys, _ = cache.update(tokens[:, None], tokens[:, None], index)
        before = keys[:, 0, max(start - 1, 0) : start + hidden.shape[1] - 1]
        if not start:
            before = nn.functional.pad(before, (0, 0, 1, 0), value=float(self.vocab_size))
        return torch.cat([tokens, before + (last - 1) * (self.vocab_size + 1)], dim=-1)

    def head(self, hidden: Tensor) -> Tensor:
        token, before_and_depth = hidden.long().unbind(-1)
        return self.tables.flatten(0, 1)[before_and_depth, token]

    def law(self, prompt: list[int], n_new: int, temperature: float, eos: frozenset[int] = frozenset()) -> dict:
        """Return the probability of every continuation of n_new tokens (cut behind the first `eos`)."""
        table = torch.softmax(self.tables[-1] / temperature, dim=-1).tolist()
        law: dict[tuple[int, ...], float] = {}
        for continuation in itertools.product(range(self.vocab_size), repeat=n_new):
            text = [self.vocab_size, *prompt, *continuation]
            stop = next((i + 1 for i, token in enumerate(continuation) if token in eos), n_new)
            probability = 1.0
            for i in range(stop):
                at = len(text) - n_new + i
                probability *= table[text[at - 2]][text[at - 1]][text[at]]
            law[continuation[:stop]] = probability  # equal for all endings behind an end of sequence
        return law
