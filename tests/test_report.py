"""The report: message first, escaped by construction, searched and printed in a real browser."""

import dataclasses
import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from browser import MISSING, Browser
from neada import experiments, report
from neada.experiments import SCALE_WORDS, SCALES, Claim, last_request, reproduce
from neada.report import Section
from neada.report.content import RunLine, collect
from neada.report.markup import element, raw_element
from neada.runs import RunFolder, write_json

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="720" height="300"><rect width="9"/></svg>'
PAYLOADS = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "' onmouseover='alert(1)",
    "</style></title></textarea><svg onload=alert(1)>",
    "javascript:alert(1)",
    "<!-- ]]> &lt;b&gt;",
)
REQUEST: dict[str, Any] = {"names": [], "scale": "quick", "seeds": 3, "max_calls": None}


def section(folder: Path, name: str, **fields: Any) -> Section:
    """A section with three claims that hold, one that fails and one that was not run."""
    figure = folder / f"{name}.svg"
    figure.write_text(SVG)
    numbers = {"warm": 0.5, "even": 1.0, "level": 0.0, "steep": 3.0, "missing": None}
    claims = [
        Claim(
            f"{name}/{word}", f"the {word} number of it", "Figure 9", number, "<=", 1.0, 4, "seen"
        )
        for word, number in numbers.items()
    ]
    run = RunLine("run 1", folder / name / "runs" / "run-1", 1.25, {"lr": 0.1, "long": "x" * 300})
    usual: dict[str, Any] = {
        "name": name,
        "title": f"The title of {name}",
        "where": "Figure 9",
        "paper": "The paper says so.",
        "about": "First paragraph.\n\nSecond paragraph.",
        "claims": claims,
        "reasons": {"*/steep": "it is steep"},
        "figure": figure,
        "thumbnail": b"not looked at",
        "runs": [run],
        "missing": [("run 2", "result.json is missing")],
        "environment": {
            **{"python": "3.99", "system": "Plan 9", "cores": 2, "threads": 1},
            "packages": {"torch": "9.9"},
        },
    }
    return Section(**{**usual, **fields})


class Shape(HTMLParser):
    """The elements of a page with the names of their attributes, its links, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: Counter[tuple[str, ...]] = Counter()
        self.links: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[(tag, *sorted(name for name, _ in attrs))] += 1
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def test_text_and_attributes_are_escaped_and_names_are_checked() -> None:
    for payload in PAYLOADS:
        made = element("p", payload, element("b", payload), title=payload)
        shape = Shape(made)
        assert shape.elements == {("p", "title"): 1, ("b",): 1}
        assert shape.text == 2 * payload
    for bad in ("p onclick", "p>", "P", ""):
        with pytest.raises(ValueError, match="no name"):
            element(bad)
    with pytest.raises(ValueError, match="no name"):
        element("p", **{"x onload": "1"})
    with pytest.raises(ValueError, match="may not hold"):
        raw_element("style", "</style><script>")


@pytest.mark.parametrize("payload", PAYLOADS)
def test_markup_in_any_field_of_any_section_stays_text(payload: str, tmp_path: Path) -> None:
    clean = section(tmp_path, "toy")
    (run,) = clean.runs
    dirty = dataclasses.replace(
        clean,
        **dict.fromkeys(("name", "title", "where", "paper"), payload),
        about=f"{payload}\n\n{payload}",
        claims=[
            dataclasses.replace(
                c, id=f"{payload}{i}", sentence=payload, where=payload, note=payload
            )
            for i, c in enumerate(clean.claims)
        ],
        reasons={"*": payload},
        runs=[dataclasses.replace(run, label=payload, config={payload: payload})],
        missing=[(payload, payload)],
        environment={
            **dict.fromkeys(("python", "system", "cores", "threads"), payload),
            "packages": {payload: payload},
        },
    )
    shapes = [Shape(report.page(tmp_path, REQUEST, [content])) for content in (clean, dirty)]
    assert shapes[0].elements == shapes[1].elements
    assert payload in shapes[1].text
    assert all(link.startswith(("#", "data:image/", "toy/")) for link in shapes[1].links)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one run of the errata is finished."""
    from neada.experiments import runner

    out = tmp_path_factory.mktemp("errata")
    (config,) = [c for c in experiments.configs("errata", "quick") if c.label == "gda-step"]
    runner._execute_here([runner.Task("errata", config)], out, 1, lambda part, name: None)
    write_json(out / "reproduction.json", {**REQUEST, "names": ["errata"], "seeds": None})
    return out


def leaves(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value, containers included."""
    yield path
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from leaves(content[key], (*path, key))


def replaced(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = replaced(content[path[0]], path[1:], value)
    return copy


def in_fields(content: Any, value: Any) -> Iterator[Any]:
    """The content with another value at every place, or with another key."""
    for path in leaves(content):
        yield replaced(content, path, value)
        if path and isinstance(path[-1], str):
            parent = content
            for key in path[:-1]:
                parent = parent[key]
            renamed = {(value if k == path[-1] else k): v for k, v in parent.items()}
            yield replaced(content, path[:-1], renamed)


def copied(folder: Path, to: Path) -> Path:
    """A copy in which files can be changed."""
    return Path(shutil.copytree(folder, to, dirs_exist_ok=True))


def seal(folder: Path, content: Any = MappingProxyType({"seconds": 1.0})) -> None:
    """Make a run fit its files again, as somebody would who means harm."""
    checksum = hashlib.sha256((folder / "metrics.jsonl").read_bytes()).hexdigest()
    write_json(folder / "result.json", {**content, "metrics_sha256": checksum})


@pytest.mark.parametrize(
    "name", ["reproduction.json", "config.json", "environment.json", "result.json", "metrics.jsonl"]
)
def test_markup_in_any_field_of_any_file_stays_text_or_is_refused(
    name: str, finished: Path, tmp_path: Path
) -> None:
    out = copied(finished, tmp_path)
    clean = Shape(report.page(out, *collect(out, draw=False)))
    (path,) = out.rglob(name)
    original = path.read_bytes()
    lines = [json.loads(line) for line in original.splitlines()] if name[-1] == "l" else None
    seen = 0
    for payload in PAYLOADS:
        variants = in_fields(lines[:3] if lines else json.loads(original), payload)
        for content in variants:
            if lines is None:
                write_json(path, content)
            else:
                rows = [*content, *lines[3:]] if isinstance(content, list) else [content]
                path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            if name in ("environment.json", "metrics.jsonl"):
                seal(path.parent)
            try:
                page = report.page(out, *collect(out, draw=False))
            except ValueError as error:
                assert len(str(error)) < 1000, error
                continue
            shape = Shape(page)
            assert shape.elements.keys() <= clean.elements.keys()
            assert all(link.startswith(("#", "errata/")) for link in shape.links)
            seen += payload in shape.text
    assert seen > 0 or name != "environment.json"  # its words are shown


def test_the_report_is_one_file_with_the_message_first(finished: Path, tmp_path: Path) -> None:
    out = copied(finished, tmp_path)
    _, (found,) = report.write(out)
    page = (out / "report.html").read_text()
    assert not re.findall(r"https?://(?!www\.w3\.org)", page)
    message = report.summary(found.claims)
    order = [f">{message}.<", SCALE_WORDS["quick"], 'class="cards"', 'id="filter"', 'id="errata"']
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    assert page.count("data:image/svg+xml;base64,") == page.count("data:image/png;base64,") == 1
    assert len(found.missing) == len(experiments.configs("errata", "quick")) - 1
    (line,) = found.runs
    link = (line.folder / "metrics.jsonl").relative_to(out).as_posix()
    assert f'href="{link}"' in page and (out / link).is_file()


def test_a_claim_that_fails_stands_at_the_top_with_numbers_and_reason(tmp_path: Path) -> None:
    known, unknown = section(tmp_path, "toy"), section(tmp_path, "game", reasons={})
    page = report.page(tmp_path, REQUEST, [known, unknown])
    top = page[page.index('id="failing"') : page.index('id="experiments"')]
    text = Shape(top).text
    assert "The 2 claims that fail" in text
    for words in ("toy/steep", "<= 1", "seen", "What is known: it is steep", "Why is not known"):
        assert words in text
    assert "warm" not in text and "missing" not in text
    assert 'id="failing"' not in report.page(
        tmp_path, REQUEST, [dataclasses.replace(known, claims=known.claims[:2])]
    )


def test_every_scale_is_explained() -> None:
    assert tuple(SCALE_WORDS) == SCALES


def test_a_folder_without_a_reproduction_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no reproduction"):
        report.write(tmp_path)


GOOD: dict[str, Any] = {"names": ["errata"], "scale": "quick", "seeds": None, "max_calls": None}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "Expecting"),
        ([], "no object"),
        (7, "no object"),
        ({}, "names must be a list"),
        ({**GOOD, "names": "errata"}, "names must be a list"),
        ({**GOOD, "names": [["errata"]]}, "names must be a list"),
        ({**GOOD, "names": [{}]}, "names must be a list"),
        ({**GOOD, "names": ["nothing"]}, "experiment must be one of"),
        ({**GOOD, "names": ["errata", "errata"]}, "twice"),
        ({**GOOD, "scale": "huge"}, "scale must be one of"),
        ({**GOOD, "scale": ["quick"]}, "scale must be one of"),
        ({**GOOD, "scale": None}, "scale must be one of"),
        ({"names": ["errata"]}, "scale must be one of"),
        ({**GOOD, "seeds": "<script>"}, "seeds must be a whole number"),
        ({**GOOD, "seeds": [3]}, "seeds must be a whole number"),
        ({**GOOD, "seeds": -1}, "seeds must be a whole number"),
        ({**GOOD, "seeds": True}, "seeds must be a whole number"),
        ({**GOOD, "seeds": 1.5}, "seeds must be a whole number"),
        ({**GOOD, "seeds": 10**9}, "seeds must be a whole number"),
        ({**GOOD, "seeds": 10**400}, "seeds must be a whole number|digits"),
        ({**GOOD, "max_calls": "nan"}, "max_calls must be a whole number"),
        ({**GOOD, "max_calls": 100}, "max_calls can be chosen for"),
        ({**GOOD, "names": ["x" * 10_000]}, "experiment must be one of"),
    ],
    ids=lambda content: str(content)[:40],
)
def test_an_odd_note_of_what_was_asked_is_one_sentence(
    content: Any, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "reproduction.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    for use in (last_request, report.write, lambda out: reproduce(["errata"], "quick", out)):
        with pytest.raises(ValueError, match=words) as caught:
            use(tmp_path)
        assert str(path) in str(caught.value) and "remove it" in str(caught.value)
        assert len(str(caught.value)) < 600
    assert not (tmp_path / "errata").exists() and not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", {"seconds": "long"}),
        ("result.json", {"seconds": [1]}),
        ("result.json", {"seconds": -1.0}),
        ("result.json", {"seconds": "nan"}),
        ("result.json", {}),
        ("environment.json", []),
        ("environment.json", {}),
        ("environment.json", {"packages": ["torch"]}),
        ("environment.json", None),
    ],
)
def test_a_run_with_odd_files_counts_as_missing_with_its_reason(
    name: str, content: Any, finished: Path, tmp_path: Path
) -> None:
    out = copied(finished, tmp_path)
    (path,) = out.rglob(name)
    if content is None:
        path.unlink()
    elif name == "result.json":
        seal(path.parent, content)
    else:
        write_json(path, content)
        seal(path.parent)
    _, (found,) = collect(out, draw=False)
    assert not found.runs
    assert name in dict(found.missing)["gda-step"]
    assert {claim.verdict for claim in found.claims} == {"not run"}


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize("name", experiments.names())
@pytest.mark.parametrize("rows", [[], [{}], [{"outer_steps": 1, "grad_sq": [1.0, 2.0], "t": 1}]])
def test_odd_rows_with_right_checksums_are_a_claim_that_was_not_run_or_one_sentence(
    name: str, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    for config in experiments.configs(name, "quick"):
        run = RunFolder(experiments.run_folder(tmp_path, name, config))
        run.start(dataclasses.asdict(config))
        run.append(rows)
        run.finish()
    write_json(tmp_path / "reproduction.json", {**REQUEST, "names": [name], "seeds": None})
    try:
        _, (found,) = collect(tmp_path, draw=False)
    except ValueError as error:
        assert f"are not what {name} writes" in str(error)
    else:
        assert len(found.runs) == len(experiments.configs(name, "quick"))


def test_a_search_that_finds_no_row_is_one_sentence(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = experiments.make("errata")
    monkeypatch.setattr(module, "claims", lambda records: [next(row for row in ())])
    with pytest.raises(ValueError, match="are not what errata writes"):
        collect(finished, draw=False)


needs_browser = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    """A report of two experiments, open in a window of usual size."""
    sections = [section(tmp_path, name) for name in ("toy", "game")]
    path = tmp_path / "report.html"
    path.write_text(report.page(tmp_path, REQUEST, sections))
    browser.resize(1400, 900)
    browser.emulate()
    browser.navigate(path.as_uri())
    yield browser
    assert browser.console == []
    assert browser.requests == []


def visible(browser: Browser) -> list[str]:
    """The claims that can be seen in the sections."""
    found: list[str] = browser.evaluate(
        "[...document.querySelectorAll('tr[data-verdict]')]"
        ".filter((row) => row.checkVisibility({contentVisibilityAuto: true})).map((row) => row.id)"
    )
    return found


def choose(browser: Browser, field: str, value: str) -> None:
    browser.evaluate(
        f"(() => {{ const f = document.getElementById('filter').elements['{field}'];"
        f"f.value = '{value}'; f.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
    )


def status(browser: Browser) -> str:
    return str(browser.evaluate("document.getElementById('shown').textContent"))


@needs_browser
def test_the_first_screen_shows_the_message(opened: Browser) -> None:
    assert opened.evaluate("document.querySelector('.message').textContent") == (
        "6 of 10 claims hold, 2 fail, 2 not run."
    )
    for selector in (".message", "#failing tbody tr"):
        bottom = opened.evaluate(
            f"document.querySelector('{selector}').getBoundingClientRect().bottom"
        )
        assert bottom < 900


@needs_browser
def test_failing_claims_are_open_and_the_others_folded(opened: Browser) -> None:
    assert visible(opened) == ["toy/steep", "game/steep"]
    opened.evaluate("document.querySelector('#toy details.claims:not([open]) summary').click()")
    assert visible(opened) == ["toy/steep", "toy/missing", "game/steep"]
    opened.evaluate("document.querySelector('#toy details.claims[open] summary').click()")
    assert visible(opened) == ["toy/missing", "game/steep"]


@needs_browser
def test_the_filter_finds_by_verdict_experiment_and_words(opened: Browser) -> None:
    choose(opened, "verdict", "holds")
    names = ("warm", "even", "level")
    assert visible(opened) == [f"{part}/{name}" for part in ("toy", "game") for name in names]
    choose(opened, "experiment", "game")
    assert visible(opened) == ["game/warm", "game/even", "game/level"]
    assert status(opened) == "3 of 10 claims shown, in 1 of 2 experiments"
    choose(opened, "words", "NUMBER even")
    assert visible(opened) == ["game/even"]
    choose(opened, "words", "nowhere")
    assert visible(opened) == []
    assert status(opened) == "0 of 10 claims shown, in 0 of 2 experiments"
    assert not opened.evaluate("document.getElementById('game').checkVisibility()")
    assert opened.evaluate(
        "(() => { const s = document.getElementById('shown');"
        "return [s.getAttribute('role'), s.getAttribute('aria-live')]; })()"
    ) == ["status", "polite"]


@needs_browser
def test_the_filter_is_used_and_cleared_by_keyboard(opened: Browser) -> None:
    def focused() -> str:
        return str(opened.evaluate("document.activeElement.name || document.activeElement.tagName"))

    for _ in range(20):
        opened.press("Tab")
        if focused() == "words":
            break
    opened.type("even")
    assert visible(opened) == ["toy/even", "game/even"]
    opened.press("Enter")
    assert visible(opened) == ["toy/even", "game/even"]
    opened.press("Tab")
    assert focused() == "verdict"
    opened.press("ArrowDown")
    assert visible(opened) == []
    opened.press("Tab")
    opened.press("Tab")
    assert focused() == "BUTTON"
    opened.press("Enter")
    opened.evaluate("new Promise((done) => setTimeout(done, 20))")
    assert visible(opened) == ["toy/steep", "game/steep"]  # what the search unfolded is folded
    opened.press("Tab")
    assert focused() == "SUMMARY"
    opened.press("Enter")
    assert visible(opened) == ["game/steep"]


@needs_browser
def test_a_link_to_a_claim_that_is_filtered_out_shows_it(opened: Browser) -> None:
    choose(opened, "experiment", "game")
    opened.evaluate("document.querySelector('#failing a[href=\"#toy/steep\"]').click()")
    opened.evaluate("new Promise((done) => setTimeout(done, 50))")
    assert visible(opened) == ["toy/steep", "game/steep"]


@needs_browser
def test_without_a_script_the_page_is_complete(opened: Browser, tmp_path: Path) -> None:
    path = tmp_path / "plain.html"
    page = (tmp_path / "report.html").read_text()
    path.write_text(re.sub("<script>.*</script>", "", page, flags=re.DOTALL))
    opened.navigate(path.as_uri())
    assert not opened.evaluate("document.getElementById('filter').checkVisibility()")
    opened.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert len(visible(opened)) == 10


@needs_browser
def test_nothing_is_wider_than_a_telephone(opened: Browser) -> None:
    opened.resize(390, 844)
    opened.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert opened.evaluate("innerWidth") == 390
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390


@needs_browser
def test_colors_follow_the_system(opened: Browser) -> None:
    def lightness() -> list[int]:
        colors = opened.evaluate(
            "(() => { const s = getComputedStyle(document.body);"
            "return [s.backgroundColor, s.color]; })()"
        )
        return [sum(map(int, re.findall(r"\d+", color)[:3])) for color in colors]

    opened.emulate(prefers_color_scheme="light")
    paper, ink = lightness()
    assert paper > 600 and ink < 200
    opened.emulate(prefers_color_scheme="dark")
    paper, ink = lightness()
    assert paper < 200 and ink > 600


@needs_browser
def test_the_printed_page_shows_every_claim_and_no_search(opened: Browser, tmp_path: Path) -> None:
    opened.emulate("print", prefers_color_scheme="dark")
    assert len(visible(opened)) == 10
    for hidden in ("#filter", "#shown", ".settings"):
        assert not opened.evaluate(f"document.querySelector('{hidden}').checkVisibility()")
    assert (
        opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    opened.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


@needs_browser
def test_a_script_or_a_picture_that_got_in_would_be_stopped(opened: Browser) -> None:
    opened.evaluate(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.hit = 1';"
        "document.body.append(s); const i = document.createElement('img');"
        "i.src = 'file:///nowhere.png'; i.setAttribute('onerror', 'window.hit = 1');"
        "document.body.append(i); return new Promise((done) => setTimeout(done, 100)); })()"
    )
    assert opened.evaluate("window.hit === undefined")
    assert len(opened.console) >= 2 and all("Content Security" in c for c in opened.console)
    opened.console.clear()
    opened.requests.clear()
