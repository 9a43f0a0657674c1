"""Architectures of causal language models that are not served, and the words of the reason that a folder is given."""

from __future__ import annotations

from collections.abc import Mapping

_STATE = "running state"
_TWO = "encoder-decoder models"
_MEDIA = "more than text"
_INDEXER = "keys of an indexer"
_FIXED = "their attention cannot be replaced"

BY_CONFIG: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear"),
            *("lara_mini", "lfm3", "mamba", "mamba2", "minimax", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text"),
            *("qwen3_5_text", "qwen3_next", "qwen4_exp_text", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2"),
            "zaya",
        ),
        _STATE,
    ),
    **dict.fromkeys(
        (
            *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "musicgen"),
            *("musicgen_melody", "mvp", "pegasus", "plbart", "prophetnet", "whisper"),
        ),
        _TWO,
    ),
    **dict.fromkeys(
        (
            *("dots3_note", "emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified"),
            *("gemma4_unified_assistant", "git", "got_ocr2", "llama4", "mllama", "moshi", "moss_transcribe_diarize"),
            *("phi4_multimodal", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
        ),
        _MEDIA,
    ),
    **dict.fromkeys(("axk2", "deepseek_v32", "deepseek_v4", "dots3_note_text", "glm_moe_dsa", "hy_v4"), _INDEXER),
    **dict.fromkeys(
        (
            *("big_bird", "biogpt", "blt", "cpmant", "falcon", "gpt_neo", "gpt_neox_japanese", "megatron-bert"),
            *("openai-gpt", "reformer", "rembert", "roformer", "stablelm", "trocr", "xglm", "xlm", "xlnet"),
        ),
        _FIXED,
    ),
    **dict.fromkeys(("bloom", "mpt"), "ALiBi"),
    **dict.fromkeys(("inkling2_loop_text", "inkling2_text", "inkling_text"), "layers of type 'hybrid_sliding'"),
    "dory": "layers of type 'mlp'",
    "gemma3n_text": "keys and values of other layers",
    "gemma4_unified_text": "looks ahead",
    "llama4_text": "chunked attention",
}
"""As transformers itself configures them, without any weights."""

BY_PROBE: Mapping[str, str] = {
    **dict.fromkeys(("bert", "ernie", "roberta", "xlm-roberta"), "lets tokens look ahead"),
    "diffllama": "attends 2 times",
    "doge": "asks for a mask",
}
"""Found with weights only, by what their attention is told and by what they answer."""
