"""Dates as they are written in cells of texts."""

import re
from datetime import datetime

__all__ = ["DATE", "date_of"]

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_TIME = (
    r"(?:[T ]+(?P<H>\d{1,2}):(?P<M>\d{2})(?::(?P<S>\d{2})(?:[.,]\d+)?)?\s*"
    r"(?:(?P<half>[ap])\.?m\.?|Z|[+-]\d\d:?\d\d)?)?"
)
#: The pattern of dates. The groups ``a`` and ``b`` are numbers of day and month in either order,
#: with ``t`` between them. A year of two digits is only clear beside the name of a month.
DATE = re.compile(
    rf"(?:(?P<y>\d{{4}})(?P<s>[-/.])(?P<m>\d{{1,2}})(?P=s)(?P<d>\d{{1,2}})"
    rf"|(?P<a>\d{{1,2}})(?P<t>[-/.])(?P<b>\d{{1,2}})(?P=t)(?P<y1>\d{{4}})"
    rf"|(?P<d2>\d{{1,2}})[-/. ]{{0,2}}(?P<m2>{_MONTH})[-/., ]{{0,2}}"
    rf"(?P<y2>\d{{4}}|(?<=[-/. ])\d{{2}})"
    rf"|(?P<m3>{_MONTH})\.?[- ](?P<d3>\d{{1,2}})(?:st|nd|rd|th)?,?[- ](?P<y3>\d{{4}})){_TIME}",
    re.IGNORECASE,
)


def date_of(match: re.Match, days_first: bool) -> datetime:
    """The date of a match of :data:`DATE`.

    :param bool days_first: Whether group ``a`` is the day, not ``b``.
    :raises ValueError: If there is no such day or time.
    """
    day, month = (match["a"], match["b"]) if days_first else (match["b"], match["a"])
    day = match["d"] or match["d2"] or match["d3"] or day
    year = match["y"] or match["y1"] or match["y2"] or match["y3"]
    if len(year) == 2:  # as in POSIX
        year = f"{'20' if year < '69' else '19'}{year}"
    name = match["m2"] or match["m3"]
    month = _MONTHS.index(name[:3].lower()) + 1 if name else int(match["m"] or month)
    hour = int(match["H"] or 0)
    if match["half"]:
        if not 1 <= hour <= 12:
            raise ValueError(f"There is no hour {hour} of half a day.")
        hour = hour % 12 + 12 * (match["half"].lower() == "p")
    return datetime(int(year), month, int(day), hour, int(match["M"] or 0), int(match["S"] or 0))
