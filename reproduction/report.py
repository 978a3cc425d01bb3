"""The report of a folder: the page `report.html`, a table for the terminal, and `claims.json`."""

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from neada.runs import RunFolder, atomic_write, write_json
from reproduction import experiment as experiments
from reproduction import figures
from reproduction.experiment import RESULTS, SCALE_WORDS, SUBJECTS, Claim, Record
from reproduction.runner import last_request

Tally = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Run:
    """A finished run."""

    record: Record
    folder: Path
    seconds: float
    environment: dict[str, Any]

    @property
    def settings(self) -> str:
        """Its config as JSON."""
        return json.dumps(asdict(self.record.config))


@dataclass(frozen=True)
class Section:
    """One experiment of a report.

    Attributes:
        name: Its name on the command line.
        experiment: Its module.
        runs: The finished runs.
        missing: Labels of the other runs, each with the reason.
        claims: What was checked.
        figure: The SVG file; None if there is no figure.
    """

    name: str
    experiment: Any
    runs: Sequence[Run]
    missing: Sequence[tuple[str, str]]
    claims: Sequence[Claim]
    figure: Path | None

    def known(self, claim: Claim) -> str:
        """What is known about a claim that is not supported; empty if nothing is."""
        reasons = getattr(self.experiment, "KNOWN", {})
        return next(
            (str(words) for key, words in reasons.items() if fnmatchcase(claim.id, key)), ""
        )


def write(out: Path) -> list[Section]:
    """Check and draw all runs of a folder, and write `report.html` and `claims.json`.

    Raises:
        ValueError: The folder is not one of `python -m reproduction`, or its metrics are damaged.
    """
    request, sections = collect(out)
    with atomic_write(out / "report.html") as file:
        file.write(page(out, request, sections).encode())
    write_json(out / "claims.json", as_data(request, sections))
    return sections


def collect(out: Path) -> tuple[dict[str, Any], list[Section]]:
    """Return the arguments of a reproduction and one section per experiment; draws the figures.

    Raises:
        ValueError: The folder is not one of `python -m reproduction`, or its metrics are damaged.
    """
    request = last_request(out)
    if request is None:
        raise ValueError(
            f"{out} holds no reproduction: use a folder of `python -m reproduction --out`"
        )
    settings = {key: request[key] for key in ("scale", "seeds", "max_calls")}
    return request, [_section(out, name, settings) for name in request["names"]]


def _section(out: Path, name: str, settings: dict[str, Any]) -> Section:
    experiment = experiments.make(name)
    runs: list[Run] = []
    missing = []
    for config in experiments.configs(name, **settings):
        run = RunFolder(experiments.run_folder(out, name, config))
        try:
            record = experiments.read_record(run, config)
            runs.append(Run(record, run.path, run.result()["seconds"], run.environment()))
        except (OSError, ValueError) as error:
            missing.append((config.label, str(error)))
    records = [run.record for run in runs]
    claims = experiment.claims(records) if not missing else []
    drawn = experiment.figure(records) if not missing else None
    figure = None if drawn is None else figures.save(drawn, out / name)[1]
    return Section(name, experiment, runs, missing, claims, figure)


def tally(claims: Iterable[Claim]) -> Tally:
    """Count the results of claims of the paper, corrections and claims about this library.

    Example:
        >>> tally([Claim("a", "", "Figure 1", 1.0, "<", 2.0)])
        {'paper': {'supported': 1, 'not supported': 0, 'not tested': 0}}
    """
    counts: Tally = {subject: dict.fromkeys(RESULTS, 0) for subject in SUBJECTS}
    for claim in claims:
        counts[claim.subject][claim.result] += 1
    return {subject: count for subject, count in counts.items() if any(count.values())}


def _claims(sections: Sequence[Section]) -> list[Claim]:
    return [claim for section in sections for claim in section.claims]


def _measured(claim: Claim) -> str:
    return "-" if claim.measured is None else f"{claim.measured:.4g}"


def result_table(sections: Sequence[Section]) -> str:
    """One line per claim (result, name, measured and expected number), then the tallies."""
    claims = _claims(sections)
    width = min(46, max((len(claim.id) for claim in claims), default=10))
    lines = [f"{'result':13} {'claim':{width}} {'measured':>10}  expected"]
    lines += [
        f"{claim.result:13} {claim.id:{width}} {_measured(claim):>10}  {claim.expectation}"
        for claim in claims
    ]
    lines += ["", f"{'':26}" + "".join(f"{result:>15}" for result in RESULTS)]
    for subject, counts in tally(claims).items():
        row = "".join(f"{number:15}" for number in counts.values())
        lines.append(f"{SUBJECTS[subject]:26}{row}")  # type: ignore[index]
    return "\n".join(lines)


def as_data(request: dict[str, Any], sections: Sequence[Section]) -> dict[str, Any]:
    """The content of `claims.json`."""
    return {
        **{key: request[key] for key in ("scale", "seeds", "max_calls")},
        "tally": tally(_claims(sections)),
        "experiments": {
            section.name: {
                "claims": [
                    {**asdict(claim), "subject": claim.subject, "result": claim.result}
                    for claim in section.claims
                ],
                "num_runs": len(section.runs),
                "missing": [label for label, _ in section.missing],
                "seconds": round(sum(run.seconds for run in section.runs), 3),
            }
            for section in sections
        },
    }


def page(out: Path, request: dict[str, Any], sections: Sequence[Section]) -> str:
    """The report as one HTML page; raw files are linked relative to the folder."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["measured"] = _measured
    environment.filters["picture"] = lambda path: base64.b64encode(path.read_bytes()).decode()
    return environment.get_template("report.html").render(
        out=out,
        request=request,
        scale_words=SCALE_WORDS[request["scale"]],
        sections=sections,
        tally=tally(_claims(sections)),
        subjects=SUBJECTS,
        results=RESULTS,
    )
