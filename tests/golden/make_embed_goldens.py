#!/usr/bin/env python3
"""Makes tests/golden/embed: tiny random embedding models and the hidden states that transformers
gives for some texts.

Runs transformers alone (torch, f32 on the CPU), never shoal. Each model gets
  hf/          the model as sentence-transformers publishes one: a base model without a head, a
               tokenizer that appends an end token, modules.json, 1_Pooling/config.json and
               config_sentence_transformers.json
  golden.json  texts, their token ids, and of the model's last hidden state the row of the last
               token, the row of the first one and the mean of all, not normalized
usage: make_embed_goldens.py [NAME...]
"""
import json
import shutil
import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
TEXT = ("the quick brown fox jumps over the lazy dog and a shoal of small fish swims in the sea, "
        "each one near the others, none of them leading; when one turns, they all turn. ")
TEXTS = ["A shoal of fish.", "the sea", "x", "Größe, 中文 und 42 Zahlen\nin zwei Zeilen", TEXT * 2]
PROMPTS = {"query": "Instruct: find the fish\nQuery:", "document": ""}
VOCAB, END = 272, "<|end|>"
SIZES = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024)
MODELS = {  # config, pooling mode, whether a module normalizes, dtype
    "qwen3-embed": (lambda: transformers.Qwen3Config(head_dim=8, tie_word_embeddings=True, **SIZES),
                    "lasttoken", True, torch.bfloat16),
    "mistral-embed": (lambda: transformers.MistralConfig(head_dim=8, tie_word_embeddings=False,
                                                         sliding_window=None, **SIZES),
                      "mean_tokens", False, torch.float16),
}


def train_tokenizer():
    """A byte-level BPE that appends END to each text, as Qwen3-Embedding's tokenizer does."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB, show_progress=False, special_tokens=[END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    bpe.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, bpe.token_to_id(END))])
    assert bpe.get_vocab_size() == VOCAB
    return bpe


def fill(model, seed, dtype):
    """Random weights, rounded to the type in which they are stored."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        value = 1 + 0.3 * noise if "norm" in name else noise * (
            0.5 if "embed_tokens" in name else 1.2 / p.shape[-1] ** 0.5)
        p.copy_(value.to(dtype).to(torch.float32))


def write_sentence_files(hf, pooling, normalizes):
    kinds = ["Transformer", "Pooling"] + (["Normalize"] if normalizes else [])
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [dict(idx=i, name=str(i), path=paths[i], type=f"sentence_transformers.models.{kind}")
               for i, kind in enumerate(kinds)]
    modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens",
             "weightedmean_tokens", "lasttoken"]
    (hf / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (hf / "1_Pooling").mkdir()
    (hf / "1_Pooling" / "config.json").write_text(json.dumps(
        {"word_embedding_dimension": SIZES["hidden_size"], "include_prompt": True,
         **{f"pooling_mode_{mode}": mode == pooling for mode in modes}}, indent=2) + "\n")
    (hf / "config_sentence_transformers.json").write_text(json.dumps(
        dict(prompts=PROMPTS, default_prompt_name=None, similarity_fn_name="cosine"), indent=2) + "\n")


def hidden_states(model, tokenizer, text):
    ids = tokenizer.encode(text).ids
    rows = model(torch.tensor([ids])).last_hidden_state[0]
    return dict(text=text, ids=ids, **{key: [float(f"{x:.9g}") for x in row.tolist()] for key, row in (
        ("last", rows[-1]), ("cls", rows[0]), ("mean", rows.mean(0)))})


def write_model(name):
    config, pooling, normalizes, dtype = MODELS[name]
    hf = HERE / "embed" / name / "hf"
    shutil.rmtree(hf.parent, ignore_errors=True)
    hf.mkdir(parents=True)
    model = transformers.AutoModel.from_config(config()).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        fill(model, 5, dtype)
        tokenizer = train_tokenizer()
        texts = TEXTS + [PROMPTS["query"] + TEXTS[0]]
        golden = dict(torch=torch.__version__, transformers=transformers.__version__,
                      pooling=pooling, normalizes=normalizes,
                      texts=[hidden_states(model, tokenizer, text) for text in texts])
    model.config.architectures = [type(model).__name__]
    model.config.dtype = dtype
    model.config.save_pretrained(hf)
    save_file({k: v.to(dtype) for k, v in model.state_dict().items()}, hf / "model.safetensors",
              metadata={"format": "pt"})
    tokenizer.save(str(hf / "tokenizer.json"), pretty=False)
    write_sentence_files(hf, pooling, normalizes)
    text = json.dumps(golden, ensure_ascii=False)
    (hf.parent / "golden.json").write_text(text.replace("}, {", "},\n {") + "\n")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or MODELS:
        write_model(chosen)
