"""Step detector ``reward``: the reward collapses, stands still with nothing left to explore, or is being hacked.

Collapse. A fall of the mean score beyond what this run has shown (see :mod:`exporter.detectors.shift`), by a share of
its level. Where rewards are negative too, 0 is no floor and the level says nothing: there it is a share of what the run
gained above its lowest level, or of some units of noise where that is more. Harder tasks (a curriculum) lower the
reward too, so an isolated step down is a warning. It is a page when it is deep; when it goes on falling after it began,
which a step does not; or when the policy moves with it: its entropy, its gradient, its KL, or answers that become
short. Answers that become longer are no witness: harder tasks need them.

Plateau. A warning: see :mod:`exporter.detectors.plateau`.

Hacking. A warning, with what was compared: see :mod:`exporter.detectors.validations`. Its signal is ``val_reward``.

Score: of a collapse the change over what the run's own past and the budget ask for, of hacking the fall over the one
that noise allows, threshold 1; of a plateau the error of the gain over the gain itself, at least 1.

References: in the modules named above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

from exporter.detectors.base import Expectation, Severity, StepSample, Verdict
from exporter.detectors.calibration import WARNINGS_PER_PAGE, Budget
from exporter.detectors.companions import Companion, Companions
from exporter.detectors.options import at_least, at_most
from exporter.detectors.plateau import BLOCK, Plateau, Standstill
from exporter.detectors.scales import LINEAR
from exporter.detectors.shift import Change, Shift
from exporter.detectors.shifting import HOLD, Series, ShiftDetector, Watch
from exporter.detectors.validations import Divergence, Validations

COMPANIONS: Final = (
    Companion("entropy", 0.01, math.log(1.3)),
    Companion("grad_norm", 1e-6, math.log(1.6)),
    Companion("kl", 1e-3, math.log(1.6), falls=False),
    Companion("ppo_kl", 1e-3, math.log(1.6), falls=False),
    Companion("response_length", 1.0, math.log(1.3), rises=False),
)
NOISES: Final = 4.0
LEAST_NOISE: Final = 1e-9
ANY: Final = 1e-6
"""Size from which on the test looks at a change; what matters depends on the level, and is asked after it."""
PAGE_HOLD: Final = 4
"""Steps in a row for a page: a few bad batches move the median of the newest five for fewer."""
TOGETHER: Final = 7.0
"""By how much less rare (as a logarithm) a fall may be that is not alone."""
SIGNED: Final = 0.1
"""Share of a run's steps with a reward below 0, from which on its level says nothing."""
SIGNED_PART: Final = 0.75
"""What such a reward is worth, as a part of its gain. Not all of it: most runs start above what chance earns."""
SIGNED_NOISES: Final = 3.0
"""Units of noise that such a reward is worth at least."""
GOES_ON: Final = 0.25
"""Share of a fall that has to come after its beginning, for one that goes on."""
GOES_ON_STEPS: Final = (8, 40)
"""Steps after its beginning in which a fall goes on; later it is another one."""
_LESS_RARE: Final = math.log(WARNINGS_PER_PAGE)

_FELL: Final = Watch(
    0,
    rising=False,
    page=ANY,
    warn=ANY,
    name="fell",
    meaning="The policy earns less than it did, and does not find back: it has lost what it learned, or what "
    "is asked of it has changed.",
    advice=(
        "compare answers from before and after the onset (trainer.rollout_data_dir)",
        "actor_rollout_ref.actor.optim.lr: lower it",
        "actor_rollout_ref.actor.kl_loss_coef: raise it",
        "data.train_files, reward.custom_reward_function: has either changed?",
    ),
    before=1,  # a step's answers are from the policy of before its update
)


class Reward(ShiftDetector):
    """The training reward falls, or no longer means what it should.

    ``page``, ``warn``: share of the level that a fall must have. ``deep``: share from which on a fall needs no witness.
    ``plateau_steps``: steps without gain. ``plateau_entropy``: share of the highest entropy that counts as none.
    ``window``: steps from which the usual noise is taken. ``warmup``: steps of an attempt before anything is judged.

    >>> detector = Reward()
    >>> for step in range(1, 121):
    ...     share = max(0.1, 1 - 0.05 * max(0, step - 90))
    ...     signals = {"reward": (0.6 + step * 7 % 10 / 50) * share, "entropy": 0.3 * share}
    ...     for v in detector.observe(StepSample(step, 1, 0.0, signals)):
    ...         if v.severity is Severity.CRITICAL:
    ...             print(step, "since", v.onset)
    ...             break
    ...     else:
    ...         continue
    ...     break
    102 since 91
    """

    name = "reward"

    def __init__(
        self,
        *,
        page: float = 0.3,
        warn: float = 0.2,
        deep: float = 0.6,
        plateau_steps: int = 300,
        plateau_entropy: float = 0.05,
        window: int = 100,
        warmup: int = 15,
        budget: Budget | None = None,
    ) -> None:
        for option, value in (("page", page), ("warn", warn), ("deep", deep), ("plateau_entropy", plateau_entropy)):
            self.check_share(option, value)
        at_most(self.name, "warn", warn, page, "page")
        at_most(self.name, "page", page, deep, "deep")
        at_least(self.name, "plateau_steps", plateau_steps, 10 * BLOCK, whole=True)
        self._page, self._warn, self._deep = page, warn, deep
        self._companions = Companions(COMPANIONS, noises=NOISES)
        self._plateau = Plateau(steps=plateau_steps, floor=plateau_entropy)
        self._validations = Validations()
        self._lowest = math.inf  # level
        self._steps = self._negative = 0  # with a reward, and with one below 0, while no fall was seen
        self._from: float | None = None  # the highest level before, of the fall that is seen
        self._witness = ""
        series = (Series("reward", LINEAR, LEAST_NOISE),)
        super().__init__(series, (_FELL,), budget=budget, window=window, warmup=warmup)

    def observe(self, sample: StepSample) -> Sequence[Verdict]:
        """Judge one step; a validation may come as a second part of it."""
        signals = sample.signals
        again = sample.step <= self._last_step
        if sample.step < self._last_step:
            self.resumed(sample.step, sample.attempt)
            again = False
        if not again:
            self._companions.push(signals)
        reward, entropy, validation = signals.get("reward"), signals.get("entropy"), signals.get("val_reward")
        fresh = reward is not None and math.isfinite(reward) and sample.step > self._shifts[0].last_step
        if fresh and reward is not None:
            self._validations.train(reward)
            if entropy is not None and math.isfinite(entropy) and abs(reward) < 1e100 and abs(entropy) < 1e100:
                self._plateau.push(sample.step, reward, entropy)
        if validation is not None and math.isfinite(validation):
            self._validations.push(sample.step, validation)
        verdicts = list(super().observe(sample))
        if fresh and reward is not None:
            self._learn(reward)
        if fresh and not verdicts and self._plateau.found is not None:
            verdicts.append(self._stands_still(sample.step, self._plateau.found))
        if (fresh or validation is not None) and self._validations.found is not None:
            verdicts.append(self._hacked(sample.step, self._validations.found))
        return verdicts

    def expected(self) -> Mapping[str, Expectation]:
        """Of the reward, and of the validation reward once there are enough of it."""
        band = self._validations.band()
        return super().expected() if band is None else {**super().expected(), "val_reward": Expectation(*band)}

    def _judge(self, place: int, watch: Watch, sample: StepSample) -> Verdict | None:
        """How sure the fall of the reward must be depends on what else speaks for it."""
        shift, held = self._shifts[place], self._held[place]
        change = shift.change(rising=False, least=ANY, rarity=self._rarity - TOGETHER)
        severity = None if change is None else self._severity(change, shift)
        if change is None or severity is None:
            held[0] = held[1] = 0
            self._onsets[place] = None
            self._from = None
            return None
        self._from = change.before if self._from is None else max(self._from, change.before)
        held[0] = held[0] + 1 if severity is Severity.CRITICAL else 0
        held[1] += 1
        if held[1] < HOLD:
            return None
        shift.found(rising=False)
        if self._onsets[place] is None:
            self._onsets[place] = max(shift.onset(change) - watch.before, 0)
        if held[0] < PAGE_HOLD:
            severity, self._witness = Severity.WARNING, ""
        return self._verdict(place, watch, change, severity, sample)

    def _learn(self, reward: float) -> None:
        """What is needed to say how much of a reward a fall is."""
        band = self._shifts[0].band()
        if band is not None:
            self._lowest = min(self._lowest, band[0])
        if self._from is None:
            self._steps += 1
            self._negative += reward < 0.0

    def _height(self, before: float, noise: float) -> tuple[float, str]:
        """What a fall from a level is a share of, and what that is called."""
        gained = before - self._lowest
        if self._negative > SIGNED * self._steps:
            part, least = SIGNED_PART * gained, SIGNED_NOISES * noise
            return (
                (part, f"{SIGNED_PART:.0%} of its gain") if part > least else (least, f"{SIGNED_NOISES:g} deviations")
            )
        return max(abs(before), gained, 2.0 * noise), "its level"

    def _severity(self, change: Change, shift: Shift) -> Severity | None:
        """What a fall amounts to; what speaks for it beside its size is left in ``_witness``."""
        self._witness = ""
        self._lowest = min(self._lowest, change.before)
        # Of a slow fall the steps before the newest are on their way down already.
        before = change.before if self._from is None else max(self._from, change.before)
        height, whole = self._height(before, shift.noise)
        share = (before - change.now) / height if height > 0.0 else 0.0
        if share < self._warn:
            return None
        moving = self._companions.moving()
        if moving:
            self._witness = "together with " + ", ".join(f"{signal} ({factor:.3g} times)" for signal, factor in moving)
            return Severity.CRITICAL if share >= self._page else Severity.WARNING
        clear = shift.change(rising=False, least=ANY, rarity=self._rarity - _LESS_RARE)
        if clear is None:
            return None
        if share >= self._deep:
            self._witness = f"by {share:.0%} of {whole}"
        elif share >= self._page and self._goes_on(change):
            self._witness = "and goes on falling"
        return Severity.CRITICAL if self._witness else Severity.WARNING

    def _goes_on(self, change: Change) -> bool:
        """Whether it fell further after its beginning than noise explains."""
        shift = self._shifts[0]
        _, values = shift.recent(shift.onset(change), most=10**6)
        if not GOES_ON_STEPS[0] <= len(values) <= GOES_ON_STEPS[1]:
            return False
        part = len(values) // 2
        further = median(values[:part]) - median(values[-part:])
        # 1.25: a median's standard deviation over that of a mean.
        error = 1.25 * shift.noise * math.sqrt(2.0 / part)
        return further > max(3.0 * error, GOES_ON * -change.size)

    def _verdict(self, place: int, watch: Watch, change: Change, severity: Severity, sample: StepSample) -> Verdict:
        verdict = super()._verdict(place, watch, change, severity, sample)
        if severity < Severity.CRITICAL or not self._witness:
            return verdict
        return replace(verdict, summary=f"{verdict.summary}, {self._witness}")

    def _stands_still(self, step: int, found: Standstill) -> Verdict:
        return Verdict(
            detector=self.name,
            signal="reward",
            severity=Severity.WARNING,
            step=step,
            onset=min(found.since, step),
            score=2.0,
            threshold=1.0,
            confidence=0.5,
            summary=(
                f"reward has gained {found.gain:.3g} in {found.steps} steps and is {found.reward:.4g}, with an entropy "
                f"of {found.entropy:.3g} that was up to {found.entropy_at_most:.3g}, since step {found.since}"
            ),
            meaning="The policy has become decided before the task was solved: with no entropy left it tries nothing "
            "new, and more steps will bring no more.",
            advice=(
                "actor_rollout_ref.actor.entropy_coeff: raise it, and resume from before entropy was spent",
                "actor_rollout_ref.actor.clip_ratio_high: raise it (DAPO: 0.28)",
                "actor_rollout_ref.rollout.temperature: raise it",
            ),
        )

    def _hacked(self, step: int, found: Divergence) -> Verdict:
        return Verdict(
            detector=self.name,
            signal="val_reward",
            severity=Severity.WARNING,
            step=step,
            onset=min(found.since, step),
            score=found.score,
            threshold=1.0,
            confidence=min(0.9, 1.0 - 0.5 / found.score),
            summary=(
                f"The training reward {'rose' if found.train_now > found.train_then else 'went'} from "
                f"{found.train_then:.4g} to {found.train_now:.4g} while the validation reward fell from "
                f"{found.best:.4g} (to step {found.best_step}) to {found.now:.4g} (the newest {found.newest})"
            ),
            meaning="What is rewarded is no longer what is wanted: the policy exploits the reward, or learns the "
            "training tasks by heart.",
            advice=(
                "read answers with high scores (trainer.rollout_data_dir): what do they have in common?",
                "reward.custom_reward_function: close the way that they found",
                "actor_rollout_ref.actor.kl_loss_coef: raise it",
                "go back to the checkpoint of the best validation",
            ),
        )

    def resumed(self, step: int, attempt: int) -> None:
        """Forget all levels: a resume shifts them."""
        super().resumed(step, attempt)
        self._companions.restart()
        self._plateau.restart()
        self._validations.restart()
        self._lowest = math.inf
        self._steps = self._negative = 0
        self._from = None
        self._witness = ""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "companions": self._companions.state(),
            "plateau": self._plateau.state(),
            "validations": self._validations.state(),
            "lowest": None if math.isinf(self._lowest) else self._lowest,
            "signs": [self._steps, self._negative],
            "from": self._from,
            "witness": self._witness,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._companions.load(state["companions"])
        self._plateau.load(state["plateau"])
        self._validations.load(state["validations"])
        self._lowest = math.inf if state["lowest"] is None else float(state["lowest"])
        self._steps, self._negative = state["signs"]
        self._from = None if state["from"] is None else float(state["from"])
        self._witness = state["witness"]
