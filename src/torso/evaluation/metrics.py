"""All metrics of a set of outputs, each with its signature: what exactly was computed, and on what text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TypeVar

import torso
from torso.data.wordnet import VERSION as WORDNET
from torso.errors import DataError, MissingResourceError
from torso.evaluation import bleu, nist, official_meteor
from torso.evaluation.cider import cider
from torso.evaluation.meteor import hf_meteor_segments
from torso.evaluation.rouge import rouge_l
from torso.evaluation.segments import Array, check_segments, mean_statistics, ratio
from torso.evaluation.slot_errors import slot_error_statistics

Found = TypeVar("Found")
_APART = re.compile(r"(?<=\s)[.,;:!?](?=\s|$)")
_ATTACHED = re.compile(r"(?<=[^\W_])[.,;:!?](?=\s|$)")


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What is scored: N outputs, for each its references, and the inputs where they are known."""

    outputs: Sequence[str]
    references: Sequence[Sequence[str]]
    mrs: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless the numbers agree."""
        check_segments(self.outputs, self.references)
        if self.mrs is not None and len(self.mrs) != len(self.outputs):
            raise ValueError(f"{len(self.outputs)} outputs, but {len(self.mrs)} inputs")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A definition."""

    name: str
    """As scores are named everywhere, e.g. `official_bleu`."""
    title: str
    definition: str
    """First part of the signature."""
    statistics: Callable[[Texts], Array]
    """[N, K], additive. Raises MissingResourceError or DataError where it cannot be computed."""
    of: Callable[[Array], Array]
    """[..., K] sums to [...] values."""
    at_work: Callable[[Texts], AbstractContextManager[Callable[[], Array]]] | None = None
    """`statistics` where another program computes them: begun, and what is given waits for them."""
    alone: Callable[[Texts], Sequence[float]] | None = None
    """Segments' values where they are another thing than `of` their statistics."""


METRICS = (
    Metric(
        name="official_bleu",
        title="BLEU, official E2E",
        definition="bleu|e2e-official|tok:13a|case:lower|reflen:closest|smooth:none",
        statistics=lambda texts: bleu.official_bleu_statistics(texts.outputs, texts.references),
        of=bleu.official_bleu_of,
    ),
    Metric(
        name="official_nist",
        title="NIST, official E2E",
        definition="nist|e2e-official|tok:13a|case:lower|reflen:mean|n:5",
        statistics=lambda texts: nist.nist_statistics(texts.outputs, texts.references),
        of=nist.nist_of,
        alone=lambda texts: nist.nist_segments(texts.outputs, texts.references),
    ),
    Metric(
        name="official_meteor",
        title="METEOR, official E2E",
        definition="meteor|1.5-java|tok:ptb|case:lower|lang:en|norm:yes|task:rank",
        statistics=lambda texts: official_meteor.official_meteor_statistics(texts.outputs, texts.references),
        of=official_meteor.official_meteor_of,
        at_work=lambda texts: official_meteor.official_meteor_at_work(texts.outputs, texts.references),
    ),
    Metric(
        name="official_rouge_l",
        title="ROUGE-L, official E2E",
        definition="rouge-l|e2e-official|tok:ptb|case:lower|beta:1.2|mean",
        statistics=lambda texts: mean_statistics(rouge_l(texts.outputs, texts.references)),
        of=ratio,
    ),
    Metric(
        name="official_cider",
        title="CIDEr, official E2E",
        definition="cider-d|e2e-official|tok:ptb|case:lower|df:references|sigma:6|mean",
        statistics=lambda texts: mean_statistics(cider(texts.outputs, texts.references)),
        of=ratio,
    ),
    Metric(
        name="hf_bleu",
        title="BLEU, Hugging Face",
        definition="bleu|hf|tok:13a|case:mixed|reflen:shortest|smooth:none",
        statistics=lambda texts: bleu.hf_bleu_statistics(texts.outputs, texts.references),
        of=bleu.hf_bleu_of,
    ),
    Metric(
        name="hf_meteor",
        title="METEOR, Hugging Face",
        definition=f"meteor|hf-nltk-{version('nltk')}|wordnet:{WORDNET}|tok:punkt+treebank|case:lower|mean",
        statistics=lambda texts: mean_statistics(hf_meteor_segments(texts.outputs, texts.references)),
        of=ratio,
    ),
    Metric(
        name="slot_error_rate",
        title="Slot error rate, E2E",
        definition="ser|torso-forms:1|missing+added+wrong/slots|case:lower",
        statistics=lambda texts: slot_error_statistics(texts.mrs, texts.outputs),
        of=ratio,
    ),
)


@dataclass(frozen=True)
class Measured:
    """One metric of one set of outputs."""

    metric: Metric
    texts: Texts
    statistics: Array
    """[N, K]"""

    @property
    def value(self) -> float:
        """Of the whole set."""
        return float(self.metric.of(self.statistics.sum(axis=0)))

    def segments(self) -> list[float]:
        """Of each segment."""
        alone = self.metric.alone
        return list(map(float, alone(self.texts) if alone else self.metric.of(self.statistics)))


@dataclass(frozen=True)
class Scores:
    """What could be computed, and why the rest could not."""

    measured: tuple[Measured, ...]
    not_computed: dict[str, str]
    """By name of the metric."""


def measure(texts: Texts, leave_out: Sequence[str] = ()) -> Scores:
    """Every metric but those left out. Where one's means are missing, nothing stands in for it."""
    chosen = [metric for metric in METRICS if metric.name not in leave_out]
    found: dict[str, Array | str] = {}
    with ExitStack() as programs:
        # half of the time is another program's: it works while the others are computed here
        waiting = [(m, _outcome(partial(_begin, programs, m.at_work, texts))) for m in chosen if m.at_work]
        found |= {m.name: _outcome(partial(m.statistics, texts)) for m in chosen if not m.at_work}
        found |= {m.name: _outcome(wait) if callable(wait) else wait for m, wait in waiting}
    measured = tuple(Measured(m, texts, s) for m in chosen if not isinstance(s := found[m.name], str))
    return Scores(measured, {m.name: why for m in chosen if isinstance(why := found[m.name], str)})


def _begin(
    programs: ExitStack, start: Callable[[Texts], AbstractContextManager[Callable[[], Array]]], texts: Texts
) -> Callable[[], Array]:
    return programs.enter_context(start(texts))


def _outcome(compute: Callable[[], Found]) -> Found | str:
    """What it gives, or why it cannot."""
    try:
        return compute()
    except (MissingResourceError, DataError) as error:
        return str(error)


def signature(metric: Metric, texts: Texts) -> str:
    """Definition, form of the text, number of references, version."""
    outputs, references = forms(texts)
    form = outputs if outputs == references else f"outputs-{outputs}+references-{references}"
    numbers = [len(rs) for rs in texts.references] or [0]
    span = f"{min(numbers)}-{max(numbers)}" if min(numbers) < max(numbers) else f"{min(numbers)}"
    return f"{metric.definition}|text:{form}|refs:{span}|torso:{torso.__version__}"


def forms(texts: Texts) -> tuple[str, str]:
    """`text_form` of the outputs and of the references."""
    return text_form(texts.outputs), text_form([r for rs in texts.references for r in rs])


def text_form(texts: Sequence[str]) -> str:
    """`raw`, or `tokenised` where most punctuation stands apart from the word before it."""
    apart = sum(len(_APART.findall(text)) for text in texts)
    return "tokenised" if apart > sum(len(_ATTACHED.findall(text)) for text in texts) else "raw"


def segment_table(scores: Scores) -> dict[str, list[float]]:
    """Each segment's values by metric; the official scorer's sentence BLEU, which only segments have, among them."""
    table = {measured.metric.name: measured.segments() for measured in scores.measured}
    for measured in scores.measured:
        if measured.metric.name == "official_bleu":
            table["official_sentence_bleu"] = list(map(float, bleu.official_sentence_bleu_of(measured.statistics)))
    return table
