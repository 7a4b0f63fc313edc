"""A `k3 serve` under test: started on a free port of the loopback, stopped with the test."""

import http.client
import json
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 120


class Server:
    """Use it as a context; `base` is its URL."""

    def __init__(self, binary, model, *options):
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [binary, "serve", model, "--port", "0", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.log = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        line = self.process.stdout.readline().decode()
        if "http://" not in line:
            self.process.wait(STOP_TIMEOUT_S)
            self._reader.join()
            raise RuntimeError(f"no server: {line!r} {self.log}")
        self.base = line.split(" at ")[1].strip().removesuffix("/v1")
        self.host, port = self.base.removeprefix("http://").rsplit(":", 1)
        self.port = int(port)

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line.decode(errors="replace").rstrip())

    def __enter__(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.health() != "ready":
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not become ready: {self.log[-5:]}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()
            self._reader.join()
            self.process.stderr.close()

    def kill(self):
        """As a power cut would end it."""
        self.process.kill()
        self.process.wait()

    def health(self):
        """What /health says, None where nobody answers."""
        try:
            with urllib.request.urlopen(self.base + "/health", timeout=5) as answer:
                return json.load(answer)["status"]
        except urllib.error.HTTPError as error:
            with error:
                return json.load(error)["status"]
        except OSError:
            return None

    def request(self, method, path, body=None, headers=None, timeout=120):
        """Status, headers and bytes of one answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            all_headers = {} if data is None else {"Content-Type": "application/json"}
            connection.request(method, path, data, {**all_headers, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def post(self, path, body, **options):
        """Status and parsed body."""
        status, _, raw = self.request("POST", path, body, **options)
        return status, json.loads(raw)

    def chat(self, messages, **fields):
        status, body = self.post("/v1/chat/completions", {"messages": messages, **fields})
        if status != 200:
            raise AssertionError(f"{status}: {body}")
        return body

    def stream(self, path, body, **options):
        """The parsed events of a stream, without [DONE], which must come last."""
        status, headers, raw = self.request("POST", path, {**body, "stream": True}, **options)
        if status != 200:
            raise AssertionError(f"{status}: {raw}")
        assert headers["Content-Type"].startswith("text/event-stream"), headers
        frames = [f for f in raw.decode().split("\n\n") if f and not f.startswith(":")]
        assert all(f.startswith("data: ") for f in frames), frames
        assert frames[-1] == "data: [DONE]", frames[-1]
        return [json.loads(f.removeprefix("data: ")) for f in frames[:-1]]

    def metrics(self):
        """Series by name and labels, as in the text."""
        _, _, raw = self.request("GET", "/metrics")
        lines = [l for l in raw.decode().splitlines() if l and not l.startswith("#")]
        return {l.rsplit(" ", 1)[0]: float(l.rsplit(" ", 1)[1]) for l in lines}

    def wait_idle(self, timeout_s=60):
        """Waits until nothing runs or waits, background work included."""
        deadline = time.monotonic() + timeout_s
        idle = 0
        while idle < 3:
            m = self.metrics()
            busy = (m["k3_streams_running"] + m['k3_queue_length{class="foreground"}'] +
                    m['k3_queue_length{class="background"}'])
            idle = idle + 1 if busy == 0 else 0
            assert time.monotonic() < deadline, m
            time.sleep(0.02)
