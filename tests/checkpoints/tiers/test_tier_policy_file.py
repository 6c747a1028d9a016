"""The policy file: what it means, and that every mistake in it is one sentence that says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_entry.checkpoints.tiers.policy import DAY, FOREVER, PolicyError
from trainer_entry.checkpoints.tiers.policy_file import parse_policy, policy_from, read_policy

RECIPIENT = "age1cr3qdw7tfyjte0zxc8kwedg9k3nskf53skuh3a2tsfd93xfsmyts007tkd"


def test_the_defaults_are_those_of_the_manual() -> None:
    policy = parse_policy(
        f"""
        snapshot: {{place: /a}}
        milestone: {{place: "s3://bucket/b"}}
        archive: {{place: "s3://bucket/c", recipients: {RECIPIENT}}}
        """.encode(),
        "policy.yml",
    )
    snapshot, milestone, archive = policy.tiers
    assert (snapshot.every_steps, snapshot.retention.seconds) == (100, 7 * DAY)
    assert milestone.loss is not None
    assert (milestone.loss.falls_by, milestone.retention.seconds) == (0.05, 90 * DAY)
    assert (archive.retention.seconds, archive.recipients) == (FOREVER, (RECIPIENT,))


def test_the_example_that_ships_is_a_policy() -> None:
    path = Path(__file__).parents[3] / "compose" / "checkpoints.yml"
    assert [tier.tier for tier in read_policy(path).tiers] == ["snapshot", "milestone", "archive"]


def test_no_policy_is_no_tiers() -> None:
    assert policy_from({}) is None
    assert policy_from({"VERL_SENTINEL_CHECKPOINTS": " "}) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("snapshot: {place: /a}\nsnapshot: {place: /b}", "policy.yml, line 2: snapshot is given twice"),
        ("snapshot:\n  place: /a\n  evry_steps: 5", "line 3: snapshot.evry_steps: there is no such setting"),
        ("snapshot:\n  place: /a\n  every_steps: 0", "line 3: snapshot.every_steps: expected a whole number from 1"),
        ("snapshot:\n  place: /a\n  every_steps: yes", "expected a whole number from 1, not True"),
        ("snapshot:\n  place: a/b", "line 2: snapshot.place: 'a/b' is relative"),
        ("snapshot:\n  place: s3://bucket/x", "a snapshot lies in one local folder"),
        ("milestone: {keep_for: 90d}", "line 1: milestone: it needs a place"),
        ("milestone:\n  place: /a\n  keep_for: 90", "line 3: milestone.keep_for: expected a time such as 7d"),
        ("milestone:\n  place: s3://key:secret@bucket/x", "credentials come from the environment"),
        ("milestone:\n  place: {url: 's3://b/x', options: {secret: x}}", "credentials come from the environment"),
        ("milestone:\n  place: {url: 's3://b/x', options: {client_kwargs: {aws_secret_access_key: x}}}", "credentials"),
        ("milestone:\n  place: s3:///x", "names no bucket"),
        ("milestone: {place: /a, second_place: /a/}", "is given twice"),
        ("snapshot: {place: /a}\nmilestone: {place: 'file:///a/'}", "line 2: milestone: the place file:///a/ is given"),
        ("milestone:\n  place: /a\n  kl: {metric: k, from: 2, to: 1}", "line 3: milestone.kl: from 2 is not below"),
        ("milestone:\n  place: /a\n  kl: {metric: k, from: .nan, to: 1}", "milestone.kl"),
        ("milestone:\n  place: /a\n  loss: {falls_by: 5}", "expected a share such as 5%"),
        ("archive: {place: /a}", "archive.recipients: expected one or more age recipients"),
        ("archive:\n  place: /a\n  recipients: [AGE-SECRET-KEY-1X]", "it is a secret identity"),
        ("archive:\n  place: /a\n  recipients: [bob]", "line 3: archive.recipients[0]: expected an age recipient"),
        ("limits: {bytes_per_second: fast}", "expected a size such as 200MB"),
        ("- a\n- b", "expected a section"),
        ("a: [", "line 1 is no YAML"),
        ("a: !!python/object:os.system {}", "there is no such setting"),
    ],
)
def test_a_mistake_is_one_sentence_that_says_where(text: str, said: str) -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy(text.encode(), "policy.yml")
    assert said in str(raised.value)
    assert "policy.yml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy(b"milestone:\n  place: s3://key:hunter2@bucket/x", "policy.yml")
    assert "hunter2" not in str(raised.value)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        read_policy(tmp_path / "none.yml")
