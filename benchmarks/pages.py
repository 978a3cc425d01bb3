"""From measured numbers to a page of the documentation: what all benchmarks share.

A script measures and writes `results/NAME.json`; its page is made from that file alone. `--write`
writes both, `--render` makes the page again without measuring, and a test compares the pages in
`docs` with the files.
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"


@dataclass(frozen=True)
class Record:
    """What a run of a benchmark measured, as it is in its file.

    Attributes:
        command: What was typed.
        date: Of the measurement.
        commit: Of the source that was measured.
        source: Where the numbers come from, if not from running the command.
        machine: Processor, threads and versions.
        numbers: Everything that the page needs.
    """

    command: str
    date: str
    commit: str
    source: str
    machine: str
    numbers: dict[str, Any]


@dataclass(frozen=True)
class Headline:
    """One number of a benchmark, for the table of all of them.

    Attributes:
        what: What is compared.
        value: The number.
        sense: On which side of the limit it should be.
        limit: The target; None if there is none.
        form: How the number is written.
    """

    what: str
    value: float
    sense: Literal["at most", "at least"] = "at most"
    limit: float | None = None
    form: str = ".2f"

    @property
    def is_met(self) -> bool:
        """Whether the number is on the right side."""
        if self.limit is None:
            return True
        return self.value <= self.limit if self.sense == "at most" else self.value >= self.limit

    def cells(self) -> list[str]:
        """What is compared, the number, the target, and the verdict."""
        sign = "≤" if self.sense == "at most" else "≥"
        target = "none" if self.limit is None else f"{sign} {self.limit:g}"
        verdict = "" if self.limit is None else "met" if self.is_met else "**missed**"
        return [self.what, f"{self.value:{self.form}}", target, verdict]


@dataclass(frozen=True)
class Benchmark:
    """A script with its page.

    Attributes:
        name: Of the script and of its file of numbers.
        page: The file in `docs`.
        measure: From the arguments of the command to the numbers.
        render: From a record to the page in Markdown, or to the part of it between its marks.
        headlines: From the numbers to what the table of all benchmarks says.
        is_part: Whether only the part of the page between the marks is its own.
    """

    name: str
    page: str
    measure: Callable[[argparse.Namespace], dict[str, Any]]
    render: Callable[[Record], str]
    headlines: Callable[[dict[str, Any]], list[Headline]]
    is_part: bool = False

    @property
    def script(self) -> str:
        """Its path from the root."""
        return f"benchmarks/{self.name}.py"


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments of a script, with the two that all scripts have."""
    parser.add_argument(
        "--write",
        nargs="?",
        type=Path,
        const=ROOT,
        metavar="FOLDER",
        help="write the numbers to benchmarks/results and the page to docs, or both to a folder",
    )
    parser.add_argument(
        "--render", action="store_true", help="measure nothing, read the numbers that are there"
    )
    arguments = parser.parse_args()
    if getattr(arguments, "quick", False) and arguments.write == ROOT:
        parser.error("--quick must not replace the published numbers: give --write a folder")
    return arguments


def publish(benchmark: Benchmark, arguments: argparse.Namespace) -> Record:
    """Measure, or read what was measured; print the page, and write it where that is asked for."""
    folder = arguments.write
    results, docs = (RESULTS, DOCS) if folder in (None, ROOT) else (folder, folder)
    file = results / f"{benchmark.name}.json"
    is_known = arguments.render
    record = read(file) if is_known else described(benchmark, benchmark.measure(arguments))
    progress("")
    text = benchmark.render(record)
    print(text)
    if folder is None:
        return record
    results.mkdir(parents=True, exist_ok=True)
    if not is_known:
        file.write_text(dumps(asdict(record)) + "\n", encoding="utf-8")
    page = docs / benchmark.page
    if benchmark.is_part:
        text = put_between(page.read_text(encoding="utf-8"), benchmark.name, text)
    page.write_text(text, encoding="utf-8")
    return record


def described(benchmark: Benchmark, numbers: dict[str, Any]) -> Record:
    """Numbers that were measured just now, with where and when."""
    words = [word for word in sys.argv[1:] if word != "--write"]
    return Record(
        " ".join(["python", benchmark.script, *words, "--write"]),
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit(),
        "",
        machine(),
        numbers,
    )


def progress(words: str) -> None:
    """Show how far the measurement is, where a terminal is attached."""
    if sys.stderr.isatty():
        print(f"\r{words:<70}", end="", file=sys.stderr)


def machine() -> str:
    """Processor, threads and versions."""
    threads = torch.get_num_threads()
    return (
        f"{platform.machine()}, {threads} thread{'s' if threads > 1 else ''}, "
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )


def peak_growth(function: Callable[[], Any]) -> float:
    """By how much a call of this function raises the peak of the resident memory, in MB.

    The kernel's high-water mark is set back before the call; that of `getrusage` cannot be, and a
    new process inherits it.
    """
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = _high_water()
    function()
    return _high_water() - before


def _high_water() -> float:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if "VmHWM" in line)
    return int(line.split()[1]) / 1024


def commit(folder: Path = ROOT) -> str:
    """The commit of the source, with a + if there are changes; nothing outside of a repository."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def read(file: Path) -> Record:
    """A record from its file."""
    if not file.exists():
        raise SystemExit(f"{file} is not there; run the script with --write and without --render")
    return Record(**json.loads(file.read_text(encoding="utf-8")))


def opening(record: Record, benchmark: str) -> str:
    """The sentence that every page begins with."""
    when = f"{record.date}, commit {record.commit}" if record.commit else record.date
    return (
        f"Written by `{record.command}` from `benchmarks/results/{benchmark}.json`"
        f" ({record.source or when})." + (f" {record.machine}." if record.machine else "")
    )


def dumps(value: Any, indent: str = "") -> str:
    """JSON in which what contains no further containers is one line."""
    children = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(isinstance(c, dict | list) for c in children):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = f"{indent} "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {dumps(child, inner)}" for key, child in value.items()]
    else:
        items = [dumps(child, inner) for child in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}{last}"


def put_between(page: str, name: str, text: str) -> str:
    """A page with another text between the marks of that name."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"the page needs {begin.strip()} and {end}, each once on a line")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{text}{end}{rest.partition(end)[2]}"
