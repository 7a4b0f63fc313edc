"""k3 cache: what it lists, what it finds damaged, and what it removes."""

import fcntl
import json
import os
import shutil
import struct

import k3_binary

GOLDEN = os.path.join(k3_binary.ROOT, "tests", "golden", "cache")
LOCK = "k3-cache.lock"


def record_name(path):
    """The file name and folder that a record belongs under, from its bytes (docs/formats.md)."""
    with open(path, "rb") as stream:
        start = stream.read(88)
    kind, = struct.unpack_from("<I", start, 12)
    low, high = struct.unpack_from("<QQ", start, 48)
    return start[16:32].hex(), f"{'page' if kind == 1 else 'snapshot'}-{high:016x}{low:016x}.k3c"


class CacheCommandTest(k3_binary.BinaryTest):

    def setUp(self):
        super().setUp()
        self.cache = self.path("cache")
        os.makedirs(self.cache)
        with open(os.path.join(self.cache, LOCK), "w", encoding="utf-8"):
            pass

    def fill(self):
        """A page and a snapshot; gives their paths."""
        paths = []
        for golden in ("page.k3c", "snapshot.k3c"):
            folder, name = record_name(os.path.join(GOLDEN, golden))
            paths.append(os.path.join(self.cache, folder, name))
            os.makedirs(os.path.dirname(paths[-1]), exist_ok=True)
            shutil.copyfile(os.path.join(GOLDEN, golden), paths[-1])
        return paths

    def report(self, action, *words, code=0):
        result = self.k3("cache", action, "--cache-dir", self.cache, "--json", *words)
        self.assertEqual(result.returncode, code, result.stderr)
        return json.loads(result.stdout)

    def damage(self, path, at):
        with open(path, "r+b") as stream:
            stream.seek(at)
            byte = stream.read(1)[0]
            stream.seek(at)
            stream.write(bytes([byte ^ 4]))

    def test_list(self):
        self.assertEqual(self.report("list"), {"cache_dir": self.cache, "bytes": 0, "models": []})
        page, snapshot = self.fill()
        os.utime(page, (86400, 86400))
        os.utime(snapshot, (2 * 86400, 2 * 86400))
        folder = os.path.basename(os.path.dirname(page))
        self.assertEqual(self.report("list")["models"], [{
            "fingerprint": folder, "pages": 1, "snapshots": 1, "damaged": 0, "tokens": 16,
            "bytes": 360, "last_use": "1970-01-03T00:00:00Z"}])
        text = self.succeed("cache", "list", "--cache-dir", self.cache).stdout.decode()
        self.assertIn(folder, text)
        self.assertIn("1 pages of 16 tokens, 1 snapshots, 360 B, last used 1970-01-03", text)
        self.damage(page, 40)
        model, = self.report("list")["models"]
        self.assertEqual((model["pages"], model["damaged"]), (0, 1))

    def test_verify(self):
        page, snapshot = self.fill()
        whole = self.report("verify")
        self.assertEqual((whole["records"], whole["bytes"], whole["damaged"]), (2, 360, []))
        self.damage(page, 155)  # in the payload, which list does not read
        self.assertEqual(self.report("list")["models"][0]["damaged"], 0)
        found, = self.report("verify", code=1)["damaged"]
        self.assertEqual((found["path"], found["removed"]), (page, False))
        self.assertIn("checksum", found["reason"])
        text = self.k3("cache", "verify", "--cache-dir", self.cache)
        self.assertEqual(text.returncode, 1)
        self.assertIn("2 records of 360 B, 1 damaged", text.stdout.decode())
        self.assertTrue(os.path.exists(page))
        found, = self.report("verify", "--remove", code=1)["damaged"]
        self.assertTrue(found["removed"])
        self.assertFalse(os.path.exists(page))
        self.assertTrue(os.path.exists(snapshot))
        self.assertEqual(self.report("verify")["records"], 1)

    def test_a_record_under_another_name_is_damaged(self):
        page, snapshot = self.fill()
        other = os.path.join(self.cache, "0" * 32)
        os.makedirs(other)
        shutil.copyfile(page, os.path.join(other, os.path.basename(page)))
        os.rename(snapshot, page)
        damaged = self.report("verify", code=1)["damaged"]
        self.assertEqual([os.path.dirname(record["path"]) for record in damaged],
                         [other, os.path.dirname(page)])
        self.assertIn("fingerprint", damaged[0]["reason"])
        self.assertIn("name", damaged[1]["reason"])

    def test_clear_removes_what_it_knows(self):
        page, snapshot = self.fill()
        folder = os.path.dirname(page)
        partial = page + ".77.partial"
        kept = [os.path.join(folder, "notes.txt"), os.path.join(self.cache, "page-1.k3c"),
                os.path.join(self.cache, LOCK)]
        for path in [partial, *kept]:
            with open(path, "w", encoding="utf-8"):
                pass
        outside = self.path("outside")
        os.makedirs(outside)
        shutil.copyfile(page, os.path.join(outside, os.path.basename(page)))
        os.symlink(outside, os.path.join(self.cache, "f" * 32))
        self.assertEqual(self.report("clear"), {
            "cache_dir": self.cache, "removed_records": 2, "removed_bytes": 360})
        for path in (page, snapshot, partial):
            self.assertFalse(os.path.exists(path), path)
        for path in [*kept, os.path.join(outside, os.path.basename(page))]:
            self.assertTrue(os.path.exists(path), path)
        os.remove(kept[0])
        self.report("clear")
        self.assertFalse(os.path.exists(folder))

    def test_a_cache_in_use_loses_nothing(self):
        page, _ = self.fill()
        self.damage(page, 155)
        with open(os.path.join(self.cache, LOCK), "r+b") as lock:
            # The lock of a server: of the open file, not of the process.
            request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(lock, getattr(fcntl, "F_OFD_SETLK", 37), request)
            for words in (("clear",), ("verify", "--remove")):
                self.refuse("cache", *words, "--cache-dir", self.cache,
                            says=("Unavailable", self.cache, "server"))
            self.report("verify", code=1)
            self.report("list")
        self.assertTrue(os.path.exists(page))

    def test_wrong_words(self):
        self.refuse("cache", "--cache-dir", self.cache, code=2, says=("ACTION",))
        self.refuse("cache", "empty", "--cache-dir", self.cache, code=2, says=("empty",))
        self.refuse("cache", "list", code=2, says=("--cache-dir",))
        self.refuse("cache", "clear", "--remove", "--cache-dir", self.cache,
                    says=("--remove", "verify"))
        for action in ("list", "verify", "clear"):
            self.refuse("cache", action, "--cache-dir", self.path("none"),
                        says=("NotFound", self.path("none")))
            self.refuse("cache", action, "--cache-dir", k3_binary.TINY,
                        says=("InvalidArgument", "tiny-a", LOCK))
            self.refuse("cache", action, "--cache-dir", os.path.join(self.cache, LOCK),
                        says=("InvalidArgument", "found a file"))


if __name__ == "__main__":
    k3_binary.main()
