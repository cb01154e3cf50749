#!/usr/bin/env python3
"""Tests a server of vectors and of scores: /v1/embeddings and /v1/rerank.

usage: serve_embed.py SHOAL WORK_FOLDER RANKS
RANKS is 1, or 4 (tp 2 x pp 2). Bodies are compared byte for byte with the rows that shoal embed and
shoal rank write for the same lines on one rank.
"""
import base64
import json
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

from embed import GOLDENS, EmbedTest
from program import expect, main_of, write_lines
from serve import LIMIT_S, Server, error_of, wait_for
from serve_files import FilesTest

EMBEDDINGS, RERANK, CHAT = "/v1/embeddings", "/v1/rerank", "/v1/chat/completions"
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
LONG = "fish and " * 40

# (body, words of the error; None: it has vectors)
TEXTS = [
    ({"input": "A shoal of fish.", "model": "m"}, None),
    ({"input": ["the sea", "the sea, and fish", "x"], "user": "u", "model": "m"}, None),
    ({"input": [5, 17, 30]}, None),
    ({"input": [[5, 17, 30], [1]], "encoding_format": "base64"}, None),
    ({"input": ["the sea", [5, 17, 30]], "dimensions": 5, "encoding_format": "float"}, None),
    ({"input": LONG, "encoding_format": "base64", "dimensions": 16}, None),
    ({"input": "the sea", "prompt_name": "query", "priority": 3}, None),
    ({}, "expected input"), ({"input": []}, "input: expected 1 to 2048"), ({"input": [[]]}, "no tokens"),
    ({"input": ["x"] * 2049}, "found 2049"), ({"input": "x " * 2000}, "expected at most 1024"),
    ({"input": ["x", "x " * 2000]}, "input[1]: the prompt has"),
    ({"input": "x", "dimensions": 17}, "dimensions: expected 1 to 16, found 17"),
    ({"input": "x", "dimensions": 0}, "dimensions"), ({"input": [IMAGE]}, "input[0]: expected a text"),
    ({"input": "x", "encoding_format": "int8"}, "encoding_format"), ({"input": [1, 272]}, "token ids of 0 to 271"),
    ({"input": "x", "temperature": 0}, "temperature: this field is not known"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages"),
]
DOCUMENTS = ["In the sea.", "A recipe of bread.", "fish", "In the sea.", "x<|im_end|>", ""]
PAIRS = [
    ({"query": "Where do shoals live?", "documents": DOCUMENTS, "model": "m"}, None),
    ({"query": "Where?", "documents": DOCUMENTS, "top_n": 2, "return_documents": True}, None),
    ({"query": "Where?", "documents": [{"text": "the\u0000 sea"}, "fish"], "return_documents": True}, None),
    ({"query": "Where?", "documents": ["fish"], "top_n": 9, "instruction": "other", "user": "u"}, None),
    ({"query": "x"}, "documents: expected a list"), ({"query": "x", "documents": []}, "documents: expected a list"),
    ({"documents": ["a"]}, "query: expected a text"), ({"query": "x", "documents": ["a", 5]}, "documents[1]"),
    ({"query": "x", "documents": [{"image": "data:,"}]}, "documents[0]: expected a text"),
    ({"query": "x", "documents": ["a", "x " * 2000]}, "documents[1]: the prompt has"),
    ({"query": "x", "documents": ["a"], "top_n": 0}, "top_n: expected 1"),
    ({"query": "x", "documents": ["a"], "return_documents": 1}, "return_documents: expected a boolean"),
    ({"input": "x"}, "input: this field is not known"),
]


class ServeEmbedTest(EmbedTest):
    def __init__(self, shoal, work, ranks):
        super().__init__(shoal, work)
        self.ranks = int(ranks)
        self.rank_model("asked", "qwen3-embed", "Qwen3ForCausalLM", tokenizer=GOLDENS / "rank_tokenizer.json")

    def server(self, model, *flags):
        return Server(self.shoal, self.work / f"server-{model}", self.models[model], self.ranks, *flags)

    def rows(self, command, model, path, bodies):
        """The command's rows for the bodies as batch lines: ("body", bytes) or ("error", dict)."""
        lines = [{"custom_id": f"c{i}", "method": "POST", "url": path, "body": body} for i, (body, _) in enumerate(bodies)]
        write_lines(self.work / "in.jsonl", lines)
        self.shoal.must(command, "--model", self.models[model], "--input", self.work / "in.jsonl", "--output",
                        self.work / "out.jsonl", "--quiet")
        rows = []
        for line in (self.work / "out.jsonl").read_bytes().splitlines():
            error, begin = json.loads(line)["error"], line.find(b'"body":') + len(b'"body":')
            rows.append(("error", error) if error else ("body", line[begin:line.rindex(b'},"error":null')]))
        return rows

    @staticmethod
    def answers(server, path, bodies):
        """(status, headers, bytes) of a call with each body; eight calls run at a time."""
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda i: server.call("POST", path, bodies[i][0], {"X-Request-Id": f"c{i}"}),
                                 range(len(bodies))))

    def bodies_are_those_of_a_batch(self, server, command, model, path, bodies):
        good = []
        rows = self.rows(command, model, path, bodies)
        for (status, headers, data), (kind, row), (body, words) in zip(
                self.answers(server, path, bodies), rows, bodies, strict=True):
            what = f"{json.dumps(body)[:200]}: {status} {data[:300]}\nbatch: {row}"
            if words is None:
                expect(kind == "body" and status == 200 and data == row, what)
                expect(headers["Content-Type"] == "application/json", what)
                good.append((body, json.loads(data)))
            else:
                error = error_of(data)
                expect(kind == "error" and status == 400 and words in error["message"], what)
                expect((error["code"], error["message"]) == (row["code"], row["message"]), what)
                expect(error["type"] == "invalid_request_error" and "param" in error, what)
        return good

    def refuses(self, server, words, *calls):
        for path, body in calls:
            status, _, data = server.call("POST", path, body)
            expect(status == 400 and words in error_of(data)["message"], f"{path}: {status} {data}")

    # --- vectors ---

    def vectors_are_those_of_plain_lines(self, good):
        """shoal embed's own lines, without a batch line's envelope, have the same numbers."""
        rows = self.embed("qwen3-embed", [dict(body, custom_id=str(i)) for i, (body, _) in enumerate(good)])
        for i, (body, answer) in enumerate(good):
            wanted = rows[str(i)].get("embeddings") or [rows[str(i)]["embedding"]]
            expect([d["embedding"] for d in answer["data"]] == wanted, f"{body}: other numbers")
            expect(answer["object"] == "list" and answer["model"] == body.get("model", ""), f"{answer}")
            for k, d in enumerate(answer["data"]):
                expect(d["object"] == "embedding" and d["index"] == k, f"{d}")
                vector = d["embedding"]
                if body.get("encoding_format") == "base64":
                    vector = struct.unpack(f"<{len(base64.b64decode(vector)) // 4}f", base64.b64decode(vector))
                expect(len(vector) == body.get("dimensions", 16), f"{body}: {len(vector)} numbers")
            n = rows[str(i)]["usage"]["prompt_tokens"]
            expect(answer["usage"] == {"prompt_tokens": n, "total_tokens": n}, f"{answer['usage']}")

    def vectors(self):
        """The model has sentence-transformers' files, so the server needs no --task."""
        server = self.server("qwen3-embed", "--batch-dir", self.work / "vectors")
        try:
            self.batch_of(server, "embed", "qwen3-embed", EMBEDDINGS, TEXTS)
            ends = ("request_success_total", ',finished_reason="stop"')
            n_before = server.metric(*ends)
            good = self.bodies_are_those_of_a_batch(server, "embed", "qwen3-embed", EMBEDDINGS, TEXTS)
            expect(len(good) == 7, f"{len(good)} bodies have vectors")
            self.vectors_are_those_of_plain_lines(good)
            self.refuses(server, "qwen3-embed is served as a model that makes vectors",
                         ("/v1/completions", {"prompt": "x"}), (CHAT, {"messages": []}), (RERANK, PAIRS[0][0]))
            self.refuses(server, "stream: this field is not known", (EMBEDDINGS, {"input": "x", "stream": True}))
            status, _, data = server.call("GET", EMBEDDINGS)
            expect(status == 405, f"{status} {data}")
            status, _, data = server.call("POST", "/tokenize", {"input": "the sea"})
            expect(status == 200 and json.loads(data)["count"] > 0, f"{status} {data}")
            expect(server.metric(*ends) - n_before == len(good), f"ends: {n_before}, then {server.metric(*ends)}")
        finally:
            server.end()

    # --- batches ---

    def batch_of(self, server, command, model, path, bodies):
        """A batch's output is the file that the command writes."""
        self.rows(command, model, path, bodies)
        content, wanted = ((self.work / name).read_bytes() for name in ("in.jsonl", "out.jsonl"))
        status, _, data = FilesTest.upload(server, content)
        expect(status == 200, f"upload: {status} {data}")
        asked = {"input_file_id": json.loads(data)["id"], "completion_window": "24h"}
        self.refuses(server, f"endpoint: expected {path}", ("/v1/batches", {**asked, "endpoint": "/v1/completions"}))
        status, _, data = server.call("POST", "/v1/batches", {**asked, "endpoint": path})
        expect(status == 200, f"batch: {status} {data}")
        batch_id = json.loads(data)["id"]
        wait_for(lambda: FilesTest.batch(server, batch_id)["status"] != "in_progress", "end of a batch", LIMIT_S)
        ended = FilesTest.batch(server, batch_id)
        expect(ended["status"] == "completed", f"{ended}")
        status, _, data = server.call("GET", f"/v1/files/{ended['output_file_id']}/content")
        expect(status == 200 and data == wanted, f"other rows than shoal {command}'s")

    # --- scores ---

    def results_are_sorted(self, good):
        rows = self.ranked("asked", [{"custom_id": str(i), "query": body["query"], "instruction": body.get("instruction"),
                                      "documents": [d["text"] if isinstance(d, dict) else d for d in body["documents"]]}
                                     for i, (body, _) in enumerate(good)])
        for i, (body, answer) in enumerate(good):
            scores, texts = rows[str(i)]["scores"], [d["text"] if isinstance(d, dict) else d for d in body["documents"]]
            order = sorted(range(len(scores)), key=lambda k: (-scores[k], k))[:body.get("top_n")]
            found = answer["results"]
            expect([r["index"] for r in found] == order, f"{body}: {found}, scores {scores}")
            expect([r["relevance_score"] for r in found] == [scores[k] for k in order], f"{found}")
            wanted = [{"text": texts[k]} if body.get("return_documents") else None for k in order]
            expect([r.get("document") for r in found] == wanted, f"{found}")
            expect(answer["object"] == "list" and answer["id"].startswith("rerank-"), f"{answer}")
            n = rows[str(i)]["usage"]["prompt_tokens"]
            expect(answer["usage"] == {"prompt_tokens": n, "total_tokens": n}, f"{answer['usage']}")
        ranked = [r["index"] for r in good[0][1]["results"]]
        expect(ranked != sorted(ranked), "the scores have the order of the documents")
        expect(ranked.index(3) == ranked.index(0) + 1, f"equal documents keep their order: {ranked}")

    def scores(self):
        server = self.server("asked", "--task", "rank", "--batch-dir", self.work / "scores")
        try:
            self.batch_of(server, "rank", "asked", RERANK, PAIRS)
            good = self.bodies_are_those_of_a_batch(server, "rank", "asked", RERANK, PAIRS)
            expect(len(good) == 4, f"{len(good)} bodies have scores")
            self.results_are_sorted(good)
            self.refuses(server, "asked is served as a model that scores documents",
                         ("/v1/completions", {"prompt": "x"}), (EMBEDDINGS, {"input": "x"}))
        finally:
            server.end()

    # --- which task ---

    def tasks(self):
        """Without --task, a model with a head generates, and a model with a head of classes scores.
        """
        server = self.server("asked")
        try:
            self.refuses(server, "asked is served as a model that generates text", (EMBEDDINGS, {"input": "x"}),
                         (RERANK, PAIRS[0][0]))
        finally:
            server.end()
        self.rank_model("two", "qwen3-embed", "Qwen3ForSequenceClassification", [[0.5] * 16, [0.25] * 16])
        kind, row = self.rows("rank", "two", RERANK, PAIRS[:1])[0]
        expect(kind == "error" and "it gives 2 scores a text" in row["message"], f"{row}")
        for model, flags in [("asked", ("--pooling", "mean")), ("two", ("--temperature", 0)),
                             ("qwen3-embed", ("--activation", "none"))]:
            done = self.shoal("serve", "--model", self.models[model], "--port", 0, *flags)
            expect(done.status == 2 and f"{flags[0]}: without effect" in done.err, f"{model}: {done}")

    def run(self):
        self.vectors()
        self.scores()
        if self.ranks == 1:
            self.tasks()
        print(f"serve_embed: {len(TEXTS)} calls for vectors and {len(PAIRS)} for scores on {self.ranks} ranks")


if __name__ == "__main__":
    main_of(ServeEmbedTest(*sys.argv[1:]).run)
