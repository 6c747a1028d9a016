"""The templates, and how a page is made of one. Used by :mod:`exporter.console.visiting`.

Jinja, babel and the templates are loaded when the first page is asked for, on a thread: an exporter whose console
nobody opens neither waits for them nor holds them. A page is made on the event loop in slices between which pushes get
their turn, of values that were collected before.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from markupsafe import Markup

from exporter.console.labels import LABELS
from exporter.console.languages import DEFAULT, HTML_LANG, LANGUAGES, Texts

if TYPE_CHECKING:
    from jinja2 import Environment

SLICE_SECONDS: Final = 0.001
"""Longest time for which a page keeps others waiting."""

_T = TypeVar("_T")


class Pages:
    """All templates in all languages.

    Args:
        every: what every template has besides the values of its page.
    """

    def __init__(self, every: Mapping[str, Any]) -> None:
        self._every = dict(every)
        self._environments: dict[str, Environment] = {}
        self._texts: dict[str, Texts] = {}
        self._loading = asyncio.Lock()

    async def environment(self, language: str) -> Environment:
        """The templates of one language, compiled."""
        if language not in self._environments:
            async with self._loading:
                if language not in self._environments:
                    self._environments[language] = await asyncio.to_thread(self._load, language)
        return self._environments[language]

    async def render(self, template: str, language: str, values: Mapping[str, Any]) -> bytes:
        """The page as UTF-8."""
        found = (await self.environment(language)).get_template(template)
        pieces = await in_slices(found.generate(**values))
        return "".join(pieces).encode("utf-8", "replace")

    def gettext(self, language: str, text: str) -> str:
        """A text in a language whose pages are loaded; as it is where they are not."""
        found = self._texts.get(language)
        return found.gettext(text) if found is not None else text

    def _load(self, language: str) -> Environment:
        texts = self._texts[language] = Texts(language)
        return make_environment(texts, self._every)


def make_environment(texts: Texts, every: Mapping[str, Any]) -> Environment:
    """The templates of one language, each compiled."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateError

    from exporter.console.shown import Shown

    language = texts.language
    made = Environment(
        loader=PackageLoader("exporter.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        extensions=["jinja2.ext.i18n", "jinja2.ext.do"],
    )
    made.policies["ext.i18n.trimmed"] = True
    install: Callable[..., None] = made.install_gettext_callables  # type: ignore[attr-defined]
    install(texts.gettext, texts.ngettext, newstyle=True)
    made.filters.update(Shown(language, texts.gettext).filters())

    def label(kind: str, name: str) -> str:
        """What a state, severity, phase or signal is called; its own name where it has no other."""
        return texts.gettext(LABELS[kind].get(name, name)) if name else ""

    def told(text: str) -> str:
        """A constant text of the program; marked as English where it is, for whoever has it read out."""
        found = texts.gettext(text)
        is_english = language != DEFAULT and found == text
        return Markup('<span lang="en">{}</span>').format(text) if is_english else found

    def names(kind: str) -> dict[str, str]:
        """All names of one kind, for a script."""
        return {name: texts.gettext(text) for name, text in LABELS[kind].items()}

    made.globals.update(every, lang=language, html_lang=HTML_LANG[language], languages=LANGUAGES)
    made.globals.update(said=texts.gettext, told=told, label=label, names=names)
    for name in made.list_templates(["html"]):
        with contextlib.suppress(TemplateError):  # its own page says it, and the others are there
            made.get_template(name)
    return made


async def in_slices(work: Iterable[_T], seconds: float = SLICE_SECONDS) -> list[_T]:
    """All that ``work`` gives, while others on the event loop get their turn."""
    found, began = [], time.perf_counter()
    for one in work:
        found.append(one)
        if time.perf_counter() - began > seconds:
            await asyncio.sleep(0)
            began = time.perf_counter()
    return found
