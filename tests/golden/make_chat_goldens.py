#!/usr/bin/env python3
"""Makes tests/golden/chat: conversations of many kinds, and what Jinja2 makes of them with the templates
that lie there, configured as Hugging Face transformers configures it.

  make_chat_goldens.py                       writes conversations.jsonl, features.jsonl, *.golden
  make_chat_goldens.py --try TOOL TEMPLATE.. runs other templates through `TOOL` (tool_chat) and through
                                             Jinja2, and prints what differs; writes nothing

Deterministic. The templates were written for these tests; together they use what the templates of the
Llama, Qwen, Mistral, Gemma, DeepSeek, gpt-oss, GLM, OLMoE and Granite families use. A golden file has one
line per conversation: `ok BYTES FNV1A64`, `raise SENTENCE` (raise_exception) or `error` (any other failure).
features.jsonl holds small templates with their whole output. versions.json says what made the files.
"""
import argparse
import json
import platform
import random
import subprocess
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = Path(__file__).resolve().parent / "chat"
NOW = datetime(2024, 7, 26)  # chat.h: CHAT_DATE_DEFAULT
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class Raised(Exception):
    """Raised by raise_exception in a template."""


class Generation(jinja2.ext.Extension):
    """{% generation %} prints its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise Raised(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()


def render(source, chat):
    """Renders a conversation with Jinja2: {"text"}, {"raise"} or {"error"}."""
    names = {**chat.get("extra", {}), **TOKENS, "messages": chat["messages"], "tools": chat.get("tools"),
             "documents": chat.get("documents"), "add_generation_prompt": chat.get("prompt", True)}
    try:
        return {"text": ENV.from_string(source).render(**names)}
    except Raised as e:
        return {"raise": str(e)}
    except Exception as e:  # whatever Python raises is an error row
        return {"error": f"{type(e).__name__}: {e}"}


USER = ["Hello!", "  What's 2 + 2?\n", "Привет, как дела?", "写一首关于秋天的诗。", "Tell me a joke\n\nabout cats.",
        "<b>bold</b> & \"quotes\" 'single' \\ back\tslash", "😀 emoji 👩‍👩‍👧 family", "", "   ", "a\u2028b\u0085c\x0bd",
        "code:\n```python\nprint('{{ x }} {% if %}')\n```", "mañana e\u0301 İstanbul ΑΣ ß", "x" * 300,
        "{\"json\": [1, 2.5, null]}", "Line one\r\nline two\rline three", "[INST] not a token [/INST]"]
ANSWERS = ["Hi there.", "4", "<think>\nlet me see\n</think>\n\nIt is 4.", "<think>half a thought", "",
           "Sure!\n\n- one\n- two\n", "a</think>b</think>c", "  padded  ", "Конечно."]
SYSTEM = ["You are helpful.", "  Be brief. \n", "", "Отвечай по-русски.", "Use the tools.\nAlways."]
KEYS = ["city", "unit", "días", "n", "flag", "options"]
VALUES = ["Paris", "it's \"odd\"", 3, 2.5, True, None, ["a", 1, {"k": False}], {"x": 1, "y": "ß"}, 1e22, -7, ""]


def schema(rng, depth=0):
    kinds = ["string", "number", "integer", "boolean"] + (["array", "object"] if depth < 2 else [])
    kind = rng.choice(kinds)
    out = {"type": kind}
    if rng.random() < 0.6:
        out["description"] = rng.choice(["The city's name", "A <value> & more", "Größe"])
    if kind == "string" and rng.random() < 0.4:
        out["enum"] = ["celsius", "fahrenheit"]
    if kind == "array":
        out["items"] = schema(rng, depth + 1)
    if kind == "object":
        out["properties"] = {k: schema(rng, depth + 1) for k in rng.sample(KEYS, 2)}
        out["required"] = list(out["properties"])[:1]
    if kind != "object" and rng.random() < 0.2:
        out["default"] = rng.choice(VALUES)
    if rng.random() < 0.1:
        out["nullable"] = True
    return out


def tool(rng, i):
    properties = {k: schema(rng) for k in rng.sample(KEYS, rng.randint(0, 3))}
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    function = {"name": f"tool_{i}", "description": rng.choice(["Does it.", "Gets the weather\nfor a city."]),
                "parameters": parameters}
    if rng.random() < 0.3:
        function["return"] = {"type": "string", "description": "what it says"}
    return {"type": "function", "function": function}


def call(rng, i, as_text):
    arguments = {k: rng.choice(VALUES) for k in rng.sample(KEYS, rng.randint(0, 3))}
    function = {"name": f"tool_{i}", "arguments": json.dumps(arguments) if as_text else arguments}
    return {"id": f"call{rng.randrange(10**6):06d}", "type": "function", "function": function}


def content(rng, text, parts):
    if not parts:
        return text
    return [{"type": "text", "text": text}] + ([{"type": "image"}] if rng.random() < 0.3 else [])


def turns(rng, kind, parts):
    out = []
    as_text = rng.random() < 0.3
    for _ in range(rng.randint(1, 3)):
        out.append({"role": "user", "content": content(rng, rng.choice(USER), parts)})
        if kind == "tools" and rng.random() < 0.8:
            n = rng.randint(1, 2)
            calls = [call(rng, i, as_text) for i in range(n)]
            out.append({"role": "assistant", "content": rng.choice([None, "", "Calling."]), "tool_calls": calls})
            for c in calls:
                result = rng.choice(["22 °C", "{\"ok\": true}", "ошибка"])
                out.append({"role": "tool", "name": c["function"]["name"], "tool_call_id": c["id"], "content": result})
        answer = {"role": "assistant", "content": content(rng, rng.choice(ANSWERS), parts)}
        if rng.random() < 0.2:
            answer["reasoning_content"] = rng.choice(["I think.\n", "", "\nдумаю"])
        out.append(answer)
    if rng.random() < 0.7:
        out.append({"role": "user", "content": content(rng, rng.choice(USER), parts)})
    return out


def conversations():
    rng = random.Random(5)
    chats = []
    for i in range(56):
        kind = ["plain", "plain", "tools", "documents"][i % 4]
        messages = turns(rng, kind, parts=i % 7 == 3)
        if rng.random() < 0.5:
            messages.insert(0, {"role": "system", "content": content(rng, rng.choice(SYSTEM), i % 7 == 3)})
        chat = {"messages": messages}
        if kind == "tools":
            chat["tools"] = [tool(rng, k) for k in range(rng.randint(1, 3))]
        if kind == "documents":
            chat["documents"] = [{"doc_id": k, "title": f"T{k}", "text": rng.choice(USER)} for k in range(2)]
        if rng.random() < 0.3:
            chat["extra"] = rng.choice([{"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True},
                                        {"reasoning_effort": "high"}, {"date_string": "1 Jan 2025"},
                                        {"tools_in_user_message": False}, {"length": "long", "x": [1, 2]}])
        if rng.random() < 0.3:
            chat["prompt"] = False
        chats.append(chat)
    user, system = {"role": "user", "content": "Hi"}, {"role": "system", "content": "S"}
    for messages in ([], [system], [user], [user, user], [user, system], [{"role": "assistant", "content": "A"}],
                     [{"role": "user"}], [{"role": "user", "content": None}], [{"role": "wizard", "content": "?"}],
                     [{"role": "user", "content": 5}], [user, {"role": "assistant", "content": "x", "prefix": True}],
                     [{"role": "developer", "content": "D"}, user]):
        chats.append({"messages": messages})
    return chats


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def golden_line(result):
    if "text" in result:
        data = result["text"].encode()
        return f"ok {len(data)} {fnv(data):016x}"
    return "raise " + json.dumps(result["raise"], ensure_ascii=False) if "raise" in result else "error"


def write_lines(path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def try_templates(tool_chat, paths):
    chats = conversations()
    total = 0
    for path in paths:
        source = Path(path).read_text(encoding="utf-8")
        lines = "".join(json.dumps({**c, **TOKENS}) + "\n" for c in chats)
        run = subprocess.run([tool_chat, path], input=lines, capture_output=True, text=True, check=False)
        got = [json.loads(line) for line in run.stdout.split("\n") if line]
        wrong = 0
        counts = {"text": 0, "raise": 0, "error": 0}
        for chat, have in zip(chats, got):
            want = render(source, chat)
            counts[next(iter(want))] += 1
            same = have.get("text") == want.get("text") and ("raise" not in want or have.get("error") == want["raise"])
            if not same:
                wrong += 1
                if wrong <= 2:
                    print(f"  want {want!r:.600}\n  got  {have!r:.600}")
        wrong += abs(len(got) - len(chats))
        total += wrong
        print(f"{path}: {wrong} of {len(chats)} differ ({counts})", run.stderr[-300:])
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--try", nargs="+", dest="others", metavar=("TOOL", "TEMPLATE"))
    args = parser.parse_args()
    if args.others:
        raise SystemExit(try_templates(args.others[0], args.others[1:]) != 0)
    chats = conversations()
    write_lines(HERE / "conversations.jsonl", [json.dumps(c, ensure_ascii=False) for c in chats])
    for path in sorted(HERE.glob("*.jinja")):
        source = path.read_bytes().decode("utf-8")
        results = [render(source, c) for c in chats]
        write_lines(path.with_suffix(".golden"), [golden_line(r) for r in results])
        print(path.name, sum("text" in r for r in results), "texts,", sum("raise" in r for r in results), "raised,",
              sum("error" in r for r in results), "errors")
    features = [json.loads(line) for line in (HERE / "features.jsonl").read_text(encoding="utf-8").split("\n") if line]
    chat = json.loads((HERE / "features_chat.json").read_text(encoding="utf-8"))
    lines = []
    for f in features:
        result = render(f["template"], chat)
        lines.append(json.dumps({"template": f["template"], **({"error": True} if "error" in result else result)},
                                ensure_ascii=False))
    write_lines(HERE / "features.jsonl", lines)
    versions = {"jinja2": jinja2.__version__, "python": platform.python_version(), "conversations": len(chats)}
    (HERE / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
