#!/usr/bin/env python3
"""Makes the goldens of tests/golden/tokenizer that make_tokenizer_goldens.py does not: further
pre-tokenizers, and vocabularies of characters (SentencePiece's kind) with every normalizer,
pre-tokenizer, post-processor and decoder that the tokenizer knows.

  make_tokenizer_goldens_more.py [--train NAME...]

With --train the named vocabularies are made anew from tests/golden/tokenizer/lines.jsonl; the trainers break
ties at random, so each run makes other ones. All else follows from the vocabularies stored there.
The goldens cover the first N_LINES lines, those of SMALL the first N_LINES_SMALL.
cases_more.json is as cases.json; versions_more.json says what made the files.
"""
import base64
import json
import platform
import random
import struct
import sys
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

from make_tokenizer_goldens import byte_level, encode, fnv, split

HERE = Path(__file__).resolve().parent / "tokenizer"
N_LINES = 5000
BYTE_LEVEL = ["deepseek3", "o200k", "kimi", "tekken", "glm4", "olmo", "minimax"]
SMALL = ["tekken", "glm4", "olmo", "legacy", "first", "minimax", "bert", "bert_cased", "xlmr"]
N_LINES_SMALL = 2000
BYTES = [f"<0x{b:02X}>" for b in range(256)]
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{CONTRACTIONS}"
         rf"|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{CONTRACTIONS}"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
NO_HAN = r"&&[^\p{Han}]"
KIMI = (rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}{NO_HAN}]*[{LOWER}{NO_HAN}]+{CONTRACTIONS}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}{NO_HAN}]+[{LOWER}{NO_HAN}]*{CONTRACTIONS}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GLM4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

PLAIN = dict(normalized=False, special=True)
# of MiniMax-M2's 54 added tokens, in their order: markers of brackets, some of them with spaces or the
# beginning of another one; the last four are no special tokens, so decoding keeps them
MINIMAX = ["]!p~[", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<reponame>", "]~b]", "[e~[", "]!d~[",
           "<function_call>", "]<]image[>[", "]<]start of image[>[", "]<]end of image[>[", "]<]vision pad[>[",
           "]~!b[", "<file_sep>"]
MINIMAX_TEXT = ["<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"]
MINIMAX_LINES = [
    "]~!b[]~b]system\nYou are helpful.[e~[\n]~b]user\nHi, 1234 fish/[e~[\n]~b]ai\n<think>\na</think>\n\nb[e~[\n",
    "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>[e~[", "]~b", "]~!b]~b][e~", "[e~[e~[",
    "]<]image[>[]<]start of image[>[x]<]start of[>[", " ]~b] user", "a]!d~[b]!p~[c", "</think>//\r\n///  x",
    "<fim_prefix>def f():\n    <fim_suffix>\n<fim_middle>return 'S"]
SP_SPECIALS = ["<unk>", "<s>", "</s>"]
SP_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def metaspace(module, scheme, split_it=True):
    extra = {"split": split_it} if module is pre_tokenizers or not split_it else {}
    return module.Metaspace(replacement="▁", prepend_scheme=scheme, **extra)


def byte_family(t, name):
    t.decoder = decoders.ByteLevel()
    seq = pre_tokenizers.Sequence
    if name == "deepseek3":
        t.normalizer = normalizers.Sequence([])
        t.pre_tokenizer = seq([split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK),
                               byte_level(False)])
        return ([AddedToken(c, **PLAIN) for c in ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")]
                + [AddedToken("<think>", normalized=False, special=False)])
    if name == "o200k":
        t.pre_tokenizer = seq([split(O200K), byte_level(False)])
        return [AddedToken(c, **PLAIN) for c in ("<|start|>", "<|message|>", "<|im_end|>")]
    if name == "minimax":
        t.pre_tokenizer = seq([split(O200K), byte_level(False)])
        return ([AddedToken(c, **PLAIN) for c in MINIMAX]
                + [AddedToken(c, normalized=False, special=False) for c in MINIMAX_TEXT])
    if name == "tekken":
        t.pre_tokenizer = seq([split(TEKKEN), byte_level(False)])
        return [AddedToken(c, **PLAIN) for c in ("<s>", "</s>", "[INST]", "[/INST]")]
    if name == "glm4":
        t.pre_tokenizer = seq([split(GLM4), byte_level(False)])
        return [AddedToken(c, **PLAIN) for c in ("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>")]
    if name == "olmo":
        t.normalizer = normalizers.NFC()
        t.pre_tokenizer = byte_level(True)
        return ([AddedToken("<|padding|>", **PLAIN), AddedToken("<|endoftext|>", **PLAIN)]
                + [AddedToken(c, normalized=True, special=False) for c in ("    ", "   ", "  ", "|||IP_ADDRESS|||")])
    assert name == "kimi"
    t.pre_tokenizer = seq([split(KIMI), byte_level(False)])
    return [AddedToken(c, **PLAIN) for c in ("[BOS]", "<|im_end|>", "<|im_start|>")]


def char_family(t, name):
    """Sets everything but the model; returns the added tokens beyond SP_SPECIALS."""
    strip = SP_DECODER + [decoders.Strip(" ", 1, 0)]
    if name == "llama2":
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.decoder = decoders.Sequence(strip)
        return [AddedToken("<|im_end|>", rstrip=True, **PLAIN),
                AddedToken("word", normalized=True, special=False),
                AddedToken("<mask>", lstrip=True, normalized=False, special=False)]
    if name == "legacy":  # Llama 2 as first published: its special tokens are normalized too
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.decoder = decoders.Sequence(strip)
        return [AddedToken("<|im_end|>", normalized=True, special=True),
                AddedToken("word", normalized=True, special=True, single_word=True),
                AddedToken("Line x", normalized=True, special=True, lstrip=True, rstrip=True)]
    if name == "first":
        t.pre_tokenizer = pre_tokenizers.Sequence([
            split(r" ?[^\s\p{L}\p{N}]+\r*"), metaspace(pre_tokenizers, "first"),
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split("\n", "removed")])
        t.decoder = decoders.Sequence(strip)
        return [AddedToken("<|im_start|>", **PLAIN), AddedToken("<mask>", lstrip=True, special=False)]
    if name == "mistral":
        t.pre_tokenizer = metaspace(pre_tokenizers, "first", False)
        t.decoder = decoders.Sequence(strip)
        return [AddedToken("<|im_start|>", **PLAIN), AddedToken("<mask>", single_word=True, special=False)]
    if name == "gemma":
        t.normalizer = normalizers.Replace(" ", "▁")
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        t.decoder = decoders.Sequence(SP_DECODER)
        return [AddedToken("\n" * n, normalized=False, special=False) for n in (2, 3)]
    if name == "folded":
        t.normalizer = normalizers.Sequence([
            normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip(),
            normalizers.Replace(Regex(r"[0-9]{2,}|\p{Sc}*x"), "#"), normalizers.Prepend("x")])
        t.pre_tokenizer = metaspace(pre_tokenizers, "always")
        t.decoder = metaspace(decoders, "always")
        t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
        return [AddedToken("Word", normalized=True, special=False), AddedToken("[STRIP]", **PLAIN)]
    if name == "unigram":
        t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(left=False, right=True),
                                             normalizers.Replace(Regex(" {2,}"), " ")])
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                   metaspace(pre_tokenizers, "always")])
        t.decoder = metaspace(decoders, "always")
        t.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 1))
        return [AddedToken("<tool_call>", **PLAIN)]
    assert name == "unigram_bytes"
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Strip(left=True, right=False)])
    t.pre_tokenizer = metaspace(pre_tokenizers, "first", False)
    t.decoder = decoders.Sequence(strip)
    return [AddedToken("<|endoftext|>", **PLAIN)]


def train_wordpiece(name, lines):
    """BERT's tokenizer, uncased and cased."""
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100 if name == "bert" else 12))
    t.normalizer = normalizers.BertNormalizer(lowercase=name == "bert", handle_chinese_chars=name == "bert")
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece(prefix="##", cleanup=name == "bert")
    t.train_from_iterator(lines, trainers.WordPieceTrainer(
        vocab_size=900, show_progress=False, limit_alphabet=300,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    t.post_processor = (processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                      special_tokens=ends)
                        if name == "bert" else processors.BertProcessing(ends[1], ends[0]))
    return json.loads(t.to_str())


def darts(keys):
    """A trie as SentencePiece stores it: units of 32 bits. keys: {bytes: value}."""
    units, used = [0] * 256, {0}

    def place(at, items, depth):
        labels = sorted({key[depth] if len(key) > depth else 0 for key in items})
        base = next(b for b in range(1, 1 << 20) if all(b ^ c not in used for c in labels) and b not in used)
        used.update(b ^ c for b in [base] for c in labels)
        units.extend([0] * ((base | 255) + 1 - len(units)))
        assert base ^ at < 1 << 21
        units[at] |= (base ^ at) << 10
        for c in labels:
            if c == 0:
                units[at] |= 1 << 8
                units[base] = 1 << 31 | next(v for k, v in items.items() if len(k) == depth)
                continue
            units[base ^ c] |= c
        for c in labels:
            if c != 0:
                place(base ^ c, {k: v for k, v in items.items() if len(k) > depth and k[depth] == c}, depth + 1)
    place(0, keys, 0)
    return struct.pack(f"<{len(units)}I", *units)


def charsmap(lines):
    """Replacements as SentencePiece's rule nmt_nfkc has them, for the characters of these lines; and some that
    the published code treats oddly: a key inside a cluster of characters, a key that begins another one."""
    chars = sorted({c for line in lines for c in line} | set("ﬁﷺ①ｱＡ½㎏\u00a0\u3000\u200b\ufeff\u2028"))
    rules = {c: unicodedata.normalize("NFKC", c) for c in chars if ord(c) > 0}
    rules |= {c: " " for c in "\t\n\r\u200b\u2028\ufeff"} | {c: "" for c in "\x01\x02\x7f\u200e"}
    for c in "aeiouAEIOUnc":
        for mark in "\u0300\u0301\u0303\u0308\u0327":
            rules[c + mark] = unicodedata.normalize("NFKC", c + mark)
    rules |= {"q": "k", "q\u0301": "Q", "1\u20e3": "one"}
    texts, at = bytearray(), {}
    for key, text in sorted(rules.items()):
        if key != text:
            at[key.encode()] = len(texts)
            texts += text.encode() + b"\0"
    trie = darts(at)
    return struct.pack("<I", len(trie)) + trie + bytes(texts)


def xlmr(lines):
    """XLM-RoBERTa's tokenizer: the vocabulary of `unigram` with other steps around it."""
    file = json.loads((HERE / "unigram.json").read_text())
    table = base64.b64encode(charsmap(lines[:N_LINES_SMALL])).decode()
    file["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": table},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]}
    file["post_processor"] = json.loads(Tokenizer.to_str(with_pair()))["post_processor"]
    return file


def with_pair():
    t = Tokenizer(models.BPE())
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return t


def train_bytes(name, lines):
    t = Tokenizer(models.BPE())
    added = byte_family(t, name)
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=800 if name in SMALL else 1600, show_progress=False,
                                                     initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    t.add_tokens(added)
    file = json.loads(t.to_str())
    if name == "tekken":  # some pieces are tokens that no merge produces
        file["model"]["ignore_merges"] = True
        file["model"]["merges"] = [m for i, m in enumerate(file["model"]["merges"]) if i % 17]
    return file


def train_chars(name, lines):
    """Trains a vocabulary on words, then sets the family's other parts."""
    unigram, folded = name.startswith("unigram"), name == "folded"
    fallback = name not in ("folded", "unigram")
    t = Tokenizer(models.Unigram() if unigram else models.BPE(unk_token="<unk>", fuse_unk=True))
    t.pre_tokenizer = metaspace(pre_tokenizers, "always")
    if folded or name == "unigram":
        char_family(t, name)
    specials = SP_SPECIALS + (BYTES if fallback else [])
    common = dict(vocab_size=800 if name in SMALL else 1500, special_tokens=specials, show_progress=False)
    # a limited alphabet, so that some characters are unknown
    if unigram:
        lines = [l for l in lines if all(ord(c) < 0x460 or c in "…“”😀\u3000中文ﬁ" for c in l)]
    trainer = (trainers.UnigramTrainer(unk_token="<unk>", **common) if unigram
               else trainers.BpeTrainer(limit_alphabet=200 if name in SMALL else 400, **common))
    t.train_from_iterator(lines, trainer)
    file = json.loads(t.to_str())
    keep = {token["content"]: token for token in file["added_tokens"] if token["content"] in SP_SPECIALS}
    file["added_tokens"] = [keep[c] for c in SP_SPECIALS]
    file["model"]["byte_fallback"] = fallback
    if name == "legacy":
        for token in file["added_tokens"]:
            token["normalized"] = True
    if unigram:
        file["model"]["vocab"] = thin(file["model"]["vocab"])
    if name == "mistral":
        file["model"]["ignore_merges"] = True
    blank = Tokenizer(models.BPE())
    added = char_family(blank, name)
    parts = json.loads(blank.to_str())
    for part in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        file[part] = parts[part]
    t = Tokenizer.from_str(json.dumps(file))
    t.add_tokens(added)
    if name not in ("folded", "unigram"):
        t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                         special_tokens=[("<s>", 1)])
    return json.loads(t.to_str())


def thin(vocab):
    """The vocabulary without its rarest single characters, which become unknown."""
    kept = [e for i, e in enumerate(vocab) if not (len(e[0]) == 1 and ord(e[0]) > 0x2FF and i % 2)]
    return [[piece, round(score, 9)] for piece, score in kept]


def spm(lines):
    """A vocabulary with scores and types as a GGUF file of the tokenizer model "llama" has them, and the
    tokenizer.json that a conversion of such a SentencePiece model makes: all splits, by falling score."""
    file = train_chars("llama2", lines)
    rank = {}
    for i, (left, right) in enumerate(file["model"]["merges"]):
        rank.setdefault(left + right, i)
    vocab = file["model"]["vocab"]
    control, kinds, scores = {"<s>", "</s>", "<|im_end|>"}, [], []
    for c in sorted(vocab, key=vocab.get):
        kinds.append(2 if c == "<unk>" else 3 if c in control else 4 if c == "<mask>" else 6 if c in BYTES else 1)
        scores.append(-float(rank.get(c, 0) + 1 if c in rank else 10**6 + vocab[c]) if kinds[-1] == 1 else 0.0)
    ordinary = {c for c in vocab if kinds[vocab[c]] == 1}
    merges = [(scores[vocab[c]], k, len(c) - k, c[:k], c[k:]) for c in sorted(ordinary, key=vocab.get)
              for k in range(1, len(c)) if c[:k] in ordinary and c[k:] in ordinary]
    merges.sort(key=lambda m: m[:3], reverse=True)
    file["model"]["merges"] = [list(m[3:]) for m in merges]
    file["added_tokens"] = [dict(id=i, content=c, single_word=False, lstrip=False, rstrip=False, normalized=False,
                                 special=kinds[i] != 4)
                            for c, i in sorted(vocab.items(), key=lambda x: x[1]) if kinds[i] in (2, 3, 4)]
    return file, dict(tokens=sorted(vocab, key=vocab.get), scores=scores, types=kinds)


def train(name, lines):
    if name == "spm":
        file, arrays = spm(lines)
        (HERE / "spm_gguf.json").write_text(json.dumps(arrays, ensure_ascii=False, separators=(",", ":")) + "\n")
    else:
        if name == "xlmr":
            file = xlmr([json.loads(l) for l in (HERE / "lines.jsonl").read_text().split("\n") if l])
        kind = (lambda *_: file) if name == "xlmr" else train_bytes if name in BYTE_LEVEL else train_wordpiece if "bert" in name else train_chars
        file = kind(name, lines)
    (HERE / f"{name}.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n")


def decode(t, ids, skip):
    """Decodes and drops special tokens by id. The package compares contents, which it knows only
    in normalized form, and so keeps special tokens with "normalized": true.
    """
    special = {i for i, token in t.get_added_tokens_decoder().items() if token.special}
    return t.decode([i for i in ids if not (skip and i in special)], skip_special_tokens=False)


def cases(name, t, lines, r):
    rows = []
    for i in [i for i, l in enumerate(lines[:2000]) if 0 < len(l) < 50][:40]:
        rows.append(dict(tokenizer=name, turn=i % 3, hex=lines[i].encode().hex(), ids=encode(t, lines[i], i)))
    texts = ["", " ", "  ", " a", "a ", "▁", "▁▁a", "a▁b", "<s>", "a<s>b", "<s> a", " <s>", "<0x41>", "A",
             "\n", "\n\n\n", "é", "e\u0301", "\u0301x", "中文", "😀", "x\u0000y", "word", "Hello word!", "<mask> <mask>",
             " <mask>", "a<mask>b", "<|im_end|>  x", "ǅ ﬁ ﷺ", "İSTANBUL", "\u1cf2", "1234 12", "$$x €x"]
    if name == "xlmr":
        texts += ["q\u0301", "q\u0301\u0301\u0301x", "e\u0301e\u0308\u0301", "\r\n a\r\n", "\x01a", "1\u20e3", "\u200b\u200b x",
                  "q\u0300", "👩\u200d👩\u200d👧", "🇩🇪🇫🇷", "각\u11a8", "क्षि", "\ufeffx", "ﷺ①½ｱ"]
    for turn, text in enumerate(texts + (MINIMAX_LINES if name == "minimax" else [])):
        rows.append(dict(tokenizer=name, turn=turn % 3, hex=text.encode().hex(), ids=encode(t, text, turn)))
    for k in range(60):
        ids = [r.randrange(t.get_vocab_size()) for _ in range(r.randint(1, 10))]
        if k % 2:
            ids = [r.choice([r.choice([0xC3, 0xA9, 0xE4, 0xB8, 0xAD, 0x41, 0x20]) + 3, i]) for i in ids]
        rows.append(dict(tokenizer=name, ids=ids, skip=bool(k % 3),
                         decoded=decode(t, ids, bool(k % 3))))
    return rows


def main():
    lines = [json.loads(l) for l in (HERE / "lines.jsonl").read_text().split("\n") if l]
    short = [l for l in lines[::2] if len(l) < 500]
    trained = sys.argv[2:] if "--train" in sys.argv else []
    rows, r, sizes = [], random.Random(11), {}
    for name in ["deepseek3", "o200k", "kimi", "llama2", "mistral", "gemma", "folded", "unigram", "unigram_bytes",
                 "spm", *SMALL]:
        if name in trained:
            train(name, short)
        text = (HERE / f"{name}.json").read_text()
        t = Tokenizer.from_str(text)
        out = bytearray()
        for i, line in enumerate(lines[:N_LINES_SMALL if name in SMALL else N_LINES]):
            ids = encode(t, line, i)
            out += struct.pack("<II", fnv(struct.pack(f"<{len(ids)}I", *ids)),
                               fnv(decode(t, ids, True).encode()))
        (HERE / f"{name}.golden").write_bytes(bytes(out))
        rows += cases(name, t, lines, r)
        sizes[name] = t.get_vocab_size()
    (HERE / "cases_more.json").write_text(
        "[" + ",\n".join(json.dumps(x, ensure_ascii=False, separators=(",", ":")) for x in rows) + "]\n")
    versions = dict(tokenizers=tokenizers.__version__, python=platform.python_version(), lines=N_LINES,
                    lines_small=N_LINES_SMALL, tokens=sizes)
    (HERE / "versions_more.json").write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
