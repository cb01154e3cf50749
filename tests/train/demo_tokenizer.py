"""Byte-level BPE for the demo model, with the pieces of Qwen2's tokenizer.json.

Same normalizer, pre-tokenizer, decoder and post-processor as Qwen2; only the merges are ours.
`<|endoftext|>` is an added token with the last id, as Qwen has it.
"""
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

EOS = "<|endoftext|>"

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def blank_tokenizer():
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False)
    return tok


def train_tokenizer(text, vocab_size):
    """Learns merges from `text`; the result has exactly `vocab_size` ids, the last one EOS."""
    tok = blank_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # every byte can be written
        show_progress=False,
    )
    tok.train_from_iterator([text], trainer)
    tok.add_special_tokens([AddedToken(EOS, special=True, normalized=False)])
    assert tok.get_vocab_size() == vocab_size and tok.token_to_id(EOS) == vocab_size - 1
    return tok


def save_tokenizer(tok, path):
    """tokenizer.json; three fields that the library's trainer drops are set as in Qwen2's file."""
    d = json.loads(tok.to_str())
    d["model"].update(continuing_subword_prefix="", end_of_word_suffix="")
    d["decoder"].update(add_prefix_space=False, trim_offsets=False, use_regex=False)
    save_json(path, d)


def tokenizer_config(tok, max_len):
    """tokenizer_config.json in the form that Qwen's base models ship."""
    eos_id = tok.token_to_id(EOS)
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(eos_id): {"content": EOS, "lstrip": False, "normalized": False,
                          "rstrip": False, "single_word": False, "special": True},
        },
        "additional_special_tokens": [],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "errors": "replace",
        "model_max_length": max_len,
        "pad_token": EOS,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def save_json(path, obj):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(obj, f, indent=2, ensure_ascii=False)
        f.write("\n")
