"""Fills the cap with llama.cpp through llama-cpp-python. The pieces are contexts of a small random model.

ggml allocates weights, caches and buffers by cudaMalloc, and scratch memory by cuMemCreate; it releases those handles right after
cuMemMap. If memory is missing, the new context is a null pointer.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from fill import run
from frameworks import Framework
from gguf import GGUFWriter

_LAYERS, _WIDTH, _HEADS, _INNER, _TOKENS = 4, 512, 8, 1024, 256
_BYTES_PER_TOKEN = 2 * 2 * _LAYERS * _WIDTH
_PROMPT = [3, 14, 15, 92, 65, 35, 89, 79]


def _write_model(path: str) -> None:
    """Writes a LLaMA model with weights from a seeded generator. It has no vocabulary: tokens are numbers."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(_TOKENS)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(1)

    def weights(name: str, *shape: int) -> None:
        writer.add_tensor(name, (random.standard_normal(shape) * 0.05).astype(np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(_WIDTH, np.float32))

    weights("token_embd.weight", _TOKENS, _WIDTH)
    for layer in (f"blk.{number}." for number in range(_LAYERS)):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights(f"{layer}{name}.weight", _WIDTH, _WIDTH)
        weights(f"{layer}ffn_gate.weight", _INNER, _WIDTH)
        weights(f"{layer}ffn_up.weight", _INNER, _WIDTH)
        weights(f"{layer}ffn_down.weight", _WIDTH, _INNER)
        ones(f"{layer}attn_norm.weight")
        ones(f"{layer}ffn_norm.weight")
    ones("output_norm.weight")
    weights("output.weight", _TOKENS, _WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Context:
    """A context. Raises MemoryError if llama.cpp makes none. Its last reference frees it."""

    def __init__(self, model: Any, tokens: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = tokens, 8, 8, 1
        params.flash_attn_type = 0
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise MemoryError("llama_init_from_model: no context")

    def __del__(self) -> None:
        if self._context:
            llama_cpp.llama_free(self._context)

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Decodes the tokens one by one. Returns the model's output after the last."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        for token in tokens:
            one = (llama_cpp.llama_token * 1)(token)
            status = llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(one, 1))
            if status != 0:
                raise RuntimeError(f"llama_decode: {status}")
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._context, -1), shape=(_TOKENS,)).copy()


class Llama(Framework):
    sizes = (256, 32)

    def __init__(self) -> None:
        llama_cpp.llama_backend_init()
        assert llama_cpp.llama_supports_gpu_offload(), "this build of llama.cpp has no GPU backend, or found no GPU"
        path = str(Path.cwd() / "random.gguf")
        _write_model(path)
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = _LAYERS + 1
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        assert self._model, "the model was not loaded"
        self._expected: np.ndarray | None = None

    def warm_up(self) -> None:
        self._expected = self.piece(2, 1).logits(_PROMPT)

    def piece(self, mib: int, mark: int) -> Context:
        return Context(self._model, (mib << 20) // _BYTES_PER_TOKEN)

    def holds(self, piece: Context, mark: int) -> bool:
        return True  # the library's cache cannot be read

    def result(self) -> str:
        assert self._expected is not None
        return hashlib.sha256(self._expected.tobytes()).hexdigest()

    def compute(self) -> bool:
        return bool((self.piece(2, 1).logits(_PROMPT) == self._expected).all())


run(Llama())
