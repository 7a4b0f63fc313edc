"""The two engines that bench/compare measures: k3, and the prebuilt llama.cpp of an npm package."""

import glob
import json
import os
import shutil
import statistics
import subprocess
from typing import Any

from compare_report import Case, CompareError, InputError

BENCH = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join("node_modules", "@node-llama-cpp", "linux-x64")
# The first repeat in a process still maps pages in; the median leaves it out.
REPEATS = 3
TRIAL_REPEATS = 2
# Settings of llama.cpp that are tried; which is faster depends on the case and the machine. Repacked
# weights suit its kernels better, and cost time and memory while loading.
FLASH = ("on", "off")
SETTINGS = tuple({"flash": flash, "repack": repack} for flash in FLASH for repack in ("on", "off"))


def run(command: list[str], what: str, cwd: str | None = None) -> str:
    """The program's standard output; a CompareError with its last words when it fails."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise CompareError(f"{what}: cannot start {command[0]} ({error.strerror})") from error
    if done.returncode != 0:
        words = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise CompareError(f"{what}: {' '.join(command[:2])} ended with code {done.returncode}:\n  "
                           + "\n  ".join(words[-8:]))
    return done.stdout


def run_json(command: list[str], what: str) -> dict[str, Any]:
    answer = run(command, what)
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise CompareError(f"{what}: expected JSON, found {answer[:200]!r}") from error
    if not isinstance(found, dict):
        raise CompareError(f"{what}: expected a JSON object, found {answer[:200]!r}")
    return found


def figures(answer: dict[str, Any], what: str) -> dict[str, float]:
    """What one process measured; of several repeats the median."""
    found = {}
    for name in ("prefill_tok_s", "decode_tok_s", "first_token_ms", "peak_rss_bytes"):
        value = answer.get(name)
        if isinstance(value, list) and value:
            value = statistics.median(value)
        if not isinstance(value, (int, float)):
            raise CompareError(f"{what}: expected a number {name}, found {value!r}")
        found[name] = value
    return found


def as_options(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


class K3:
    """Our engine. Depth is filled with random state of the right size."""

    def __init__(self, path: str, model: str, threads: int) -> None:
        found = ("none" if not os.path.exists(path) else
                 "a directory" if os.path.isdir(path) else
                 "a special file" if not os.path.isfile(path) else
                 "a file that is not executable" if not os.access(path, os.X_OK) else None)
        if found is not None:
            raise InputError(f"{path}: expected the k3 program, found {found}; build it with `make` "
                             "or name another with --k3")
        self.path, self.model, self.threads = path, model, threads

    def export(self, out: str, *options: str) -> None:
        run([self.path, "export-gguf", self.model, out, *options], "export to GGUF")

    def speed(self, case: Case) -> dict[str, float]:
        what = f"k3, case {case.name}"
        return figures(run_json(
            [self.path, "bench", self.model, "--json", "--no-yardsticks",
             "--threads", str(self.threads), "--prompt", str(case.prompt), "--gen", str(case.gen),
             "--depth", str(case.depth), "--repeats", str(REPEATS)], what), what)

    def logits(self, tokens: list[int], out: str) -> bytes:
        """Of the last token, float32."""
        ids = ",".join(map(str, tokens))
        run([self.path, "logits", self.model, "--tokens", ids, "--out", out,
             "--threads", str(self.threads)], "k3 logits")
        with open(out, "rb") as stream:
            data = stream.read()
        return data[len(data) - len(data) // len(tokens):]


class Llama:
    """llama.cpp, in a folder of its own: the package's library and a driver linked to it."""

    def __init__(self, folder: str, threads: int) -> None:
        self.folder, self.threads = folder, threads
        self.driver = os.path.join(folder, "llama_driver")
        self.version = ""

    def prepare(self) -> None:
        """Installs and compiles what is not there yet."""
        with open(os.path.join(BENCH, "package.json"), encoding="utf-8") as stream:
            wanted = json.load(stream)["dependencies"]["@node-llama-cpp/linux-x64"]
        if self.installed_version() != wanted:
            os.makedirs(self.folder, exist_ok=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copy(os.path.join(BENCH, name), self.folder)
            run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
                "installing llama.cpp", cwd=self.folder)
        self.version = wanted
        source = os.path.join(BENCH, "llama_driver.cc")
        if (not os.path.exists(self.driver)
                or os.path.getmtime(self.driver) < os.path.getmtime(source)):
            self.compile(source)

    def installed_version(self) -> str | None:
        try:
            with open(os.path.join(self.folder, PACKAGE, "package.json"),
                      encoding="utf-8") as stream:
                return json.load(stream)["version"]
        except (OSError, ValueError, KeyError):
            return None

    def compile(self, source: str) -> None:
        libraries = os.path.join(self.folder, PACKAGE, "bins", "linux-x64")
        links = []
        for pattern in ("libllama.*so", "libggml.*so", "libggml-base.*so"):
            found = glob.glob(os.path.join(libraries, pattern))
            if len(found) != 1:
                raise CompareError(f"{libraries}: expected one {pattern}, found {len(found)}")
            links.append(f"-l:{os.path.basename(found[0])}")
        run([os.environ.get("CXX", "c++"), "-std=c++20", "-O2", source, "-o", self.driver + ".new",
             f"-L{libraries}", *links, f"-Wl,-rpath,{libraries}"], "compiling the driver")
        os.replace(self.driver + ".new", self.driver)

    def deepen(self, gguf: str, case: Case, flash: str, state: str) -> float:
        """Really runs the depth's tokens, at tokens/s; runs with the same flash attention start
        from `state`."""
        what = f"llama.cpp to depth {case.depth}"
        answer = run_json([self.driver, "deepen", gguf, "--threads", str(self.threads),
                           "--depth", str(case.depth), "--state", state, "--flash", flash], what)
        if not isinstance(answer.get("prefill_tok_s"), (int, float)):
            raise CompareError(f"{what}: expected a number prefill_tok_s, found {answer}")
        return answer["prefill_tok_s"]

    def speed(self, gguf: str, case: Case, settings: dict[str, str],
              state: str, repeats: int = REPEATS) -> dict[str, float]:
        command = [self.driver, "speed", gguf, "--threads", str(self.threads),
                   "--prompt", str(case.prompt), "--gen", str(case.gen),
                   "--repeats", str(repeats), *as_options(settings)]
        if case.depth:
            command += ["--depth", str(case.depth), "--state", state]
        what = f"llama.cpp, case {case.name}"
        return figures(run_json(command, what), what)

    def logits(self, gguf: str, tokens: list[int], out: str,
               settings: dict[str, str]) -> bytes:
        run([self.driver, "logits", gguf, "--threads", str(self.threads),
             "--tokens", ",".join(map(str, tokens)), "--out", out, *as_options(settings)],
            "llama.cpp logits")
        with open(out, "rb") as stream:
            return stream.read()
