"""Claims: one owner at a time, taken over from dead or silent workers, and a fence for workers that wake up."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from rl_training.errors import ClaimLost, ConfigError
from rl_training.experiment import files
from rl_training.study import claims
from rl_training.study.claims import Claim, DiskClock, Owner, read_claim, take
from tests.reliability.processes import Child, wait_for

GROUP = "g00000"
LONG = 3600.0


def claim(study: Path, timeout: float = LONG, progress: int = 0) -> Claim | None:
    return take(study, GROUP, Owner.me(), timeout, progress=progress)


def claimed(study: Path, timeout: float = LONG, progress: int = 0) -> Claim:
    found = claim(study, timeout, progress)
    assert found is not None
    return found


def forge(study: Path, owner: Owner | None = None, age: float = 0.0, **fields: object) -> None:
    """Write a first claim of another worker, last touched `age` seconds ago."""
    path = study / "claims" / GROUP / "1.json"
    path.parent.mkdir(parents=True)
    record = {"owner": asdict(owner or STRANGER), "released": False, "deaths": 0, "progress": 0, **fields}
    path.write_bytes(files.encode_json(record))
    then = time.time() - age
    os.utime(path, (then, then))


STRANGER = Owner("elsewhere", "elsewhere 1", 1, "1", "token")


def test_a_group_has_one_owner_until_it_is_released(tmp_path: Path) -> None:
    with claimed(tmp_path) as mine:
        assert claim(tmp_path) is None
        mine.check()
    again = claimed(tmp_path)
    with pytest.raises(ClaimLost, match="was given to another worker"):
        mine.check()
    again.check()
    again.release()
    record = read_claim(tmp_path, GROUP)
    assert record is not None
    assert (record.generation, record.released, record.deaths) == (2, True, 0)


def test_another_machines_claim_is_respected_until_it_is_silent(tmp_path: Path) -> None:
    forge(tmp_path, age=50.0)
    assert claim(tmp_path, timeout=60.0) is None
    with claimed(tmp_path, timeout=40.0) as mine:
        assert mine.record.generation == 2


def test_a_dead_process_of_this_machine_loses_its_claim_at_once(tmp_path: Path) -> None:
    child = Child(lambda: (claimed(tmp_path), time.sleep(60)), tmp_path / "output")
    wait_for(lambda: read_claim(tmp_path, GROUP) and read_claim(tmp_path, GROUP).owner)  # type: ignore[union-attr]
    assert claim(tmp_path) is None
    child.send(signal.SIGKILL)
    child.wait()
    claimed(tmp_path).release()


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    child = Child(lambda: claimed(tmp_path), tmp_path / "output")
    wait_for(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    claimed(tmp_path).release()
    child.wait()


def test_a_later_process_of_the_same_number_is_another(tmp_path: Path) -> None:
    me = Owner.me()
    forge(tmp_path, Owner(me.host, me.machine, me.pid, "12345", "token"))
    claimed(tmp_path).release()


def test_an_empty_or_damaged_claim_counts_until_it_is_old(tmp_path: Path) -> None:
    forge(tmp_path)
    place = tmp_path / "claims" / GROUP / "1.json"
    for text in ("", "{", '{"owner": {"host": 1}}'):
        place.write_text(text)
        assert claim(tmp_path) is None
    os.utime(place, (0, 0))
    claimed(tmp_path).release()


def test_a_heartbeat_keeps_a_claim(tmp_path: Path) -> None:
    with claimed(tmp_path, timeout=0.6):
        place = tmp_path / "claims" / GROUP / "1.json"
        os.utime(place, (0, 0))
        wait_for(lambda: place.stat().st_mtime > 0)


def test_of_many_that_take_over_one_wins(tmp_path: Path) -> None:
    forge(tmp_path, age=LONG)
    start = tmp_path / "start"

    def compete() -> None:
        wait_for(start.exists)
        if claim(tmp_path, timeout=60.0) is not None:
            print("won", flush=True)
            time.sleep(0.5)
            os._exit(0)  # without releasing

    children = [Child(compete, tmp_path / f"output-{i}") for i in range(8)]
    start.touch()
    for child in children:
        child.wait()
    # In the end the winner is a dead process of this machine; while it lived, no other process had the claim.
    assert sum("won" in child.text() for child in children) == 1
    assert sorted(path.name for path in (tmp_path / "claims" / GROUP).iterdir()) == ["1.json", "2.json"]


def test_deaths_count_while_nothing_is_gained(tmp_path: Path) -> None:
    forge(tmp_path, age=LONG, deaths=2, progress=7)
    with claimed(tmp_path, timeout=1.0, progress=7) as mine:
        assert mine.record.deaths == 3


def test_deaths_are_forgotten_when_something_is_gained(tmp_path: Path) -> None:
    forge(tmp_path, age=LONG, deaths=2, progress=7)
    with claimed(tmp_path, timeout=1.0, progress=8) as mine:
        assert mine.record.deaths == 0


def test_a_claim_that_does_not_move_is_taken_over_whatever_its_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(tmp_path, age=-365 * 86_400.0)
    clock, seconds = DiskClock(tmp_path), [0.0]
    now = time.monotonic()
    monkeypatch.setattr(claims.time, "monotonic", lambda: now + seconds[0])
    assert take(tmp_path, GROUP, Owner.me(), 60.0, clock=clock) is None
    seconds[0] = 50.0
    place = tmp_path / "claims" / GROUP / "1.json"
    os.utime(place, (place.stat().st_mtime + 1,) * 2)  # a sign of life
    assert take(tmp_path, GROUP, Owner.me(), 60.0, clock=clock) is None
    seconds[0] = 105.0
    assert take(tmp_path, GROUP, Owner.me(), 60.0, clock=clock) is None
    seconds[0] = 111.0
    found = take(tmp_path, GROUP, Owner.me(), 60.0, clock=clock)
    assert found is not None
    found.release()


def test_only_deaths_while_the_kernel_was_out_of_memory_count_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = Owner.me()
    gone = Owner(me.host, me.machine, me.pid, "12345", "token")
    monkeypatch.setattr(claims, "out_of_memory_kills", lambda: 3)
    forge(tmp_path, gone, deaths=2, by_memory=1, kills=3)
    mine = claimed(tmp_path)
    assert (mine.record.deaths, mine.record.by_memory, mine.record.kills) == (3, 1, 3)
    mine.release()
    place = tmp_path / "claims" / GROUP / "2.json"
    record = files.decode_json(place.read_bytes())
    place.write_bytes(files.encode_json(record | {"released": False, "owner": asdict(gone)}))
    monkeypatch.setattr(claims, "out_of_memory_kills", lambda: 4)
    with claimed(tmp_path) as again:
        assert (again.record.deaths, again.record.by_memory, again.record.kills) == (4, 2, 4)


@pytest.mark.parametrize("linked", ["claims", f"claims/{GROUP}"])
def test_nothing_is_claimed_through_a_link(tmp_path: Path, linked: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    place = tmp_path / "study" / linked
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="a link, in which nothing is claimed"):
        claim(tmp_path / "study")
    assert list((tmp_path / "elsewhere").iterdir()) == []
