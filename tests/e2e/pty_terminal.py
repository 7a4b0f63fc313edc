"""Programs at a real pseudo-terminal, for tests of what only happens at one.

    with PtyProgram([binary, "chat", model]) as program:
        program.expect(b"> ")
        program.send(b"hello\\r")
        program.expect(re.compile(rb"world"), timeout_s=30)
        program.resize(rows=24, columns=20)
        program.send(END_OF_INPUT)
        assert program.wait() == 0

The program leads a session of its own whose controlling terminal is the pseudo-terminal, so Ctrl-C
and resizing come from the kernel as they would on a desk. A thread takes the output all the time:
neither side waits for the other, however much is sent. Nothing waits longer than its timeout. Only
the process that was started here is ever ended, by its id.
"""

import errno
import fcntl
import json
import os
import re
import select
import signal
import struct
import termios
import threading
import time

TIMEOUT_S = 20  # under a sanitizer on a busy machine

ENTER = b"\r"
INTERRUPT = b"\x03"
END_OF_INPUT = b"\x04"
SUSPEND = b"\x1a"
BACKSPACE = b"\x7f"
TAB = b"\t"
UP, DOWN, RIGHT, LEFT = b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D"
HOME, END, DELETE = b"\x1b[H", b"\x1b[F", b"\x1b[3~"
PASTE_BEGIN, PASTE_END = b"\x1b[200~", b"\x1b[201~"
MARK_PASTES, MARK_NO_PASTES = b"\x1b[?2004h", b"\x1b[?2004l"

_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # control sequences
    rb"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # strings, such as a window's title
    rb"|[ -/]*[0-~])")


def saved_conversation(program, prompt, path):
    """The messages of a `k3 chat` that stands at its prompt, by its own /save."""
    program.send(f"/save {path}".encode() + ENTER)
    program.expect(b"Saved in ")
    program.expect(prompt)
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)["messages"]


def strip_escapes(output):
    """The output without what drives the terminal; \\r, \\n and \\b stay."""
    return _ESCAPES.sub(b"", output)


def pasted(text):
    """What a terminal that marks pastes sends for one."""
    return PASTE_BEGIN + text + PASTE_END


class PtyProgram:
    """One program at one pseudo-terminal. `env` is added to the environment; None takes away.

    `prepare` gets the settings of the terminal, as of termios.tcgetattr, and may change them before
    the program starts.
    """

    def __init__(self, argv, env=None, rows=24, columns=80, prepare=None):
        environment = {**os.environ, "TERM": "xterm-256color", **(env or {})}
        environment = {name: value for name, value in environment.items() if value is not None}
        self.exit_code = None  # negative for a signal, as in subprocess
        self._output = bytearray()
        self._seen = 0
        self._changed = threading.Condition()
        self._closing = False
        self._master, self._slave = os.openpty()
        self.resize(rows, columns)
        settings = termios.tcgetattr(self._slave)
        if prepare:
            prepare(settings)
            termios.tcsetattr(self._slave, termios.TCSANOW, settings)
        self.first_modes = self.modes()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(argv, environment)
        os.set_blocking(self._master, False)
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _become(self, argv, environment):
        """In the child: takes the terminal and runs the program."""
        try:
            os.setsid()
            fcntl.ioctl(self._slave, termios.TIOCSCTTY, 0)
            for descriptor in range(3):
                os.dup2(self._slave, descriptor)
            os.closerange(3, 256)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvpe(argv[0], argv, environment)
        finally:
            os._exit(127)  # pylint: disable=protected-access

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _drain(self):
        while not self._closing:
            ready, _, _ = select.select([self._master], [], [], 0.05)
            if ready:
                self._take()

    def _take(self):
        """Moves what there is to the output; whether there was anything."""
        try:
            data = os.read(self._master, 1 << 16)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        with self._changed:
            self._output += data
            self._changed.notify_all()
        return bool(data)

    # Input.

    def send(self, data, piece=None, timeout_s=TIMEOUT_S):
        """Types `data`, in pieces of so many bytes if asked. Waits when the program is slow."""
        deadline = time.monotonic() + timeout_s
        while data:
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"{len(data)} bytes were not read in time; {self._tail()}")
            _, ready, _ = select.select([], [self._master], [], min(left, 0.1))
            if not ready:
                continue
            try:
                data = data[os.write(self._master, data[:piece or 4096]):]
            except BlockingIOError:
                pass

    def resize(self, rows, columns):
        """Makes the window this large; the kernel tells the program with SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def kill(self, number):
        os.kill(self.pid, number)

    # Output.

    def output(self):
        """Everything so far."""
        with self._changed:
            return bytes(self._output)

    def unseen(self):
        """What came behind the last match of expect()."""
        return self.output()[self._seen:]

    def expect(self, pattern, timeout_s=TIMEOUT_S):
        """Waits for bytes or a compiled pattern behind the last match, and returns the match."""
        if isinstance(pattern, bytes):
            pattern = re.compile(re.escape(pattern))
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                match = pattern.search(bytes(self._output[self._seen:]))
                if match:
                    self._seen += match.end()
                    return match
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"no {pattern.pattern!r} in time; {self._tail()}")
                self._changed.wait(left)

    def settle(self, quiet_s=0.1, timeout_s=TIMEOUT_S):
        """Waits until nothing has come for a while."""
        deadline = time.monotonic() + timeout_s
        length = -1
        while length != len(self._output) and time.monotonic() < deadline:
            length = len(self._output)
            time.sleep(quiet_s)

    def _tail(self):
        return f"the output ends with {bytes(self._output[-400:])!r}"

    # The terminal and the end.

    def modes(self):
        """The terminal's settings as in termios.tcgetattr, also after the program ended."""
        return termios.tcgetattr(self._slave)

    def poll(self):
        """The exit code, or None while it runs."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == self.pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code

    def wait(self, timeout_s=TIMEOUT_S):
        """Waits for the end; the exit code, and all output is there."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"the program runs on; {self._tail()}")
            time.sleep(0.005)
        while self._take():
            pass
        return self.exit_code

    def close(self):
        if self._closing:
            return
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.exit_code = os.waitstatus_to_exitcode(status)
        self._closing = True
        self._reader.join()
        os.close(self._master)
        os.close(self._slave)
