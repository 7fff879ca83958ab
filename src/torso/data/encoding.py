"""Text to token ids, one sequence for each reference.

    sequence = prompt + end token + (" " + reference) + end token

The loss is taken on the reference and the last end token only. The first end token parts prompt from
reference, so a prompt without any text is an end token alone, and every target has a token before it.

Over-long text is never cut. In training and for perplexity an example of more than `max_tokens` tokens is
left out, counted and reported. In decoding nothing may be left out, or scores would not be of the whole
split: a prompt that leaves no room for the answer is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from torso.data.corpus import Block, Group
from torso.data.tokenizer import Tokenizer
from torso.errors import DataError


@dataclass(frozen=True)
class Example:
    """One sequence: `prompt_ids` (its end token included), then `target_ids` (likewise).

    group: position, in the split, of the group that the reference belongs to.
    """

    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    group: int

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.target_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Those at the beginning that are not predicted."""
        return len(self.prompt_ids)

    def ids(self) -> Sequence[int]:
        """All of them."""
        return self.prompt_ids + self.target_ids

    @property
    def identity(self) -> str:
        """Equal when, and only when, prompt and target are."""
        return repr((self.prompt_ids, self.target_ids))


@dataclass(frozen=True, slots=True)
class BlockExample:
    """A sequence that the data set holds ready; every token but the first is predicted."""

    block: Block

    def __len__(self) -> int:
        return len(self.block)

    @property
    def num_prompt_tokens(self) -> int:
        """The first."""
        return 1

    def ids(self) -> Sequence[int]:
        """All of them, read now."""
        ids: list[int] = self.block.read().tolist()
        return ids

    @property
    def identity(self) -> str:
        """Stands for all of them, unread."""
        return self.block.identity


class BlockExamples(Sequence[BlockExample]):
    """Of groups with blocks; each is made when it is asked for, for there may be millions."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, place: int) -> BlockExample: ...

    @overload
    def __getitem__(self, place: slice) -> BlockExamples: ...

    def __getitem__(self, place: int | slice) -> BlockExample | BlockExamples:
        if isinstance(place, slice):
            return BlockExamples(self._groups[place])
        block = self._groups[place].block
        assert block is not None
        return BlockExample(block)


AnyExample = Example | BlockExample


@dataclass(frozen=True)
class EncodingReport:
    """What encoding a split gave.

    num_examples: sequences kept.
    num_tokens: their tokens.
    num_target_tokens: those of them that carry loss.
    num_over_long: sequences left out for having more than max_tokens tokens.
    longest: tokens of the longest sequence, whether kept or left out.
    max_tokens: the limit.
    """

    num_examples: int
    num_tokens: int
    num_target_tokens: int
    num_over_long: int
    longest: int
    max_tokens: int

    def __str__(self) -> str:
        text = f"{self.num_examples:,} examples, {self.num_tokens:,} tokens, longest {self.longest}"
        if self.num_over_long:
            text += f"; left out {self.num_over_long:,} of more than {self.max_tokens} tokens"
        return text


@dataclass(frozen=True)
class Encoded:
    """The examples of a split in order, and the report."""

    examples: Sequence[AnyExample]
    report: EncodingReport


def encode_split(groups: Sequence[Group], tokenizer: Tokenizer, max_tokens: int) -> Encoded:
    """An example for each reference of each group, or for its block; those of more than `max_tokens` are left out.

    DataError when nothing is left, or a block is too long.
    """
    if groups and groups[0].block is not None:
        return _encoded_blocks(groups, max_tokens)
    everything = list(_examples(groups, tokenizer))
    examples = [example for example in everything if len(example) <= max_tokens]
    longest = max((len(example) for example in everything), default=0)
    if not examples:
        raise DataError(
            f"none of {len(everything)} examples is left: at most {max_tokens} tokens fit, the longest has {longest}",
            "Use shorter texts, or a model with more positions.",
        )
    return _encoded(examples, len(everything) - len(examples), longest, max_tokens)


def _encoded_blocks(groups: Sequence[Group], max_tokens: int) -> Encoded:
    # All but a split's last are equally long: to leave out would be to leave out everything.
    longest = len(BlockExamples(groups)[0])
    if longest > max_tokens:
        raise DataError(
            f"blocks have {longest} tokens, at most {max_tokens} fit",
            f"Prepare the data with --block-size {max_tokens}, or use a model with more positions.",
        )
    return _encoded(BlockExamples(groups), 0, longest, max_tokens)


def _encoded(examples: Sequence[AnyExample], num_over_long: int, longest: int, max_tokens: int) -> Encoded:
    report = EncodingReport(
        num_examples=len(examples),
        num_tokens=sum(len(example) for example in examples),
        num_target_tokens=sum(len(example) - example.num_prompt_tokens for example in examples),
        num_over_long=num_over_long,
        longest=longest,
        max_tokens=max_tokens,
    )
    return Encoded(examples, report)


def encode_prompts(
    groups: Sequence[Group], tokenizer: Tokenizer, max_tokens: int, max_new_tokens: int
) -> list[list[int]]:
    """The ids that decoding starts from, a list for each group, end token included.

    DataError when a prompt and `max_new_tokens` more do not fit into `max_tokens`.
    """
    prompts = [[*ids, tokenizer.eos_id] for ids in tokenizer.encode_all([group.prompt for group in groups])]
    for number, (group, ids) in enumerate(zip(groups, prompts, strict=True), start=1):
        if len(ids) + max_new_tokens > max_tokens:
            raise DataError(
                f"prompt {number}, {group.prompt[:60]!r}…, has {len(ids)} tokens; with {max_new_tokens} new"
                f" ones it does not fit into the model's {max_tokens}",
                "Shorten it, decode fewer new tokens, or use a model with more positions.",
            )
    return prompts


def _examples(groups: Sequence[Group], tokenizer: Tokenizer) -> Iterator[Example]:
    end = (tokenizer.eos_id,)
    for number, group in enumerate(groups):
        prompt = (*tokenizer.encode(group.prompt), *end)
        for reference in group.references:
            yield Example(prompt, (*tokenizer.encode(f" {reference}"), *end), number)
