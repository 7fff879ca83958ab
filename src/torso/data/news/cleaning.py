"""What is taken out of an article: markup, scripts, what cannot be seen, and white space beyond a single space."""

from __future__ import annotations

import html
import re

_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
    # joiners shape emoji and some scripts; beside ASCII they do nothing
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
_HIDDEN = re.compile(r"<(script|style|noscript|template)\b[^>]*>.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)", re.I | re.S)
_BLOCK_TAG = re.compile(
    r"</?(?:p|br|div|h[1-6]|ul|ol|li|dl|dt|dd|table|tr|td|th|thead|tbody|blockquote|pre|hr|section|article|header"
    r"|footer|nav|aside|figure|figcaption|form|img|iframe|video|address|main)\b[^<>]*>",
    re.I,
)
_INLINE_TAG = re.compile(r"</?[a-z][a-z0-9-]*(?:\s[^<>]*)?/?>", re.I)


def clean(text: str) -> str:
    """The article's words. A tag of a block becomes a space, another one nothing; `a < b` is no tag.

    Entities come last, so that a text about `&lt;b&gt;` keeps it. All white space, line breaks too, is single spaces.
    """
    if "<" in text:
        text = _HIDDEN.sub(" ", text)
        text = _INLINE_TAG.sub("", _BLOCK_TAG.sub(" ", text))
    if "&" in text:
        text = html.unescape(text)
    spaced = " ".join(text.split())
    # none of what is invisible is printable, and this is ten times as fast as to look for it
    return spaced if spaced.isprintable() else " ".join(_INVISIBLE.sub("", text).split())
