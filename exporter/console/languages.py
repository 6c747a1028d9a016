"""Which language a visitor gets, and the texts of it. Used by the pages.

English is what stands in templates and code; Chinese is in ``languages/zh.po``, which babel reads as it is: there is
nothing to compile. A message that the catalogue lacks stays English.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

LANGUAGES: Final = {"en": "English", "zh": "中文"}
"""By the code in the address and the cookie: each in its own words."""
HTML_LANG: Final = {"en": "en", "zh": "zh-Hans"}
DEFAULT: Final = "en"


def N_(text: str) -> str:
    """Mark a text that is translated where it is shown."""
    return text


def chosen(asked: str, remembered: str, accept: str) -> str:
    """The language of a visitor: what the address asks for, else the cookie, else the header Accept-Language.

    >>> chosen("", "", "de, zh-CN;q=0.9, en;q=0.8"), chosen("", "en", "zh"), chosen("zh", "en", "")
    ('zh', 'en', 'zh')
    """
    for one in (asked, remembered):
        if one in LANGUAGES:
            return one
    return preferred(accept)


def preferred(accept: str) -> str:
    """The first language of ours in an Accept-Language header (RFC 9110, 12.5.4); English where none is.

    >>> preferred("en;q=0.5,zh;q=0.9"), preferred("zh;q=0, en"), preferred("fr;q=x"), preferred("*")
    ('zh', 'en', 'en', 'en')
    """
    best, found = 0.0, DEFAULT
    for part in accept[:1000].split(","):
        name, _, parameters = part.partition(";")
        language = name.strip().lower().partition("-")[0]
        quality = _quality(parameters)
        if language in LANGUAGES and quality > best:
            best, found = quality, language
    return found


def _quality(parameters: str) -> float:
    name, _, value = parameters.partition("=")
    if name.strip().lower() != "q":
        return 1.0
    try:
        return min(1.0, float(value))
    except ValueError:
        return 0.0


class Texts:
    """The messages of one language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._one: dict[str, str] = {}
        self._many: dict[str, str] = {}
        if language != DEFAULT:
            self._read()

    def _read(self) -> None:
        from babel.messages.pofile import read_po

        with (resources.files("exporter.console") / "languages" / f"{self.language}.po").open("rb") as file:
            catalogue = read_po(file, locale=self.language)
        for message in catalogue:
            if not message.id or message.fuzzy:
                continue
            # Chinese has one form for every number.
            text = str(message.string[0] if isinstance(message.string, (tuple, list)) else message.string or "")
            if isinstance(message.id, (tuple, list)):
                self._many[str(message.id[0])] = text
            else:
                self._one[str(message.id)] = text

    def gettext(self, text: str) -> str:
        return self._one.get(text) or text

    def ngettext(self, one: str, many: str, number: int) -> str:
        if self.language == DEFAULT:
            return one if number == 1 else many
        return self._many.get(one) or (one if number == 1 else many)
