"""Beam search by the rules of transformers' `generate` (early stopping off), batched over prompts.

N prompts still searched, K beams, V vocabulary. Of each prompt's K V continuations the 2 K best are looked at: those
among the first K that end are finished outputs, with score log-probability / length ** penalty; the K best that do not
end go on. A prompt is done when its best beam, at its present length, could not beat the worst of K finished outputs;
it then leaves the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torso.errors import ConfigError
from torso.evaluation.model import CachedModel, padded

_NEVER = -1.0e9
_LEAVING = 8
"""Prompts that are done leave the batch when they are this part of it."""


def beam_search(
    model: CachedModel,
    prompts: Sequence[Sequence[int]],
    end_id: int,
    max_new_tokens: int,
    beams: int,
    length_penalty: float,
    no_repeat_ngram: int,
) -> list[list[int]]:
    """The best finished output of each prompt without its end token.

    At `max_new_tokens` whatever is best counts as finished. No n-gram comes twice among an output's own tokens; the
    prompt's do not count. ConfigError when the vocabulary is too small for so many beams.
    """
    search = _Search(len(prompts), end_id, max_new_tokens, beams, length_penalty, no_repeat_ngram)
    decoding = model.start(len(prompts))
    try:
        logits = decoding.forward(padded(prompts, end_id), [len(p) for p in prompts])
        while (rows := search.advance(logits)) is not None:
            logits = decoding.forward(search.last_tokens, [1] * len(rows), rows)
    finally:
        decoding.close()
    return search.outputs


@dataclass
class _Beams:
    """Of the prompts that are still searched."""

    prompts: list[int]
    scores: Tensor  # [N, K] sums of log-probabilities
    tokens: Tensor  # [N, K, length]
    finished_scores: Tensor  # [N, K], best first
    finished: Tensor  # [N, K, length], -1 after the end
    decided: Tensor  # [N], whether the output is known

    def keep(self, index: Tensor) -> _Beams:
        """These of the prompts."""
        tensors = (self.scores, self.tokens, self.finished_scores, self.finished, self.decided)
        return _Beams([self.prompts[i] for i in index.tolist()], *(tensor[index] for tensor in tensors))


class _Search:
    def __init__(self, num: int, end_id: int, longest: int, beams: int, length_penalty: float, ngram: int) -> None:
        self._end_id, self._longest, self._num_beams = end_id, longest, beams
        self._length_penalty, self._ngram = length_penalty, ngram
        self.outputs: list[list[int]] = [[] for _ in range(num)]
        # one beam a prompt at first: its K copies would be the same
        nothing = torch.zeros(num, 1, 0, dtype=torch.long)
        never = torch.full((num, beams), _NEVER)
        finished = torch.full((num, beams, 0), -1, dtype=torch.long)
        decided = torch.zeros(num, dtype=torch.bool)
        self._beams = _Beams(list(range(num)), torch.zeros(num, 1), nothing, never, finished, decided)

    @property
    def last_tokens(self) -> Tensor:
        """[N K, 1]"""
        return self._beams.tokens[:, :, -1].reshape(-1, 1)

    def advance(self, logits: Tensor) -> list[int] | None:
        """Logits [N K, V] after the present beams → the rows of the cache that go on; None when all is found."""
        held = self._beams
        num, width, length = held.tokens.shape
        scores, parents, tokens = self._continuations(logits)
        ends = (tokens == self._end_id) | (length + 1 == self._longest)
        longer = torch.cat([held.tokens[torch.arange(num)[:, None], parents], tokens[:, :, None]], dim=2)
        self._finish(scores, longer, ends)
        going_on = torch.topk(scores.masked_fill(ends, 2.0 * _NEVER), self._num_beams, dim=1)
        index = torch.arange(num)[:, None]
        parents = parents[index, going_on.indices]
        # who stays in its parent's place need not be moved in the cache
        places = _places(parents, width)
        held.scores = going_on.values.gather(1, places)
        held.tokens = longer[index, going_on.indices.gather(1, places)]
        going_on_from = parents.gather(1, places) + index * width
        self._note_decided(length + 1)
        kept = self._kept()
        self._beams = held.keep(kept)
        return going_on_from[kept].reshape(-1).tolist() if len(kept) else None

    def _continuations(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, beams and tokens, [N, 2 K] each, best first."""
        held = self._beams
        num, width, _ = held.tokens.shape
        chances = logits.float().log_softmax(dim=-1)
        _forbid_repetition(chances, held.tokens.reshape(num * width, -1), self._ngram)
        chances = chances.view(num, width, -1) + held.scores.to(chances.device)[:, :, None]
        vocabulary = chances.shape[2]
        if vocabulary < 2 * self._num_beams:
            raise ConfigError(
                f"beams is {self._num_beams} with {vocabulary} tokens", f"Give {vocabulary // 2} or less."
            )
        best = torch.topk(chances.view(num, -1), 2 * self._num_beams, dim=1)
        scores, places = best.values.cpu(), best.indices.cpu()
        return scores, places // vocabulary, places % vocabulary

    def _finish(self, scores: Tensor, longer: Tensor, ends: Tensor) -> None:
        """Those that end compete with what is finished; only the K best of all continuations may."""
        held, length = self._beams, longer.shape[2]
        ends = ends.clone()
        ends[:, self._num_beams :] = False
        candidates = (scores / length**self._length_penalty).masked_fill(~ends, _NEVER)
        before = torch.nn.functional.pad(held.finished, (0, 1), value=-1)
        merged = torch.topk(torch.cat([held.finished_scores, candidates], dim=1), self._num_beams, dim=1)
        held.finished_scores = merged.values
        index = torch.arange(len(held.prompts))[:, None]
        held.finished = torch.cat([before, longer], dim=1)[index, merged.indices]

    def _note_decided(self, length: int) -> None:
        """Note the outputs of prompts whose search has just ended."""
        held = self._beams
        best_possible = held.scores.max(dim=1).values / length**self._length_penalty
        worst = held.finished_scores.min(dim=1).values
        ends_now = (worst > _NEVER) & (best_possible <= worst) | torch.tensor(length == self._longest)
        for place in (ends_now & ~held.decided).nonzero()[:, 0].tolist():
            tokens = [token for token in held.finished[place, 0].tolist() if token not in (-1, self._end_id)]
            self.outputs[held.prompts[place]] = tokens
        held.decided = held.decided | ends_now

    def _kept(self) -> Tensor:
        """The prompts that stay in the batch: leaving it moves all others in the cache, so several leave together."""
        decided = self._beams.decided
        if decided.all() or decided.sum() * _LEAVING >= len(decided):
            return (~decided).nonzero()[:, 0]
        return torch.arange(len(decided))


def _places(parents: Tensor, width: int) -> Tensor:
    """An order of the beams [N, K] in which one child of each parent [N, K] stands in its parent's place."""
    num, beams = parents.shape
    if width != beams:
        return torch.arange(beams).expand(num, beams)
    earlier = torch.ones(beams, beams, dtype=torch.bool).tril(-1)
    later_child = ((parents[:, :, None] == parents[:, None, :]) & earlier).any(dim=2)
    taken = torch.zeros(num, beams, dtype=torch.bool).scatter(1, parents, torch.tensor(True).expand(num, beams))
    free = torch.argsort(taken.int(), dim=1, stable=True)
    places = torch.where(later_child, free.gather(1, (later_child.cumsum(dim=1) - 1).clamp(min=0)), parents)
    return torch.argsort(places, dim=1)


def _forbid_repetition(chances: Tensor, tokens: Tensor, n: int) -> None:
    """Set log-probabilities [R, V] to -inf where a token would repeat an n-gram of its row's tokens [R, length]."""
    length = tokens.shape[1]
    if n == 0 or length < n:
        return
    windows = tokens.unfold(1, n, 1)  # [R, windows, n]
    same = (windows[:, :, : n - 1] == tokens[:, None, length - n + 1 :]).all(dim=2)
    rows, places = same.nonzero(as_tuple=True)
    chances[rows.to(chances.device), windows[rows, places, n - 1].to(chances.device)] = float("-inf")
