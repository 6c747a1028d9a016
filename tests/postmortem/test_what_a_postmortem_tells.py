"""The text of a post-mortem: what it tells, what it says of what is not known, and what a hostile name does to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace
from postmortem_scene import HOSTILE, START, TIMES, material, recovery, steps

from exporter.postmortem import writing
from exporter.postmortem.markdown import code, sentence, table
from exporter.postmortem.material import Material, MaterialUnreadable, chain_of, decode, encode
from exporter.postmortem.moments import losses, summary, timeline
from exporter.postmortem.picture import draw
from exporter.postmortem.plots import plot_of
from exporter.postmortem.questions import next_steps, open_questions
from exporter.postmortem.text import document
from exporter.recovery.facts import Candidate
from exporter.recovery.record import Approval, Proof, Recovery, Timeline

SECTIONS = (
    "Summary",
    "Timeline",
    "What it cost",
    "Evidence",
    "Signals",
    "What was considered",
    "What changed",
    "Who approved",
    "What ran",
    "What to do next",
    "Open questions",
)


def html(text: str) -> str:
    return MarkdownIt("commonmark", {"html": False}).enable("table").render(text)


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_every_section_is_there_in_the_order_in_which_one_reads() -> None:
    headings = re.findall(r"^## (.+)$", document(material(), ["signals.png"]), re.M)
    assert headings == list(SECTIONS)


def test_the_summary_is_three_sentences_what_happened_what_was_done_what_it_cost() -> None:
    first, second, third = summary(material())
    assert first == "Attempt 1 of run run-1 failed at step 31: loss is NaN for 5 steps."
    assert second.startswith("It went back to step 20 on the rung checkpoint and succeeded")
    assert third.startswith("16 steps had to be done again, no step was logged for 1 min 48 s")
    assert third.endswith("43.0 s of that was the trainer's own start.")


def test_the_timeline_is_in_order_with_the_trainers_start_apart() -> None:
    found = timeline(material())
    assert [one.at for one in found] == sorted(one.at for one in found)
    said = [one.what for one in found]
    assert said[0] == "Step 31 of attempt 1: the onset"
    order = [
        "The alert arrived",
        "night shift approved it",
        "The trainer was gone",
        "The trainer's process was started",
    ]
    places = [said.index(one) for one in order]
    assert places == sorted(places)
    assert said[-1] == "The recovery ended: succeeded"


def test_what_it_cost_leaves_the_trainers_start_and_the_persons_time_out_of_ours() -> None:
    lost = losses(material())
    assert (lost.steps, lost.start_seconds, lost.approval_seconds) == (16, 43.0, 29.5)
    assert lost.again_seconds == 32.0
    assert lost.ours_seconds == pytest.approx(180.0 - 100.0 - 43.0 - 29.5)


def test_what_is_not_known_is_said_to_be_so() -> None:
    empty = recovery(times=Timeline(), onset=None, planned_at_step=None, incidents=(), candidates=(), stages=())
    text = document(material(empty, steps=[], findings=[], audit=[]), [], "no picture")
    assert "What it cost is not known" in section(text, "Summary")
    assert "no picture" in section(text, "Signals")
    assert "Since when had it been failing?" in section(text, "Open questions")


@pytest.mark.parametrize("stage", ["refused", "observed", "aborted", "failed", "succeeded"])
@pytest.mark.parametrize("action", ["rollback", "restart", "stop"])
def test_however_it_ended_there_is_a_text(stage: str, action: str) -> None:
    bare = recovery(stage=stage, action=action, planned_target_step=None, target_step=None, new_attempt=None)
    assert document(material(bare), []).startswith("# Post-mortem: recovery `r1` of run `run-1`")


@pytest.mark.parametrize(
    ("action", "restored", "said"),
    [
        ("restart", 28, "saved step 28 as it was stopped"),
        ("restart", 20, "did not verify"),
        ("rollback", 20, "did not verify"),
    ],
)
def test_why_another_step_was_restored_than_was_planned(action: str, restored: int, said: str) -> None:
    candidates = (Candidate(25, "/c/global_step_25", 1, True, "verified"),)
    one = recovery(action=action, planned_target_step=25, target_step=restored, candidates=candidates)
    assert said in section(document(material(one), []), "What was considered")


def test_a_climb_is_told_from_its_first_recovery_to_its_last() -> None:
    first = recovery(id="r1", stage="failed", outcome="it came back", climbed_to="r2")
    second = recovery(id="r2", rung="config", climbed_from="r1")
    assert [one.id for one in chain_of(first, [second, first])] == ["r1", "r2"]
    text = section(document(material(second, chain=[first, second]), []), "The climb")
    assert text.index("`r1`") < text.index("**this one**")
    assert "it came back" in text


def test_a_chain_that_bites_its_own_tail_ends() -> None:
    one = recovery(id="r1", climbed_to="r2", climbed_from="r2")
    other = recovery(id="r2", climbed_to="r1", climbed_from="r1")
    assert {it.id for it in chain_of(one, [one, other])} == {"r1", "r2"}


def test_approvals_and_proofs_are_told() -> None:
    both = recovery(
        approvals=(Approval(who="ann", at=START), Approval(who="bob", at=START + 5)),
        approvals_needed=2,
        proofs=(Proof(name="optim.lr", wanted=1e-6, restored=1e-5, found=1e-5, ok=False, reason="a scheduler set it"),),
    )
    text = document(material(both), [])
    assert "2 given, 2 needed." in text
    assert "a scheduler set it" in section(text, "What changed")
    assert "Why did optim.lr not take effect?" in section(text, "Open questions")


def test_advice_is_that_of_the_findings_each_once_with_what_it_is_for() -> None:
    assert next_steps(material()) == ["actor.optim.lr: lower it (non_finite on loss)."]
    failed = recovery(stage="failed", outcome="it died")
    assert next_steps(material(failed))[0].endswith("verl-sentinel recoveries acknowledge r1")


def test_a_success_without_a_change_leaves_the_cause_open() -> None:
    assert any("but the weights" in one for one in open_questions(material()))


def test_a_hostile_name_is_neither_markup_nor_html_nor_a_link() -> None:
    hostile = recovery(
        run_id=HOSTILE,
        reason=HOSTILE,
        outcome=HOSTILE,
        resolved_by=HOSTILE,
        output=(HOSTILE, "```", "````"),
        planned_target_path=HOSTILE,
        incidents=({"id": HOSTILE, "detector": HOSTILE, "signal": HOSTILE, "summary": HOSTILE, "score": HOSTILE},),
    )
    made = document(material(hostile, about=replace(material().about, project=HOSTILE)), ["signals.png"])
    shown = html(made)
    assert "<script" not in shown
    assert "<a " not in shown
    assert re.findall(r'src="([^"]*)"', shown) == ["signals.png"]
    assert re.findall(r"<h2>(.+?)</h2>", shown) == [*SECTIONS]
    assert len(re.findall("<h1>", shown)) == 1


@pytest.mark.parametrize(
    "name", ["a|b", "`", "``x``", "# h", "- x", "1. x", "<b>", "&lt;", "a\nb", "\u202eabc", "*x*", "_x_"]
)
def test_a_name_in_a_cell_stays_in_its_cell(name: str) -> None:
    shown = html(table(("a", "b"), [(sentence(name), code(name))]))
    assert shown.count("<td>") == 2
    assert not re.search(r"<(?!/?(table|thead|tbody|tr|th|td|code)\b)", shown)


def test_the_picture_has_the_signals_of_the_findings_first_and_marks_where_it_went_back(tmp_path: Path) -> None:
    plot = plot_of(material())
    assert [panel.signal for panel in plot.panels] == ["loss", "kl", "lr"]
    assert {mark.what: mark.step for mark in plot.marks} == {"target": 20, "onset": 31, "planned": 36}
    (failed, after) = plot.panels[0].lines
    assert (failed.part, after.part, failed.lost) == ("failed", "after", [32, 33, 34, 35, 36])
    assert plot.panels[1].logarithmic
    draw(plot, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_text_alone_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / writing.MATERIAL_NAME).write_bytes(encode(material()))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    writing.write(tmp_path)
    assert "matplotlib is not installed" in (tmp_path / writing.TEXT_NAME).read_text()
    assert not (tmp_path / writing.PICTURE_NAME).exists()


def test_a_record_that_changes_is_told_anew_with_the_picture_that_is_there(tmp_path: Path) -> None:
    (tmp_path / writing.MATERIAL_NAME).write_bytes(encode(material()))
    writing.write(tmp_path)
    drawn = (tmp_path / writing.PICTURE_NAME).stat().st_mtime_ns
    (tmp_path / writing.MATERIAL_NAME).write_bytes(encode(material(recovery(outcome="Told anew."))))
    writing.write(tmp_path)
    assert "Told anew" in (tmp_path / writing.TEXT_NAME).read_text()
    assert "(signals.png)" in (tmp_path / writing.TEXT_NAME).read_text()
    assert (tmp_path / writing.PICTURE_NAME).stat().st_mtime_ns == drawn
    (tmp_path / writing.MATERIAL_NAME).write_bytes(encode(material(recovery(target_step=10))))
    writing.write(tmp_path)
    assert (tmp_path / writing.PICTURE_NAME).stat().st_mtime_ns != drawn


def test_material_comes_back_as_it_was_and_what_is_none_is_refused() -> None:
    before = material()
    after = decode(encode(before))
    assert isinstance(after, Material)
    assert document(after, []) == document(before, [])
    for bad in (b"", b"\x80", b"x" * 100):
        with pytest.raises(MaterialUnreadable):
            decode(bad)


def test_steps_of_every_attempt_are_drawn_where_the_new_one_never_logged() -> None:
    lonely: Recovery = recovery(new_attempt=None, stage="failed", times=replace(TIMES, first_healthy_step=None))
    only_failed = [one for one in steps() if one.attempt == 1]
    assert {line.part for line in plot_of(material(lonely, steps=only_failed)).panels[0].lines} == {"failed"}
