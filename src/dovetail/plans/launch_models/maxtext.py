"""The models MaxText has configurations for."""

from __future__ import annotations

from collections.abc import Mapping

#: Models of the catalogue by the names of src/maxtext/configs/models.
MODELS: Mapping[str, str] = {
    "deepseek-v2": "deepseek2-236b",
    "deepseek-v2-lite": "deepseek2-16b",
    "deepseek-v3": "deepseek3-671b",
    "deepseek-v3.2": "deepseek3.2-671b",
    "gemma-2-27b": "gemma2-27b",
    "gemma-2-9b": "gemma2-9b",
    "gemma-3-12b": "gemma3-12b",
    "gemma-3-27b": "gemma3-27b",
    "gemma-4-26b-a4b": "gemma4-26b",
    "gemma-4-31b": "gemma4-31b",
    "gpt-oss-120b": "gpt-oss-120b",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt3-175b": "gpt3-175b",
    "kimi-k2": "kimi-k2-1t",
    "llama-2-13b": "llama2-13b",
    "llama-2-70b": "llama2-70b",
    "llama-2-7b": "llama2-7b",
    "llama-3-70b": "llama3-70b",
    "llama-3-8b": "llama3-8b",
    "llama-3.1-405b": "llama3.1-405b",
    "llama-3.1-70b": "llama3.1-70b",
    "llama-3.1-8b": "llama3.1-8b",
    "llama-4-maverick": "llama4-17b-128e",
    "llama-4-scout": "llama4-17b-16e",
    "mistral-7b": "mistral-7b",
    "mixtral-8x22b": "mixtral-8x22b",
    "mixtral-8x7b": "mixtral-8x7b",
    "qwen3-0.6b": "qwen3-0.6b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-32b": "qwen3-32b",
    "qwen3-8b": "qwen3-8b",
}
