"""How people put the values of E2E's slots into words: regular expressions over lower-cased text."""

from __future__ import annotations

import re

_RATED = r"(?:rat(?:ed|ings?|es?)|reviews?|reviewed|stars?|scores?|scored|customers?|feedback|marks|ranked|rankings?)"
_PRICED = r"(?:pric(?:e|es|ed|ing|ey)|costs?|costing|range|ranges|ranged|end|charges?|budget|bill)"
_GAP = r"(?:[\s,-]+(?!and\b|but\b|with\b|is\b|it\b|£)[\w']+){0,2}?[\s-]+"
_BACK = (
    r"(?:\s+(?:customers?|ratings?|rated|range|prices?|is|are|was|were|been|being|as|of|at|a|an|the|in|by|from|it|its"
    r"|has|very|quite|only|just|average[ds]?)){0,4}\s+"
)
_POUND = r"(?:£|\$|€|l|e|gbp|pounds?)?\s*"
_LOWER = r"(?:less|lower|cheaper|no more|not more)\s+than|under|below|up to|within|beneath"
_HIGHER = r"(?:more|higher|greater)\s+than|over|above|upwards? of|at least|from|exceed\w*|minimum of"
_NOT = r"(?:not?|n't|isn't|aren't|doesn't|don't|non|never|without|un|cannot|can't)"
_KIDS = r"(?:famil(?:y|ies)|kids?|child(?:ren)?|child's|childrens)"
_ADULT = r"\badults?[\s-]+(?:only|oriented|friendly)|\bno (?:kids|children|families)|\badult\b(?! and)"
_UNFRIENDLY = (
    rf"\b{_NOT}\b[\s-]*(?:\w+[\s-]+){{0,4}}?{_KIDS}|\b{_KIDS}[\s-]+(?:un\w+|free|\w+\s+is(?:n't| not))|{_ADULT}"
    rf"|\b{_KIDS}\b(?:(?!\b(?:and|but|it)\b)[\w\s-]){{0,30}}"
    r"\b(?:not?|n't|aren't|isn't|unwelcome|unfriendly|discouraged)\b(?! (?:far|only|expensive))"
)
_FRIENDLY = rf"\b{_KIDS}\b|\bfamilial|\bchildcare|\ball ages|\beveryone|\byoungsters"


def _rated(words: str) -> str:
    """The words said of a rating."""
    return rf"\b(?:{words})(?:ly)?{_GAP}{_RATED}\b|\b{_RATED}{_BACK}(?:{words})\b"


def _priced(words: str) -> str:
    """The words said of a price."""
    return rf"\b(?:{words})(?:ly)?(?:[\s-]+[\w']+)?[\s-]+{_PRICED}\b|\b{_PRICED}{_BACK}(?:{words})\b"


def _out_of_five(number: str, word: str) -> str:
    digits = rf"(?:{number}|{word})"
    of_five = r"[\s-]*(?:out[\s-]+of|of|/|on)[\s-]*(?:a\s+(?:possible\s+)?)?(?:5|five)\b"
    return rf"\b{digits}(?:\.0)?{of_five}|\b{digits}[\s-]+stars?\b"


_SOURCES: dict[str, dict[str, str]] = {
    "eatType": {
        "coffee shop": r"\bcoffee|\bcafé(?! (?:rouge|sicilia|brazil|adriatic))|\bcafe(?! (?:rouge|sicilia|brazil))",
        "pub": r"\bpubs?\b|\bbars?\b|\btavern",
        "restaurant": r"\brestaurants?\b|\brestauran|\bdiner\b|\bdining|\beatery|\bbistro|\bplace to eat",
    },
    "food": {
        "Chinese": r"\bchinese|\bchina\b",
        "English": r"\benglish|\bbritish|\bengland|\bfish and chips|\bfull breakfast",
        "Fast food": r"\bfast[\s-]*foods?|\bfastfood|\bburger joint|\bhamburgers?\b|\bjunk food",
        "French": r"\bfrench|\bfrance",
        "Indian": r"\bindian?\b|\bcurry house|\bcurries",
        "Italian": r"\bital(?:ian|y)|\bpasta\b|\bpizza",
        "Japanese": r"\bjapan(?:ese)?\b|\bsushi",
    },
    "priceRange": {
        "less than £20": rf"\b(?:{_LOWER})\s*{_POUND}(?:20|twenty)\b",
        "£20-25": rf"\b{_POUND}(?:20|twenty)\s*(?:-|to|and|–|or|through)\s*(?:-\s*)?{_POUND}(?:25|twenty)",
        "more than £30": rf"\b(?:{_HIGHER})\s*{_POUND}(?:30|thirty)\b"
        r"|(?:30|thirty)\s*(?:pounds|£)?\s*(?:\+|plus|and (?:up|above|over)|or more)",
        "cheap": r"\bcheap|\binexpensive|\baffordabl|\bbudget|\blow[\s-]cost|\beconomical|"
        + _priced("low|lower|small|good|great value"),
        "moderate": r"\bmoderat|\bmid(?:dle|dl)?[\s-]*(?:range|price|priced|level|cost)|\breasonabl|"
        + _priced("average|medium|fair|mid|midrange|mid-range|normal|decent|standard"),
        "high": r"\bexpensive|\bpricey|\bupscale|\bhigh[\s-]end|\bcostly|\bupmarket|"
        + _priced("high|higher|premium|above average"),
    },
    "customer rating": {
        "1 out of 5": _out_of_five("1", "one"),
        "3 out of 5": _out_of_five("3", "three"),
        "5 out of 5": _out_of_five("5", "five"),
        "low": r"\bpoorly|\bnot (?:recommended|well|highly|good)|\blow[\s-]+quality|"
        + _rated("low|lower|poor|bad|lowest|not well|not great|below average|terrible|negative|one"),
        "average": _rated("average|decent|moderate|medium|mediocre|ok|okay|averagely|fair|mid|middle|three|mixed"),
        "high": r"\bhighly|\bwell[\s-]+(?:liked|received|respected|regarded|known|loved|recommended)|\bpopular"
        r"|\bacclaimed|\brecommended|"
        + _rated("high|highly|higher|good|great|excellent|well|best|top|positive|highest|five|above average"),
    },
    "area": {
        "city centre": r"\b(?:cit(?:y|ies)|town|downtown|central|centre of|center of|cent(?:er|re)\b|inner)",
        "riverside": r"\briver|\bwater(?:side|front)|\bthames|\bbank of",
    },
    "familyFriendly": {"no": _UNFRIENDLY, "yes": _FRIENDLY},
}
FORMS = {slot: {value: re.compile(form) for value, form in forms.items()} for slot, forms in _SOURCES.items()}
"""By slot and value."""
