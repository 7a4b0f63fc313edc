"""The line editor at a pseudo-terminal, and lines from files and pipes: what was typed, what came
out, and how the terminal is left. Runs a program that reads lines and writes them down."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

import pty_terminal
from pty_terminal import (BACKSPACE, DELETE, DOWN, END, END_OF_INPUT, ENTER, HOME, INTERRUPT, LEFT,
                          MARK_NO_PASTES, MARK_PASTES, RIGHT, SUSPEND, TAB, UP, pasted)

KILOBYTES_100 = 100 * 1024


class EditorTest(unittest.TestCase):
    """A test case with a scratch directory and the probe that main() was given."""

    binary = ""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name
        self.history = self.path("history")

    def path(self, name):
        return os.path.join(self.scratch, name)

    def start(self, *words, ready=True, **options):
        """The probe at a terminal, at its first prompt."""
        program = pty_terminal.PtyProgram([self.binary, self.path("lines"), *words], **options)
        self.addCleanup(program.close)
        if ready:
            program.expect(MARK_PASTES)
        return program

    def records(self):
        try:
            with open(self.path("lines"), "rb") as stream:
                # What is behind the last newline is still being written.
                return [json.loads(line) for line in stream.read().split(b"\n")[:-1]]
        except FileNotFoundError:
            return []

    def wait_for(self, count):
        """The first `count` records, once they are there."""
        deadline = time.monotonic() + pty_terminal.TIMEOUT_S
        while len(self.records()) < count:
            self.assertLess(time.monotonic(), deadline, f"only {self.records()}")
            time.sleep(0.005)
        return self.records()[:count]

    def read(self, keys, program, piece=None):
        """The text of the line that these keys make."""
        count = len(self.records()) + 1
        program.send(keys, piece)
        record = self.wait_for(count)[-1]
        self.assertEqual(record["kind"], "text")
        program.expect(MARK_PASTES)
        return record["text"]

    def end(self, program):
        program.send(END_OF_INPUT)
        # Between two prompts a Ctrl-D is the system's, and lost: it has to be typed again.
        for _ in range(5):
            program.settle(quiet_s=0.3)
            if program.poll() is not None:
                break
            program.send(END_OF_INPUT)
        self.assertEqual(program.wait(), 0)
        self.assertEqual(self.records()[-1], {"kind": "end"})


class KeysTest(EditorTest):

    def test_text_is_shown_and_read(self):
        program = self.start()
        program.send(b"hello")
        program.expect(b"hello")
        program.send(b" there")
        program.send(ENTER)
        self.assertEqual(self.wait_for(1), [{"kind": "text", "text": "hello there"}])
        self.end(program)
        shown = pty_terminal.strip_escapes(program.output())
        self.assertIn(b"> hello", shown)

    def test_keys_edit(self):
        program = self.start()
        for keys, text in (
                (b"abc" + LEFT + LEFT + b"X" + RIGHT + b"Y" + ENTER, "aXbYc"),
                (b"bc" + HOME + b"a" + END + b"d\n", "abcd"),
                (b"abc\x01" + DELETE + b"\x05d" + ENTER, "bcd"),
                (b"abc" + LEFT + END_OF_INPUT + ENTER, "ab"),
                (b"one two\x17three" + ENTER, "one three"),
                (b"one two" + LEFT * 3 + b"\x15" + ENTER, "two"),
                (b"one two" + LEFT * 3 + b"\x0b\x19!" + ENTER, "one two!"),
                (b"one two\x1bb\x1bbX\x1bfY" + ENTER, "XoneY two"),
                (b"one two\x01\x1bd\x05\x19" + ENTER, " twoone"),
                (b"ab\x14\x0c" + ENTER, "ba"),
                (b"\x1b[1;2Rx\x1b[200;3Hy" + ENTER, "xy"),
                (b"a\x1b\rb" + UP + b"c" + DOWN + b"d" + ENTER, "ac\nbd"),
                (BACKSPACE * 3 + LEFT + DELETE + b"a" + ENTER, "a"),
                (ENTER, "")):
            with self.subTest(keys):
                self.assertEqual(self.read(keys, program), text)
        self.end(program)

    def test_long_texts_are_killed_and_come_back(self):
        program = self.start()
        word = "x" * 900
        program.send(word.encode() + b"\x15")
        for keys, text in ((b"ab\x7f\x19\x19\x19" + ENTER, "a" + word * 3),
                           (b"a " + word.encode() * 40 + b"\x01\x1bd\x1bd\x19" + ENTER,
                            " " + word * 40)):
            self.assertEqual(self.read(keys, program), text)

    def test_any_locale_will_do(self):
        program = self.start(env={"LC_ALL": "C", "LANG": None})
        program.send("한글e\u0301".encode() + BACKSPACE)
        program.expect("한글e\u0301".encode()[:6])
        self.assertEqual(self.read(b"!" + ENTER, program), "한글!")
        self.assertNotIn("\ufffd".encode(), program.output())

    def test_characters_are_edited_whole(self):
        program = self.start()
        for keys, text in (
                ("한글 漢字 🌍 é", "한글 漢字 🌍 é"),
                ("한글\x7f🌍\x7f漢\x7f!", "한!"),
                ("한🌍\x1b[D\x1b[D가\x1b[C나", "가한나🌍"),
                ("e\u0301👍🏽👨\u200d👩\u200d👧\x7f\x7fx", "e\u0301x"),
                ("한글\x1b[D\x1b[D\x1b[3~", "글")):
            with self.subTest(text):
                self.assertEqual(self.read(text_keys(keys), program), text)
        self.assertEqual(self.read(text_keys("한🌍"), program, piece=1), "한🌍")
        self.end(program)

    def test_bytes_that_are_not_text_become_replacements(self):
        program = self.start()
        for keys, text in ((b"a\xffb\xc3(\x80", "a\ufffdb\ufffd(\ufffd"),
                           (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
                           (b"\xc2\x9b1m", "\ufffd1m"),
                           (b"\xf0\x9f\x8c" + ENTER + b"x", "\ufffd")):
            with self.subTest(keys):
                self.assertEqual(self.read(keys + ENTER, program), text)
        self.assertEqual(self.wait_for(5)[-1]["text"], "x")

    def test_a_lone_escape_is_forgotten(self):
        program = self.start()
        program.send(b"a\x1b")
        time.sleep(0.7)
        self.assertEqual(self.read(b"bc" + ENTER, program), "abc")

    def test_a_backslash_goes_on(self):
        program = self.start()
        self.assertEqual(self.read(b"one\\\rtwo\\\r\rx" + ENTER, program), "one\ntwo\n")
        self.wait_for(2)
        self.assertEqual(self.read(b"row \\\\" + ENTER, program), "row \\\\")
        self.assertEqual(self.read(b"\\\\\\\rx" + ENTER, program), "\\\\\nx")

    def test_tab_completes_commands(self):
        program = self.start()
        self.assertEqual(self.read(b"/his" + TAB + TAB + ENTER, program), "/history")
        program.send(b"/h" + TAB)
        program.expect(b"/help  /history")
        self.assertEqual(self.read(b"i" + TAB + ENTER, program), "/history")
        self.assertEqual(self.read(b"/x" + TAB + ENTER, program), "/x")
        self.assertEqual(self.read(b"a /q" + TAB + b"\r", program), "a /q\t")

    def test_resizing_while_typing(self):
        program = self.start(columns=80)
        text = "a line of some words that is longer than twenty columns, 한글 漢字"
        program.send(text.encode())
        program.expect("漢字".encode())
        for columns, rows in ((20, 24), (7, 4), (1, 1), (80, 24)):
            program.resize(rows, columns)
            program.expect(b"\x1b[J")
            program.settle(0.05)
        program.send(b"!")
        # All of it is shown again, in one piece.
        program.expect(("words that is longer than twenty columns, 한글 漢字!").encode())
        self.assertEqual(self.read(ENTER, program), text + "!")
        program.send(b"/facts" + ENTER)
        self.assertEqual(self.wait_for(3)[-1]["columns"], 80)
        self.end(program)


class PasteTest(EditorTest):

    def test_a_paste_with_newlines_is_one_edit(self):
        program = self.start()
        text = "".join(f"{i}: 한글 and some words\r\n" for i in range(3000))
        text = text[:KILOBYTES_100].encode()[:KILOBYTES_100].decode(errors="ignore")
        clean = text.replace("\r\n", "\n").replace("\r", "\n")
        start = time.monotonic()
        program.send(b"see " + pasted(text.encode()))
        program.expect(re.compile(rb"\[pasted #1, [\d,]+ lines, [\d,]+ bytes\]"))
        seconds = time.monotonic() - start
        self.assertEqual(self.read(b" !" + ENTER, program), f"see {clean} !")
        self.assertLess(seconds, 1.5)
        self.assertLess(len(program.output()), 2000, "only the placeholder is drawn")

    def test_a_paste_in_small_pieces(self):
        program = self.start()
        text = b"0123456789\n" * (KILOBYTES_100 // 11)
        start = time.monotonic()
        program.send(pasted(text), piece=37)
        program.expect(re.compile(rb"\[pasted #1, 9,309 lines, 102,399 bytes\]"))
        self.assertLess(time.monotonic() - start, 3)
        self.assertEqual(self.read(ENTER, program), text.decode())

    def test_short_and_long_lines(self):
        program = self.start()
        self.assertEqual(self.read(b"a" + pasted(b"short") + BACKSPACE + ENTER, program), "ashor")
        self.assertNotIn(b"[pasted", program.output())
        self.assertEqual(self.read(pasted(b"x" * 1001) + ENTER, program), "x" * 1001)
        self.assertIn(b"[pasted #1, 1 line, 1,001 bytes]", program.output())

    def test_several_pastes_and_their_deletion(self):
        program = self.start()
        one, two = pasted(b"1\n1"), pasted(b"2\n2\n")
        self.assertEqual(self.read(b"a" + one + b"b" + two + b"c" + ENTER, program),
                         "a1\n1b2\n2\nc")
        # Backspace takes a placeholder whole, and Delete.
        self.assertEqual(self.read(b"a" + one + two + BACKSPACE + b"z" + ENTER, program), "a1\n1z")
        self.assertEqual(self.read(one + b"z" + HOME + DELETE + ENTER, program), "z")
        # Within it, it is text.
        self.assertEqual(self.read(one + LEFT + BACKSPACE + ENTER, program),
                         "[pasted #6, 2 lines, 3 byte]")

    def test_nothing_in_a_paste_is_a_command(self):
        program = self.start()
        text = "a\x1b[A\x03b\x04\x1a\x11\x13\t\x15\x1b[2~\x7f\x0c\x1bOH"
        self.assertEqual(self.read(pasted(text.encode()) + ENTER, program), text)
        self.assertEqual(self.read(pasted(text.encode() + b"\n\x00\xff") + ENTER, program),
                         text + "\n\ufffd\ufffd")
        self.assertNotIn(b"\x1b[2~", program.output())

    def test_a_paste_that_the_terminal_does_not_mark(self):
        program = self.start()
        text = "word 한글 " * (KILOBYTES_100 // 12)
        start = time.monotonic()
        program.send(text.encode() + ENTER)
        self.assertEqual(self.wait_for(1)[0]["text"], text)
        self.assertLess(time.monotonic() - start, 3)

    def test_it_may_come_in_the_middle_of_a_line(self):
        program = self.start()
        program.send(b"ab" + LEFT)
        program.settle(0.05)
        text = b"0123456789" * 2000
        start = time.monotonic()
        program.send(text, piece=100)
        self.assertEqual(self.read(ENTER, program), "a" + text.decode() + "b")
        self.assertLess(time.monotonic() - start, 3)

    def test_tabs_and_lines_of_a_paste_that_is_not_marked(self):
        program = self.start()
        program.send(b"if x:\n\ty\n")
        texts = [record["text"] for record in self.wait_for(2)]
        self.assertEqual(texts, ["if x:", "\ty"])

    def test_a_paste_without_an_end_can_be_left(self):
        program = self.start()
        program.send(pty_terminal.PASTE_BEGIN + b"lost\x03\n")
        time.sleep(0.7)
        program.send(INTERRUPT)
        self.assertEqual(self.wait_for(1), [{"kind": "interrupted"}])
        self.assertEqual(self.read(b"x" + ENTER, program), "x")


class HistoryTest(EditorTest):

    def test_lines_come_back_in_the_next_run(self):
        program = self.start(self.history)
        big = "row\n" * 5000
        for text in ("first", "두 번째"):
            self.read(text.encode() + ENTER, program)
        self.read(b"two\\\rrows" + ENTER, program)
        self.read(pasted(big.encode()) + ENTER, program)
        self.read(b"last" + ENTER, program)
        self.read(b"last" + ENTER, program)
        self.end(program)
        self.assertEqual(os.stat(self.history).st_mode & 0o777, 0o600)

        program = self.start(self.history)
        self.assertEqual(self.read(UP + ENTER, program), "last")
        self.assertEqual(self.read(UP * 2 + b"!" + ENTER, program), big + "!")
        self.assertIn(b"[recalled #1, 5,000 lines, 20,000 bytes]", program.output())
        # Two rows show as two: up leads to the first of them, and then to the entry before.
        self.assertEqual(self.read(UP * 4 + b"!" + ENTER, program), "two\nrows!")
        self.assertEqual(self.read(UP + UP + b"?" + ENTER, program), "two?\nrows!")
        self.assertEqual(self.read(b"draft" + b"\x10\x10\x0e\x0e!" + ENTER, program), "draft!")
        self.assertEqual(self.read(DOWN + b"\x10" * 100 + b"." + ENTER, program), "first.")
        self.end(program)

    def test_a_broken_file_is_one_notice(self):
        with open(self.history, "wb") as stream:
            stream.write(b"one\n\xff\xfe\n")
        program = self.start(self.history, ready=False)
        program.expect(re.compile(rb"k3: the history is kept in memory only: [^\r]*history"))
        program.expect(MARK_PASTES)
        self.assertEqual(self.read(b"a" + ENTER, program), "a")
        self.assertEqual(self.read(UP + b"b" + ENTER, program), "ab")
        self.end(program)
        self.assertEqual(program.output().count(b"k3: "), 1)
        with open(self.history, "rb") as stream:
            self.assertEqual(stream.read(), b"one\n\xff\xfe\n")


class EndingsTest(EditorTest):

    @staticmethod
    def unusual(settings):
        """Settings that no program has by chance, to see that exactly they come back."""
        settings[0] |= termios.IXANY
        settings[3] &= ~(termios.ECHOE | termios.ECHOK)
        settings[3] |= termios.NOFLSH
        settings[6][termios.VERASE] = b"\x08"

    def assert_left_well(self, program):
        self.assertEqual(program.modes(), program.first_modes)
        output = program.output()
        self.assertGreater(output.rfind(MARK_NO_PASTES), output.rfind(MARK_PASTES))

    def test_ctrl_c_drops_the_line(self):
        program = self.start()
        program.send(b"abc" + INTERRUPT + b"def" + ENTER)
        self.assertEqual(self.wait_for(2), [{"kind": "interrupted"}, {"kind": "text", "text": "def"}])
        program.expect(b"abc^C")
        program.settle(0.05)
        program.send(b"ghi")
        program.expect(b"ghi")
        program.kill(signal.SIGINT)
        self.assertEqual(self.wait_for(3)[-1], {"kind": "interrupted"})
        self.assertEqual(self.read(b"j" + ENTER, program), "j")
        self.end(program)

    def test_the_terminal_is_left_as_it_was(self):
        program = self.start(prepare=self.unusual)
        self.assertNotEqual(program.modes(), program.first_modes, "it was changed for the prompt")
        program.send(b"/wait" + ENTER)
        program.expect(b"busy")
        self.assert_left_well(program)
        program.expect(MARK_PASTES)
        self.end(program)
        self.assert_left_well(program)

    def test_signals_leave_it_too(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(number):
                program = self.start(prepare=self.unusual)
                program.send(b"some text")
                program.expect(b"some text")
                program.kill(number)
                self.assertEqual(program.wait(), -number)
                self.assert_left_well(program)

    def test_between_prompts_only_two_end_it(self):
        program = self.start(prepare=self.unusual)
        program.send(b"/wait" + ENTER)
        program.expect(b"busy")
        program.send(INTERRUPT)
        self.assertEqual(self.wait_for(2)[-1], {"kind": "interrupted"})
        program.send(INTERRUPT * 200)
        program.settle(0.2)
        program.send(b"/wait2" + ENTER)
        program.expect(b"busy")
        for _ in range(3):
            program.send(INTERRUPT)
            time.sleep(0.25)
        self.assertEqual(program.wait(), 130)
        self.assert_left_well(program)

    def test_an_answer_is_interrupted_and_the_next_one_too(self):
        program = self.start()
        for _ in range(3):
            program.send(b"/work" + ENTER)
            program.expect(b"working")
            program.send(INTERRUPT)
            program.expect(b"stopped")
            program.expect(MARK_PASTES)
        self.end(program)

    def test_a_second_ctrl_c_ends_an_answer_that_does_not_stop(self):
        program = self.start(prepare=self.unusual)
        program.send(b"/stuck" + ENTER)
        program.expect(b"working")
        program.send(INTERRUPT)
        program.expect(b"interrupted")
        self.assertIsNone(program.poll())
        program.send(INTERRUPT)
        self.assertEqual(program.wait(), 130)
        self.assert_left_well(program)
        self.assertIn(b"\x1b[0m", program.unseen(), "a style of the answer ends")

    def test_what_is_typed_ahead_is_kept_or_discarded(self):
        for command, texts in ((b"/wait", ["/wait", "ahead", "later"]),
                               (b"/discard", ["/discard", "later"])):
            with self.subTest(command):
                if self.records():
                    os.unlink(self.path("lines"))
                program = self.start()
                program.send(command + ENTER)
                program.expect(b"busy")
                program.send(b"ahead" + ENTER)
                program.expect(MARK_PASTES)
                if command == b"/wait":
                    program.expect(MARK_PASTES)
                program.send(b"later" + ENTER)
                self.assertEqual([record["text"] for record in self.wait_for(len(texts))], texts)
                self.end(program)

    def test_ctrl_z_stops_and_fg_goes_on(self):
        shell = pty_terminal.PtyProgram(["bash", "--norc", "--noprofile", "-i"],
                                        env={"PS1": "shell$ ", "HISTFILE": None})
        self.addCleanup(shell.close)
        shell.expect(b"shell$ ")
        shell.send(f"{self.binary} {self.path('lines')}; echo code $?\r".encode())
        shell.expect(re.compile(rb"\x1b\[1m>\x1b\[0m "))
        shell.send(b"before")
        shell.expect(b"before")
        shell.send(SUSPEND)
        shell.expect(MARK_NO_PASTES)
        shell.expect(re.compile(rb"Stopped.*shell\$ ", re.DOTALL))
        shell.send(b"fg\r")
        shell.expect(MARK_PASTES)
        shell.expect(b"before")
        shell.send(b" after" + ENTER)
        self.assertEqual(self.wait_for(1)[0]["text"], "before after")
        shell.expect(MARK_PASTES)
        shell.send(END_OF_INPUT)
        shell.expect(b"shell$ ")


class PlainTest(EditorTest):
    """Where lines cannot be edited."""

    def pipe(self, data, code=0):
        """The kinds and texts that come of `data` on standard input."""
        result = subprocess.run([self.binary, self.path("lines"), self.history], input=data,
                                capture_output=True, timeout=pty_terminal.TIMEOUT_S, check=False)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, b"", "no prompt")
        self.said = result.stderr.decode()
        records = self.records()
        os.unlink(self.path("lines"))
        return [record.get("text", record["kind"]) for record in records]

    def test_lines_of_a_pipe(self):
        self.assertEqual(self.pipe(b"one\ntwo\r\n\nlast"), ["one", "two", "", "last", "end"])
        self.assertEqual(self.pipe(b""), ["end"])
        self.assertEqual(self.pipe(b"\n"), ["", "end"])
        self.assertEqual(self.pipe(b"a\\\nb\\\r\n\\\\\nc\\"), ["a\nb\n\\\\", "c\\", "end"])
        self.assertEqual(self.pipe(b"a\\\n"), ["a", "end"])
        self.assertEqual(self.pipe("한 \udcff\x1b[A\x03".encode(errors="surrogateescape") + b"\n"),
                         ["한 \ufffd\x1b[A\x03", "end"])
        long = "x" * (5 << 20)
        self.assertEqual(self.pipe(f"{long}\nnext\n".encode()), [long, "next", "end"])
        self.assertFalse(os.path.exists(self.history))

    def test_a_line_has_a_limit(self):
        self.pipe(b"a\n" + b"x" * ((16 << 20) + 1), code=1)
        self.assertIn("line 2: expected at most 16777216 bytes", self.said)
        self.pipe((b"x" * (1 << 20) + b"\\\n") * 17, code=1)
        self.assertIn("line 16: expected at most 16777216 bytes", self.said)

    def test_what_is_left_of_a_file_is_for_the_next(self):
        with open(self.path("input"), "wb") as stream:
            stream.write(b"one\n/quit\nrest\nof it\n")
        with open(self.path("input"), "rb") as stream:
            subprocess.run([self.binary, self.path("lines")], stdin=stream, check=True,
                           timeout=pty_terminal.TIMEOUT_S)
            left = subprocess.run(["cat"], stdin=stream, check=True, capture_output=True,
                                  timeout=pty_terminal.TIMEOUT_S)
        self.assertEqual(left.stdout, b"rest\nof it\n")

    def test_a_terminal_that_only_scrolls(self):
        program = self.start(ready=False, env={"TERM": "dumb"})
        program.send(b"one\rx\x7ftwo\r")
        self.assertEqual([record["text"] for record in self.wait_for(2)], ["one", "two"])
        program.send(b"abc" + INTERRUPT)
        self.assertEqual(self.wait_for(3)[-1], {"kind": "interrupted"})
        program.send(b"three\r")
        self.assertEqual(self.wait_for(4)[-1]["text"], "three")
        self.end(program)
        self.assertNotIn(b"\x1b", program.output())

    def test_colours_are_for_terminals_that_want_them(self):
        for env, styling in (({"NO_COLOR": None}, True), ({"NO_COLOR": "1"}, False),
                             ({"NO_COLOR": ""}, True), ({"TERM": "dumb", "NO_COLOR": None}, False)):
            with self.subTest(env):
                if self.records():
                    os.unlink(self.path("lines"))
                program = self.start(ready=False, env=env, columns=61, rows=17)
                program.send(b"/facts\r")
                facts = self.wait_for(2)[1]
                self.assertEqual(facts, {"kind": "facts", "styling": styling,
                                         "columns": 61, "rows": 17})
                self.end(program)
                self.assertEqual(b"\x1b[1m" in program.output(), styling)
        self.assertEqual(self.pipe(b"/facts\n")[1], "facts")


def text_keys(text):
    return text.encode() + ENTER


def main():
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} LINE_EDITOR_PROBE")
    EditorTest.binary = os.path.abspath(sys.argv.pop(1))
    unittest.main(warnings="ignore")


if __name__ == "__main__":
    main()
