"""A server that clients treat badly: hang-ups at every stage, malformed bodies, slow readers,
half-closed sockets, oversized input. Afterwards it is healthy, and everything it held is free.

    serve_flood_test.py K3_BINARY [--requests N]     the suite takes 2,000
"""

import json
import random
import socket
import struct
import sys
import threading
import time

import k3_binary
from k3_binary import NANO, BinaryTest
from k3_server import Server

CLIENTS = 8
SOCKET_TIMEOUT_S = 120
BODY_BYTES_MAX = 1 << 20
QUESTION = [{"role": "user", "content": "Repeat these words: river apple moon sun"}]


def head(length, *more, path="/v1/chat/completions", method="POST"):
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
             f"Content-Length: {length}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Client:
    """One client's misdeeds, by chance but always the same for a seed."""

    def __init__(self, server, seed):
        self.server = server
        self.random = random.Random(seed)

    def connect(self):
        return socket.create_connection((self.server.host, self.server.port), SOCKET_TIMEOUT_S)

    def body(self, **fields):
        length = self.random.choice([0, 0, 5, 40, 300])
        words = " ".join(self.random.choice(["river", "moon", "apple", "stone"])
                         for _ in range(length))
        messages = QUESTION if length == 0 else [{"role": "user", "content": words}]
        return json.dumps({"messages": messages, "max_tokens": self.random.choice([1, 20, 200]),
                           "temperature": 1.2, "seed": self.random.randrange(1000),
                           **fields}).encode()

    # Every method is one kind of request. Those that expect an answer give its status.

    def good(self):
        body = self.body()
        with self.connect() as link:
            link.sendall(head(len(body)) + body)
            return self.status_of(link)

    def streamed(self):
        body = self.body(stream=True)
        with self.connect() as link:
            link.sendall(head(len(body), "Connection: close") + body)
            text = b"".join(iter(lambda: link.recv(1 << 16), b""))
        assert b"data: [DONE]" in text, text[-300:]
        return 200

    def leave_in_head(self):
        with self.connect() as link:
            link.sendall(head(100)[:self.random.randrange(1, 60)])

    def leave_in_body(self):
        body = self.body()
        with self.connect() as link:
            link.sendall(head(len(body)) + body[:len(body) // 2])

    def leave_at_once(self):
        body = self.body(stream=self.random.random() < 0.5, n=self.random.choice([1, 3]))
        with self.connect() as link:
            link.sendall(head(len(body)) + body)
            if self.random.random() < 0.5:  # a reset instead of an orderly end
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def leave_among_tokens(self):
        body = self.body(stream=True, max_tokens=500)
        with self.connect() as link:
            link.sendall(head(len(body)) + body)
            for _ in range(self.random.randrange(1, 6)):
                link.recv(200)

    def half_close(self):
        body = self.body()
        with self.connect() as link:
            link.sendall(head(len(body)) + body)
            link.shutdown(socket.SHUT_WR)
            link.recv(1 << 16)

    def slow_reader(self):
        body = self.body(stream=True, max_tokens=200)
        with self.connect() as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.sendall(head(len(body)) + body)
            for _ in range(3):
                time.sleep(0.05)
                link.recv(100)

    def malformed(self):
        good = self.body()
        bodies = [b"", b"{", b"[]", b"null", b"\xff\xfe", good[:-1], good.replace(b":", b";", 1),
                  b'{"messages": 3}', b'{"messages": []}', b'{"messages": [{"role": "king"}]}',
                  b"[" * 5000, b'{"a": ' * 3000 + b"1" + b"}" * 3000,
                  json.dumps({"messages": QUESTION, "max_tokens": -1}).encode(),
                  json.dumps({"messages": QUESTION, "top_p": "high"}).encode(),
                  json.dumps({"messages": QUESTION, "response_format": {
                      "type": "json_schema", "json_schema": {"name": "x", "schema": {
                          "type": "object", "patternProperties": {}}}}}).encode(),
                  bytes(self.random.randrange(256) for _ in range(self.random.randrange(300)))]
        body = self.random.choice(bodies)
        with self.connect() as link:
            link.sendall(head(len(body)) + body)
            status = self.status_of(link)
        assert status == 400, (status, body[:100])
        return status

    def oversized(self):
        with self.connect() as link:
            link.sendall(head(BODY_BYTES_MAX + 1))
            status = self.status_of(link)
        assert status == 413, status
        return status

    def bad_http(self):
        texts = [b"\r\n\r\nGET\r\n\r\n", b"GET\r\n\r\n", b"POST /v1 HTTP/9.9\r\n\r\n", b"\x00" * 50 + b"\r\n\r\n",
                 b"GET / HTTP/1.1\r\nA" + b"a" * 40_000 + b": 1\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
        with self.connect() as link:
            link.sendall(self.random.choice(texts))
            status = self.status_of(link)
        assert 400 <= status < 600, status
        return status

    def status_of(self, link):
        line = link.makefile("rb").readline()
        return int(line.split()[1]) if line.startswith(b"HTTP/1.") else 0

    KINDS = ["good", "streamed", "leave_in_head", "leave_in_body", "leave_at_once",
             "leave_at_once", "leave_among_tokens", "leave_among_tokens", "half_close",
             "slow_reader", "malformed", "malformed", "oversized", "bad_http"]

    def misbehave(self):
        kind = self.random.choice(self.KINDS)
        try:
            status = getattr(self, kind)()
        except (ConnectionResetError, BrokenPipeError):
            return  # the server may end what is no request
        if kind in ("good", "streamed"):
            assert status in (200, 429), (kind, status)


class FloodTest(BinaryTest):
    requests = 2000

    def test_the_server_is_as_before(self):
        with Server(self.binary, NANO, "--max-streams", "6", "--max-body-bytes",
                    str(BODY_BYTES_MAX), "--cache-bytes", "16M", "--log-level", "warn") as server:
            first = server.chat(QUESTION, seed=1)["choices"][0]["message"]
            self.flood(server)
            server.wait_idle(120)
            self.assertEqual(server.health(), "ready")
            after = server.metrics()
            for name in ("k3_planned_bytes", "k3_streams_running", "k3_streams_decoding",
                         "k3_cache_pinned"):
                self.assertEqual(after[name], 0, name)
            self.assertLessEqual(after['k3_cache_bytes{tier="memory"}'],
                                 after['k3_cache_bytes_max{tier="memory"}'])
            again = server.chat(QUESTION, seed=1)["choices"][0]["message"]
            self.assertEqual(again, first)
            errors = [line for line in server.log if '"level":"error"' in line]
            self.assertEqual(errors, [])
        self.assertEqual(server.process.returncode, 0, server.log[-20:])

    def flood(self, server):
        failures = []

        def work(first):
            for number in range(first, self.requests, CLIENTS):
                try:
                    Client(server, number).misbehave()
                except Exception as error:  # pylint: disable=broad-exception-caught
                    failures.append(f"request {number}: {error!r}")

        threads = [threading.Thread(target=work, args=(n,)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures[:5], [])


if __name__ == "__main__":
    if "--requests" in sys.argv:
        at = sys.argv.index("--requests")
        FloodTest.requests = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    k3_binary.main()
