"""Damage to one file of a run folder: the same result, or a refusal that changes nothing.

A checkpoint that is damaged may be passed over for the one before it: `--resume` then comes to the
same end, and `attack` says so. `report` may leave a damaged run out, and says so; `reproduce` runs
it again.
"""

import dataclasses
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from campaigns import reproductions, trainings
from campaigns.batches import Trial, in_batches
from campaigns.damage import DAMAGE
from campaigns.trainings import called, command
from campaigns.trials import Ended, Tally, words

__all__ = ["run"]

_NUM = {"short": 60, "full": 5400}
_BATCH = 100
_OS_REFUSES = ("a folder", "a link to nothing")
"""Damage that the operating system itself answers with an error, which is exit code 1."""


@dataclasses.dataclass(frozen=True)
class Victim:
    """A folder that is copied and hurt.

    Attributes:
        name: What it is.
        folder: Where it is.
        other: Another folder of the same kind, with other files.
        uses: What is done with it afterwards, by name: arguments of the command line.
        judge: Says what is wrong with how a use ended: (use, copy, ended, damage, file).
    """

    name: str
    folder: Path
    other: Path
    uses: Mapping[str, Callable[[Path], list[str]]]
    judge: Callable[[str, Path, Ended, str, str], str]


def run(tally: Tally, length: str, seed: int, scratch: Path) -> None:
    """Count the trials of this kind."""
    data = trainings.make_data(scratch)
    ways = ("plain", "disk store") if length == "short" else tuple(trainings.WAYS)
    victims = [
        victim
        for way in ways
        for victim in _trained(way, data, scratch / way.replace(" ", "-"), length)
    ]
    victims.append(_reproduced(scratch / "reproduction"))
    draw = random.Random(seed)
    trials = [_trial(draw, victims, scratch) for _ in range(_NUM[length])]
    in_batches(tally, trials, _BATCH)


def _trial(draw: random.Random, victims: Sequence[Victim], scratch: Path) -> Trial:
    victim = draw.choice(victims)
    file = draw.choice(
        sorted(
            str(path.relative_to(victim.folder))
            for path in victim.folder.rglob("*")
            if path.is_file() and path.suffix not in (".png", ".svg", ".html")
        )
    )
    damage, use, seed = draw.choice(list(DAMAGE)), draw.choice(list(victim.uses)), draw.random()
    name = f"{victim.name}: {file} {damage} (random.Random({seed!r})), then {use}"

    def act() -> str:
        copy = scratch / f"copy-{os.getpid()}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(victim.folder, copy)
        DAMAGE[damage](copy / file, victim.other / file, random.Random(seed))
        before = trainings.snapshot(copy)
        ended = called(victim.uses[use](copy))
        trouble = words(ended, needed=ended.code != 0)
        if ended.code == 0:
            trouble = trouble or victim.judge(use, copy, ended, damage, file)
        elif ended.code == 2 or (ended.code == 1 and damage in _OS_REFUSES):
            after = trainings.snapshot(copy)
            changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
            if changed and not trouble:
                trouble = f"refused ({ended.errors.strip()}), but {sorted(changed)} changed"
        else:
            trouble = trouble or f"exit code {ended.code}: {ended.errors[-300:]!a}"
        shutil.rmtree(copy)
        return trouble

    return Trial(name, act)


def _trained(way: str, data: Path, folder: Path, length: str) -> list[Victim]:
    """A finished run and an unfinished one."""
    folder.mkdir()
    whole, part, other = folder / "whole", folder / "part", folder / "other"
    line = trainings.arguments(way, data, whole)
    ended = command(line, whole).wait()
    expected = trainings.result_of(whole, ended)
    middle = int(ended.output.split()[-1]) * 2 // 3
    command(trainings.arguments(way, data, part), part, "kill", middle).wait()
    command([*trainings.arguments(way, data, other, max_calls=45), "--seed", "1"]).wait()
    uses = {
        "train --resume": lambda copy: [*trainings.arguments(way, data, copy), "--resume"],
        "attack": _attack,
    }
    victims = []
    for name, run in (("finished", whole), ("unfinished", part)):
        accuracies = _attack_results(run, folder / "older")

        def judge(
            use: str,
            copy: Path,
            ended: Ended,
            damage: str,
            file: str,
            accuracies: Sequence[str] = accuracies,
        ) -> str:
            if use == "attack":
                # A newest checkpoint that is gone leaves no trace; a damaged one is spoken of.
                silent = damage in ("deleted", "a link to nothing") or "is damaged" in ended.errors
                allowed = accuracies if silent else accuracies[:1]
                return "" if _shares(ended) in allowed else "other accuracies"
            found = trainings.result_of(copy, ended)
            return "" if found == expected else f"rows or weights are others ({found[:200]})"

        victims.append(Victim(f"{way}, {name}", run, other, uses, judge))
    return victims


def _attack(copy: Path) -> list[str]:
    return ["attack", str(copy), "--attack", "fgsm", "--json", "--quiet"]


def _attack_results(run: Path, older: Path) -> list[str]:
    """What `attack` finds with the newest checkpoint, and with the one before it."""
    results = [_shares(command(_attack(run)).wait())]
    shutil.copytree(run, older)
    max(older.glob("checkpoint-*.pt")).unlink()
    results.append(_shares(command(_attack(older)).wait()))
    shutil.rmtree(older)
    return results


def _shares(ended: Ended) -> str:
    facts = json.loads(ended.output)
    return json.dumps([facts["clean"], facts["attacked"], facts["num_samples"]])


def _reproduced(folder: Path) -> Victim:
    folder.mkdir()
    whole, other = folder / "whole", folder / "other"
    command(reproductions.arguments(whole)).wait(120)
    shutil.copytree(whole, other)
    for path in other.rglob("*.json*"):
        path.write_text(path.read_text(encoding="utf-8").replace("1", "2"), encoding="utf-8")
    expected = reproductions.claims_of(
        json.loads((whole / "claims.json").read_text(encoding="utf-8"))
    )
    rows = reproductions.rows_of(whole)

    def judge(use: str, copy: Path, ended: Ended, damage: str, file: str) -> str:
        facts = json.loads((copy / "claims.json").read_text(encoding="utf-8"))
        if use == "report" and any(found["missing"] for found in facts["experiments"].values()):
            return ""
        if reproductions.claims_of(facts) != expected:
            return "other claims"
        if use == "reproduce" and reproductions.rows_of(copy) != rows:
            return "other rows"
        return ""

    uses = {
        "report": lambda copy: ["report", str(copy), "--json"],
        "reproduce": reproductions.arguments,
    }
    return Victim("reproduction", whole, other, uses, judge)
