#!/usr/bin/env python3
"""Makes tests/golden/embed: tiny random embedding models and the hidden states that transformers
gives for some texts.

Runs transformers alone (torch, f32 on the CPU), never shoal. Each model gets
  hf/          the model as sentence-transformers publishes one: a base model without a head, a
               tokenizer that appends an end token, modules.json, 1_Pooling/config.json and
               config_sentence_transformers.json
  golden.json  texts, their token ids, and of the model's last hidden state the row of the last
               token, the row of the first one and the mean of all, not normalized
and, without a NAME, rank.json: scores of the same weights as models for sequence classification, and as a reranker
that is asked for yes or no, with its tokenizer rank_tokenizer.json. crossed.json: scores of the cross-encoders
bert-rank, xlmr-rank and modernbert-rank, and of the last one without biases.
usage: make_embed_goldens.py [NAME...]
"""
import json
import shutil
import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
TEXT = ("the quick brown fox jumps over the lazy dog and a shoal of small fish swims in the sea, "
        "each one near the others, none of them leading; when one turns, they all turn. ")
TEXTS = ["A shoal of fish.", "the sea", "x", "Größe, 中文 und 42 Zahlen\nin zwei Zeilen", TEXT * 2]
PROMPTS = {"query": "Instruct: find the fish\nQuery:", "document": ""}
VOCAB, END, WORDS = 272, "<|end|>", 90
SIZES = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024)
MODELS = {  # config, pooling mode, whether a module normalizes, dtype
    "qwen3-embed": (lambda: transformers.Qwen3Config(head_dim=8, tie_word_embeddings=True, **SIZES),
                    "lasttoken", True, torch.bfloat16),
    "mistral-embed": (lambda: transformers.MistralConfig(head_dim=8, tie_word_embeddings=False,
                                                         sliding_window=None, **SIZES),
                      "mean_tokens", False, torch.float16),
    "bert-embed": (lambda: transformers.BertConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=160), "cls_token", True, torch.float16),
    "roberta-embed": (lambda: transformers.RobertaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=164, type_vocab_size=1, pad_token_id=3, layer_norm_eps=1e-5),
                      "mean_tokens", True, torch.float16),
    "modernbert-embed": (lambda: transformers.ModernBertConfig(
        vocab_size=VOCAB + 2, hidden_size=48, intermediate_size=40, num_hidden_layers=4, num_attention_heads=4,
        max_position_embeddings=512, local_attention=50, **MODERN_IDS), "mean_tokens", True, torch.float16),
}
MODERN_IDS = dict(pad_token_id=3, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)


RANK_SPECIAL = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QUERY = "fish in the sea"
PAIR = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
        "<Instruct>: {}\n<Query>: {}\n<Document>: {}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


def train_tokenizer(text=TEXT, special=(), end=END):
    """A byte-level BPE that appends `end` to each text, as Qwen3-Embedding's tokenizer does."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.train_from_iterator([text], tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB, show_progress=False, special_tokens=[end, *special],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    bpe.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, bpe.token_to_id(end))])
    assert bpe.get_vocab_size() == VOCAB
    return bpe


def train_roberta():
    """A byte-level BPE as RoBERTa's, whose text may spell the padding token."""
    names = ["<s>", "</s>", "<unk>", "<pad>"]
    bpe = train_tokenizer(special=names[1:], end=names[0])
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.post_processor = tokenizers.processors.RobertaProcessing(
        *((name, bpe.token_to_id(name)) for name in ("</s>", "<s>")), add_prefix_space=False)
    assert bpe.token_to_id("<pad>") == 3
    return bpe


def train_modern():
    """A byte-level BPE with the other parts of ModernBERT's tokenizer."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.normalizer = tokenizers.normalizers.NFC()
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    mask = tokenizers.AddedToken("[MASK]", lstrip=True, normalized=False, special=True)
    bpe.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB, show_progress=False, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[PAD]", mask],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    bpe.add_tokens([tokenizers.AddedToken(text, normalized=True) for text in ("|||IP_ADDRESS|||", "    ")])
    bpe.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    assert bpe.get_vocab_size() == VOCAB + 2, bpe.get_vocab_size()
    return bpe


def publish_modern(hf):
    """Writes the config of ModernBERT as its publisher did, which transformers reads and no longer writes."""
    config = json.loads((hf / "config.json").read_text())
    thetas = config.pop("rope_parameters")
    assert config.pop("layer_types") == ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config.update(global_attn_every_n_layers=3, global_rope_theta=thetas["full_attention"]["rope_theta"],
                  local_rope_theta=thetas["sliding_attention"]["rope_theta"], layer_norm_eps=1e-5,
                  position_embedding_type="absolute", reference_compile=False, model_type="modernbert")
    (hf / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return transformers.AutoModel.from_pretrained(hf, attn_implementation="eager", dtype=torch.float32).eval()


def train_wordpiece():
    """WordPiece with the other parts of BERT's tokenizer."""
    pieces = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = tokenizers.normalizers.BertNormalizer()
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    pieces.decoder = tokenizers.decoders.WordPiece()
    pieces.train_from_iterator([TEXT], tokenizers.trainers.WordPieceTrainer(
        vocab_size=WORDS, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    pieces.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    assert pieces.get_vocab_size() == WORDS, pieces.get_vocab_size()
    return pieces


def fill(model, seed, dtype):
    """Random weights, rounded to the type in which they are stored."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        is_norm = "norm" in name.lower() and not name.endswith("bias")
        value = 1 + 0.3 * noise if is_norm else noise * (
            0.5 if "embed" in name and "Norm" not in name else 1.2 / p.shape[-1] ** 0.5)
        p.copy_(value.to(dtype).to(torch.float32))


def write_sentence_files(hf, pooling, normalizes, width):
    kinds = ["Transformer", "Pooling"] + (["Normalize"] if normalizes else [])
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [dict(idx=i, name=str(i), path=paths[i], type=f"sentence_transformers.models.{kind}")
               for i, kind in enumerate(kinds)]
    modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens",
             "weightedmean_tokens", "lasttoken"]
    (hf / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (hf / "1_Pooling").mkdir()
    (hf / "1_Pooling" / "config.json").write_text(json.dumps(
        {"word_embedding_dimension": width, "include_prompt": True,
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
        train = {"bert-embed": train_wordpiece, "roberta-embed": train_roberta,
                 "modernbert-embed": train_modern}.get(name, train_tokenizer)
        tokenizer = train()
        texts = {"roberta-embed": TEXTS[:4] + [TEXT, "a <pad> fish"],
                 "modernbert-embed": TEXTS + ["e\u0301 |||IP_ADDRESS|||    on  a [MASK]."]}.get(name, TEXTS)
        texts = texts + [PROMPTS["query"] + TEXTS[0]]
        golden = dict(torch=torch.__version__, transformers=transformers.__version__,
                      pooling=pooling, normalizes=normalizes,
                      texts=[hidden_states(model, tokenizer, text) for text in texts])
    model.config.architectures = [type(model).__name__]
    model.config.dtype = dtype
    model.config.save_pretrained(hf)
    save_file({k: v.to(dtype) for k, v in model.state_dict().items()}, hf / "model.safetensors",
              metadata={"format": "pt"})
    if name == "modernbert-embed":
        with torch.no_grad():
            again = publish_modern(hf)
            assert hidden_states(again, tokenizer, texts[4]) == golden["texts"][4]
    tokenizer.save(str(hf / "tokenizer.json"), pretty=False)
    write_sentence_files(hf, pooling, normalizes, model.config.hidden_size)
    text = json.dumps(golden, ensure_ascii=False)
    (hf.parent / "golden.json").write_text(text.replace("}, {", "},\n {") + "\n")


def load(name, cls, **fields):
    """The weights of a model above in another class, whose own weights are random."""
    hf = HERE / "embed" / name / "hf"
    config = transformers.AutoConfig.from_pretrained(hf)
    config.update(fields)
    model = cls(config).eval().float()
    model.set_attn_implementation("eager")
    tensors = {f"model.{k}": v.float() for k, v in load_file(hf / "model.safetensors").items()}
    left_out, strange = model.load_state_dict(tensors, strict=False)
    assert not strange and set(left_out) <= {"score.weight", "lm_head.weight"}, (left_out, strange)
    return model


def classified(name, cls, labels):
    """Logits of the texts by a score.weight, which goes into the golden."""
    model = load(name, cls, num_labels=labels)
    model.score.weight.copy_(torch.randn(model.score.weight.shape, generator=torch.Generator().manual_seed(3)))
    tokenizer = tokenizers.Tokenizer.from_file(str(HERE / "embed" / name / "hf" / "tokenizer.json"))
    logits = [model(torch.tensor([tokenizer.encode(t).ids])).logits[0].tolist() for t in TEXTS]
    return dict(base=name, architecture=cls.__name__, score=model.score.weight.tolist(), texts=TEXTS, logits=logits)


def asked():
    """Logits of no and yes after each pair."""
    tokenizer = train_tokenizer("yes\nno\n" * 9 + TEXT, RANK_SPECIAL)
    tokenizer.post_processor = tokenizers.processors.ByteLevel()
    tokenizer.save(str(HERE / "embed" / "rank_tokenizer.json"), pretty=False)
    model = load("qwen3-embed", transformers.Qwen3ForCausalLM)
    words = [tokenizer.token_to_id(word) for word in ("no", "yes")]
    pairs = []
    for document in TEXTS:
        ids = tokenizer.encode(PAIR.format(INSTRUCTION, QUERY, document)).ids
        pairs.append(dict(tokens=len(ids), logits=model(torch.tensor([ids])).logits[0, -1, words].tolist()))
    return dict(base="qwen3-embed", query=QUERY, documents=TEXTS, pairs=pairs)


def crossed(name, config, vocabulary, seed):
    """A cross-encoder: an encoder with a head for classes, and the logits of pairs and of a text."""
    hf = HERE / "embed" / name
    shutil.rmtree(hf, ignore_errors=True)
    hf.mkdir()
    cls = getattr(transformers, type(config).__name__.replace("Config", "ForSequenceClassification"))
    model = cls(config).eval()
    model.set_attn_implementation("eager")
    fill(model, seed, torch.float16)
    model.config.architectures = [cls.__name__]
    model.config.dtype = torch.float16
    model.config.save_pretrained(hf)
    save_file({k: v.to(torch.float16) for k, v in model.state_dict().items()}, hf / "model.safetensors",
              metadata={"format": "pt"})
    (hf / "model.safetensors").chmod(0o644)
    tokenizer = tokenizers.Tokenizer.from_file(str(HERE / vocabulary))

    def logits(*texts):
        found = tokenizer.encode(*texts)
        types = {"token_type_ids": torch.tensor([found.type_ids])} if getattr(config, "type_vocab_size", 1) > 1 else {}
        return dict(tokens=len(found.ids), logits=model(torch.tensor([found.ids]), **types).logits[0].tolist())
    documents = TEXTS[:4] + [TEXT]
    return dict(name=name, vocabulary=vocabulary, query=QUERY, documents=documents, text=logits(TEXT),
                pairs=[logits(QUERY, document) for document in documents])


ABSENT = ("attention_bias", "classifier_activation", "classifier_bias", "classifier_pooling", "mlp_bias", "norm_bias")


def unbiased(base):
    """The cross-encoder `base` without biases, except the classifier's, and without the fields ABSENT, which then have
    their defaults. The test makes the same checkpoint from that of `base`.
    """
    hf = HERE / "embed" / base["name"]
    fields = json.loads((hf / "config.json").read_text())
    config = transformers.ModernBertConfig(**{key: value for key, value in fields.items() if key not in ABSENT})
    model = transformers.ModernBertForSequenceClassification(config).eval()
    model.set_attn_implementation("eager")
    kept = {k: v for k, v in load_file(hf / "model.safetensors").items() if k == "classifier.bias" or "bias" not in k}
    model.load_state_dict({k: v.float() for k, v in kept.items()})
    tokenizer = tokenizers.Tokenizer.from_file(str(HERE / base["vocabulary"]))
    pairs = [model(torch.tensor([tokenizer.encode(QUERY, d).ids])).logits[0].tolist() for d in base["documents"]]
    return dict(base=base["name"], absent=ABSENT, pairs=pairs)


def write_crossed():
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                 max_position_embeddings=160)
    words = json.loads((HERE / "tokenizer" / "xlmr.json").read_text())["model"]["vocab"]
    with torch.no_grad():
        golden = [crossed("bert-rank", transformers.BertConfig(vocab_size=WORDS, num_labels=1, **sizes),
                          "embed/bert-embed/hf/tokenizer.json", 7),
                  crossed("xlmr-rank", transformers.XLMRobertaConfig(
                      vocab_size=len(words) + 1, type_vocab_size=1, num_labels=3, pad_token_id=1, **sizes),
                          "tokenizer/xlmr.json", 8),
                  crossed("modernbert-rank", transformers.ModernBertConfig(
                      vocab_size=VOCAB + 2, num_labels=2, hidden_size=32, intermediate_size=24, num_hidden_layers=3,
                      num_attention_heads=2, max_position_embeddings=256, local_attention=33, norm_bias=True,
                      attention_bias=True, mlp_bias=True, classifier_bias=True, classifier_pooling="mean",
                      norm_eps=1e-4, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                      **MODERN_IDS), "embed/modernbert-embed/hf/tokenizer.json", 9)]
        golden.append(unbiased(golden[2]))
    (HERE / "embed" / "crossed.json").write_text(json.dumps(golden, ensure_ascii=False).replace("}, {", "},\n {") + "\n")


def write_rank():
    with torch.no_grad():
        golden = dict(classes=[classified("qwen3-embed", transformers.Qwen3ForSequenceClassification, 1),
                               classified("mistral-embed", transformers.LlamaForSequenceClassification, 3)],
                      asked=asked())
    (HERE / "embed" / "rank.json").write_text(json.dumps(golden, ensure_ascii=False).replace("}, {", "},\n {") + "\n")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or [*MODELS, "crossed"]:
        write_crossed() if chosen == "crossed" else write_model(chosen)
    if len(sys.argv) == 1:
        write_rank()
