"""How people put the values of E2E's slots into words: regular expressions over lower-cased text without accents."""

from __future__ import annotations

import re

_RATED = (
    r"(?:rat(?:ed|ings?|es?)|reviews?|reviewed|stars?|scores?|scored|customers?|feedback|marks|ranked|rankings?"
    r"|reputations?)"
)
_PRICED = r"(?:pric(?:e|es|ed|ing|ey)|costs?|costing|range|ranges|ranged|end|charges?|budget|bill)"
_GAP = r"(?:[\s,-]+(?!and\b|but\b|with\b|is\b|it\b|£)[\w']+){0,2}?[\s-]+"
_BACK = (
    r"(?:\s+(?:customers?|ratings?|rated|range|prices?|is|are|was|were|been|being|as|of|at|a|an|the|in|by|from|it|its"
    r"|has|very|quite|only|just|average[ds]?)){0,4}\s+"
)
_POUND = r"(?:£|\$|€|l|e|gbp|pounds?)?\s*"
_LOWER = r"(?:less|lower|cheaper|no more|not more)\s+than|under|below|up to|within|beneath"
_HIGHER = r"(?:more|higher|greater)\s+than|over|above|upwards? of|at least|from|exceed\w*|minimum of"
_NOT = r"(?:not?|\w*n't|non|none|never|without|un|cannot)"
_KIDS = r"(?:famil(?:y|ies)|kids?|child(?:ren)?|child's|childrens)"
_ADULT = r"\badults?[\s-]+(?:only|oriented|friendly)|\bno (?:kids|children|families)|\badults?\b(?! and)|\bchildless"
_UNFRIENDLY = (
    rf"\b{_NOT}\b(?! (?:only|far|just))[\s-]*(?:(?!and\b|but\b|is\b|it\b)\w+[\s-]+){{0,7}}?{_KIDS}"
    rf"|\b{_KIDS}[\s-]+(?:un\w+|free|\w+\s+is(?:n't| not))|{_ADULT}"
    rf"|\bleave (?:the |your )?{_KIDS}"
    rf"|\b{_KIDS}\b(?:(?!\b(?:and|but|it)\b)[\w\s-]){{0,30}}"
    r"\b(?:not?|n't|aren't|isn't|unwelcome|unfriendly|discouraged)\b(?! (?:far|only|expensive))"
)
_FRIENDLY = rf"\b{_KIDS}\b|\bfamilial|\bchildcare|\ball ages?\b|\beveryone|\byoungsters"


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
        "coffee shop": r"\bcoffee[\s-]*(?:shop|house|bar|place)|\bcafe",
        "pub": r"\bpubs?\b|\bbars?\b|\btavern|\bpublic house",
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
        "low": rf"\b{_NOT} (?:\w+ ){{0,3}}?(?:recommended|well|highly|good|great|high)\b|\bpoorly|\blow[\s-]+quality|"
        + _rated("low|lower|poor|bad|lowest|not well|not great|below average|terrible|negative|one"),
        "average": _rated("average|decent|moderate|medium|mediocre|ok|okay|averagely|fair|mid|middle|three|mixed"),
        "high": r"\bhighly|\bwell[\s-]+(?:liked|received|respected|regarded|known|loved|recommended)|\bpopular"
        r"|\bacclaimed|"
        + _rated(
            "perfect|outstanding|favou?rably|high|highly|higher|good|great|excellent|well|best|top|positive|highest|five"
            "|above average"
        ),
    },
    "area": {
        "city centre": r"(?<!outside )(?<!outside the )(?<!north of )(?<!north of the )(?<!south of the )"
        r"(?<!east of the )(?<!west of the )\b(?:city|town|downtown|central|cent(?:er|re)\b|inner)",
        "riverside": r"\briver|\bwater(?:side|front)|\bthames|\bbank of",
    },
    "familyFriendly": {"no": _UNFRIENDLY, "yes": _FRIENDLY},
}

_HINTS: dict[str, dict[str, str]] = {
    "eatType": {
        "coffee shop": r"\bcoffee|\bshop\b",
        "pub": r"\b(?:ale|tap)[\s-]?house",
        "restaurant": r"\b(?:eat|eats|dine)\b",
    },
    "food": {
        "Chinese": r"\bnoodles?|\bchow mein",
        "English": r"\bbreakfast|\bbrit\b|\bfish (?:and|&) chips",
        "Fast food": r"\bburgers?\b|\bfries\b|\bquick (?:food|bite|meal)|\btake[\s-]?away|\bfast\b",
        "French": r"\bwines?\b.*\bcheeses?\b|\bcheeses?\b.*\bwines?\b",
        "Indian": r"\bcurry\b",
        "Italian": r"\bspaghetti|\brisotto",
        "Japanese": r"\bramen",
    },
    "priceRange": {
        "less than £20": r"\bfor less\b|\bless £20|\b19\.99",
        "£20-25": r"\b20\b.{0,8}\b25\b",
        "more than £30": r"\b(?:30|thirty)\b",
        "cheap": r"\bfor less\b|\bwell[\s-]priced|\breduced price|\bvalue pric",
        "moderate": r"\bpric\w+ averagely|\b(?:well|nice|nicely)[\s-]pric",
        "high": r"\bexclusive|\bluxur|\bfancy",
    },
    "customer rating": {
        "1 out of 5": r"\brating of (?:1|one)\b",
        "3 out of 5": r"\brating of (?:3|three)\b",
        "5 out of 5": r"\brating of (?:5|five)\b|\bexcellent",
        "high": r"\brecommended|\bexcellent|\bfavou?rite",
    },
    "area": {"city centre": r"\b(?:cit(?:y|ies)|cent(?:er|re)|central)\b", "riverside": r"\bbanks?\b|\bby the water"},
}
FORMS = {slot: {value: re.compile(form) for value, form in forms.items()} for slot, forms in _SOURCES.items()}
"""By slot and value."""
HINTS = {slot: {value: re.compile(form) for value, form in forms.items()} for slot, forms in _HINTS.items()}
"""The same, of what says a value only where the input has it: a text without it would not count as having it."""
EQUIVALENT = {
    "priceRange": ({"cheap", "less than £20"}, {"moderate", "£20-25"}, {"high", "more than £30"}),
    "customer rating": ({"low", "1 out of 5"}, {"average", "3 out of 5"}, {"high", "5 out of 5"}),
}
"""Values that stand for one another."""
SURE = {
    "eatType": re.compile(r"\bpubs?\b|\bcoffee[\s-]*shop|\bcafe"),
    "customer rating": re.compile(r"\b(?:ratings?|rated?|reviews?|stars?|out of (?:5|five))\b"),
}
"""What a text must say besides for a value found to be sure of its slot, where the input does not have the slot."""


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split("|"))


NAMES = {
    "name": _names(
        "alimentum|aromi|bibimbap house|blue spice|browns cambridge|clowns|cocum|cotto|cambridge blue|cricketers|"
        "dumpling tree|eagle|fitzbillies|giraffe|golden curry|golden palace|green man|loch fyne|midsummer house|mill|"
        "olive grove|phoenix|plough|punter|rice boat|strada|taste of cambridge|travellers rest beefeater|twenty two|"
        "vaults|waterman|wildwood|wrestlers|zizzi"
    ),
    "near": _names(
        "all bar one|avalon|bakers|burger king|cafe adriatic|cafe brazil|cafe rouge|cafe sicilia|clare hall|"
        "crowne plaza hotel|express by holiday inn|portland arms|rainbow vegetarian cafe|raja indian cuisine|ranch|"
        "rice boat|six bells|sorrento|yippee noodle bar"
    ),
}
"""Of the data set, as they stand in such text, without "the"."""
ALIASES = {
    "crowne plaza hotel": ("crowne plaza", "crown plaza"),
    "express by holiday inn": ("holiday inn",),
    "raja indian cuisine": ("raja",),
    "rainbow vegetarian cafe": ("rainbow vegetarian", "rainbow cafe"),
    "travellers rest beefeater": ("travellers rest", "travelers rest"),
    "browns cambridge": ("browns",),
    "all bar one": ("all-bar-one",),
    "yippee noodle bar": ("yippee",),
}
"""Other forms of names."""
