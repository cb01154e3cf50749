#!/usr/bin/env python3
"""Tests the files and batches of shoal serve: uploads, a batch that a killed server leaves half done, cancelling,
and other flags at the next start.

usage: serve_files.py SHOAL WORK_FOLDER CASE
  files        one rank
  files_many   four ranks, tp 2 x pp 2
The rows of a batch are compared byte for byte with those that shoal generate writes for the same lines.
"""
import json
import signal
import sys

from program import expect, main_of
from serve import CALLS, COMPLETIONS, KEYS, LIMIT_S, ServeTest, error_of, wait_for


class FilesTest(ServeTest):
    RANKS = {"files": 1, "files_many": 4}

    @staticmethod
    def upload(server, content, name="in.jsonl", purpose="batch"):
        border = "5f0a--b"
        name = name if isinstance(name, bytes) else name.encode()
        body = (f'--{border}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
                f'--{border}\r\nContent-Disposition: form-data; name="file"; filename="').encode()
        body += name + b'"\r\nContent-Type: application/octet-stream\r\n\r\n'
        body += content + f"\r\n--{border}--\r\n".encode()
        return server.call("POST", "/v1/files", body,
                           {"Content-Type": f"multipart/form-data; boundary={border}"})

    @staticmethod
    def batch(server, batch_id):
        return json.loads(server.get(f"/v1/batches/{batch_id}"))

    def begin_batch(self, server, content, **more):
        status, _, data = self.upload(server, content)
        expect(status == 200, f"upload: {status} {data}")
        entry = json.loads(data)
        expect(entry["bytes"] == len(content) and entry["purpose"] == "batch", f"{entry}")
        status, _, data = server.call("POST", "/v1/batches", {
            "input_file_id": entry["id"], "endpoint": COMPLETIONS, "completion_window": "24h", **more})
        expect(status == 200, f"batch: {status} {data}")
        return json.loads(data)

    def batch_lines(self, n):
        """Lines of every kind: drawn, with log-probabilities, chats, error rows, without an id, one
        whose id an earlier line has, and not JSON. The last ones take long, so that a server can be
        killed before their batch ends."""
        lines = []
        long = {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "n": 5 - self.ranks}
        for i in range(n):
            path, body = CALLS[i % len(CALLS)] if i < n - n // 12 else (COMPLETIONS, long)
            line = {"method": "POST", "url": path, "body": {**body, "user": f"u{i}"}}
            if i % 5:
                line["custom_id"] = f"b{i if i % 17 else 1}"
            lines.append(json.dumps(line))
        lines[n // 2] = "{ no JSON"
        return ("\n".join(lines) + "\n").encode()

    def rows_of(self, content):
        path, out = self.work / "batch.jsonl", self.work / "batch.out.jsonl"
        path.write_bytes(content)
        self.shoal.must("generate", "--model", self.model, "--input", path, "--output", out)
        return out.read_bytes()

    def files_are_kept(self, server):
        content = b"\x00a\r\n--5f0a\r\n-- not the border --5f0a--b\n"
        status, _, data = self.upload(server, content, name="odd \u00e9.bin")
        entry = json.loads(data)
        expect(status == 200 and entry["filename"] == "odd \u00e9.bin", f"{status} {data}")
        path = f"/v1/files/{entry['id']}"
        expect(json.loads(server.get(path)) == entry, f"{server.get(path)}")
        expect(entry in json.loads(server.get("/v1/files"))["data"], "the list lacks the file")
        status, _, data = server.call("GET", path + "/content")
        expect(status == 200 and data == content, f"content: {status} {data}")
        for wrong in (self.upload(server, b"a", purpose="assistants"),
                      server.call("POST", "/v1/files", b"a", {"Content-Type": "text/plain"}),
                      server.call("POST", "/v1/files", b"--x\r\n", {
                          "Content-Type": "multipart/form-data; boundary=x"}),
                      server.call("POST", "/v1/batches", {"input_file_id": "file-none"}),
                      server.call("POST", "/v1/batches", {"input_file_id": entry["id"],
                                                          "endpoint": "/v1/embeddings"}),
                      server.call("POST", "/v1/batches", b"{")):
            expect(wrong[0] == 400 and error_of(wrong[2])["message"], f"{wrong}")
        status, _, data = server.call("DELETE", path)
        expect(status == 200 and json.loads(data)["deleted"], f"{status} {data}")
        for method, gone in (("GET", path), ("GET", path + "/content"), ("DELETE", path),
                             ("GET", "/v1/batches/none"), ("POST", "/v1/batches/none/cancel")):
            expect(server.call(method, gone)[0] == 404, f"{method} {gone}")

    def begin_first(self, server, content):
        self.files_are_kept(server)
        self.named = json.loads(self.upload(server, b"{}\n", name=250 * b"\xe9" + b".jsonl")[2])
        expect(len(self.named["filename"].encode()) < 256, f"{self.named}")
        status, _, data = server.call("POST", "/v1/batches", {
            "input_file_id": self.named["id"], "endpoint": COMPLETIONS, "metadata": {"a": 70000 * "b"}})
        expect(status == 400 and "metadata" in error_of(data)["message"], f"{status} {data[:300]}")
        metadata = {"a": 60000 * "b"}
        made = self.begin_batch(server, content, metadata=metadata)
        expect(made["status"] == "in_progress" and made["metadata"] == metadata, f"{made}")
        expect(made["request_counts"]["total"] == content.count(b"\n"), f"{made}")
        return made

    def begin_second(self, server, made, first):
        later = self.begin_batch(server, first)
        status, _, data = server.call("DELETE", f"/v1/files/{made['input_file_id']}")
        expect(status == 409, f"a file in use was deleted: {status} {data}")
        return later

    def killed_while_busy(self, flags, content, first):
        """Begins both batches; kills the server once rows of the first are done."""
        server, some = self.serve("killed", *flags), content.count(b"\n") // 16
        try:
            made = self.begin_first(server, content)
            later = self.begin_second(server, made, first)
            wait_for(lambda: self.batch(server, made["id"])["request_counts"]["completed"] > some,
                     "rows of the batch", 2 * LIMIT_S)
            found = self.batch(server, made["id"])
            expect(found["status"] == "in_progress" and found["output_file_id"] is None,
                   f"nothing is left to resume: {found}")
        finally:
            server.end()
        return made, later

    @staticmethod
    def send(server, method, path, body=None):
        """Sends a call whose answer is read later."""
        connection = server.connect()
        connection.request(method, path, body and json.dumps(body), {"Authorization": f"Bearer {KEYS[0]}"})
        return connection

    def dead_at_a_step(self, flags, content, first):
        """Begins both batches; the lead dies at a step that comes before the end of a long line and after that of
        short ones. The last rank is stopped, so that no step ends, until the calls after the first batch are in the
        server: its thread has read them once it has answered later calls. They are answered when the step ends."""
        server = self.serve("killed", *flags, "--failpoint", "step:190", "--watchdog", "900")
        try:
            status, _, data = server.call("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 1})
            expect(status == 200, f"a call when all ranks have started: {status} {data}")
            later = json.loads(self.upload(server, first)[2])["id"]
            server.signal(signal.SIGSTOP, rank=self.ranks - 1)
            made = self.begin_first(server, content)
            calls = [self.send(server, "POST", "/v1/batches", {"input_file_id": later, "endpoint": COMPLETIONS}),
                     self.send(server, "DELETE", f"/v1/files/{made['input_file_id']}")]
            server.get("/health")
            server.get("/health")
            server.signal(signal.SIGCONT, rank=self.ranks - 1)
            answers = [connection.getresponse() for connection in calls]
            later, refused = (json.loads(answer.read()) for answer in answers)
            expect([a.status for a in answers] == [200, 409], f"{later} {refused}")
            expect(server.status(2 * LIMIT_S) == 128 + signal.SIGKILL, f"{server.status()}\n{server.text()}")
        finally:
            server.end()
        return made, later

    def other_servers_are_refused(self, server, folder):
        """A folder has one server; the second one names the first."""
        expect(folder.stat().st_mode & 0o777 == 0o700, f"mode {folder.stat().st_mode:o}")
        second = self.shoal("serve", "--model", self.model, "--port", "0", "--threads", "1", "--batch-dir", folder)
        expect(second.status == 2 and f"pid {server.pids()[0]} " in second.err, f"{second}")

    @staticmethod
    def spoil(folder):
        """Puts a cut entry, and one that leads out of the folder, into the folder, whose server has ended."""
        (folder / "file-cut.json").write_text('{"id": "file-cut", "filename": "a')
        (folder / "batch_path.json").write_text(json.dumps({
            "id": "batch_path", "input_file_id": "../keys", "output": "file-x", "endpoint": COMPLETIONS,
            "completion_window": "24h", "status": "in_progress", "created_at": 1}))

    def spoilt_entries_are_left_out(self, server):
        for name in ("file-cut.json", "batch_path.json"):
            expect(name in server.text(), f"{name} is not in the log:\n{server.text()}")
        files = json.loads(server.get("/v1/files"))["data"]
        expect(self.named in files, f"{self.named} is not in {files}")
        expect(server.call("GET", "/v1/batches/batch_path")[0] == 404, "a batch outside the folder")

    def batches_survive_a_restart(self):
        """A batch half done when its server is killed, and one that has not begun: the next server
        ends both, and their outputs are those of shoal generate. Calls run meanwhile."""
        n = 240 if self.ranks == 1 else 26
        content, folder = self.batch_lines(n), self.work / "batches"
        wanted = self.rows_of(content)
        flags = ["--api-key-file", self.work / "keys", "--batch-dir", folder,
                 "--max-batch", "3" if self.ranks == 1 else "8"]
        first = content[:content.index(b"\n") + 1]
        killed = self.killed_while_busy if self.ranks == 1 else self.dead_at_a_step
        made, later = killed(flags, content, first)
        self.spoil(folder)
        server = self.serve("resumed", *flags)
        try:
            self.spoilt_entries_are_left_out(server)
            if self.ranks == 1:
                self.other_servers_are_refused(server, folder)
            status, _, data = server.call("POST", CALLS[0][0], CALLS[0][1])
            expect(status == 200, f"a call beside a batch: {status} {data}")
            for batch_id, rows in ((made["id"], wanted), (later["id"], wanted[:wanted.index(b"\n") + 1])):
                wait_for(lambda: self.batch(server, batch_id)["status"] != "in_progress",
                         "end of a batch", 4 * LIMIT_S)
                ended = self.batch(server, batch_id)
                expect(ended["status"] == "completed" and ended["completed_at"], f"{ended}")
                status, _, data = server.call("GET", f"/v1/files/{ended['output_file_id']}/content")
                expect(status == 200 and data == rows, f"{batch_id}: other rows than shoal generate's")
                counts, n_errors = ended["request_counts"], rows.count(b'"response":null')
                n_errors += sum(line.startswith(b'{"custom_id"') for line in rows.splitlines())
                expect((counts["completed"] + counts["failed"], counts["failed"]) ==
                       (rows.count(b"\n"), n_errors), f"{counts} {n_errors}")
            listed = [b["id"] for b in json.loads(server.get("/v1/batches"))["data"]]
            expect(sorted(listed) == sorted([made["id"], later["id"]]), f"{listed}")
            self.batches_are_cancelled(server)
        finally:
            server.end()
        if self.ranks == 1:
            self.other_flags_fail_a_batch(flags)

    def batches_are_cancelled(self, server):
        line = {"method": "POST", "url": COMPLETIONS,
                "body": {"prompt": "a", "max_tokens": 480, "ignore_eos": True, "n": 8}}
        content = b"".join(json.dumps({**line, "custom_id": f"l{i}"}).encode() + b"\n" for i in range(64))
        made = self.begin_batch(server, content)
        wait_for(lambda: server.metric("num_requests_running") > 0, "running line")
        status, _, data = server.call("POST", f"/v1/batches/{made['id']}/cancel")
        expect(status == 200 and json.loads(data)["status"] == "cancelling", f"{status} {data}")
        wait_for(lambda: self.batch(server, made["id"])["status"] == "cancelled", "end of a batch")
        expect(server.metric("num_requests_running") == 0, "a line of a cancelled batch runs on")
        output = self.batch(server, made["id"])["output_file_id"]
        _, _, data = server.call("GET", f"/v1/files/{output}/content")
        expect(data.count(b"\n") < 64, "all rows of a cancelled batch")

    def other_flags_fail_a_batch(self, flags):
        """A batch that was begun with another --temperature fails, and says why."""
        server = self.serve("before", *flags)
        try:
            made = self.begin_batch(server, self.batch_lines(240))
            wait_for(lambda: self.batch(server, made["id"])["request_counts"]["completed"] > 5, "rows")
            server.signal(signal.SIGUSR1)
            expect(server.status() == 75, f"status {server.status()}\n{server.text()}")
        finally:
            server.end()
        server = self.serve("after", *flags, "--temperature", "0.5")
        try:
            wait_for(lambda: self.batch(server, made["id"])["status"] == "failed", "failed batch")
            message = self.batch(server, made["id"])["errors"]["data"][0]["message"]
            expect("temperature" in message, f"{message}")
            expect(server.call("POST", CALLS[0][0], CALLS[0][1])[0] == 200, "the server goes on")
        finally:
            server.end()

    def run(self):
        self.batches_survive_a_restart()
        server = self.serve("without", "--api-key-file", self.work / "keys")
        try:
            status, _, data = server.call("GET", "/v1/files")
            expect(status == 404 and "--batch-dir" in error_of(data)["message"], f"{status} {data}")
        finally:
            server.end()
        print(f"serve: batches on {self.ranks} ranks, killed and resumed")


if __name__ == "__main__":
    main_of(FilesTest(*sys.argv[1:]).run)
