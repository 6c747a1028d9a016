"""The texts of the console that are translated, from where they stand; and the catalogue brought up to date with them.

``python -m exporter.console.extraction`` says what a catalogue lacks, and with ``--update`` adds it, untranslated, and
takes out what is not used any more. For those who change a page; a test compares, too.

Texts are in the templates (``_("…")``), in code (``N_("…")``), and in the detectors: what a finding means and what to
try are constants there, which is most of what somebody reads at night.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.pofile import read_po, write_po
from jinja2.ext import babel_extract

from exporter.console.languages import DEFAULT, LANGUAGES

KEYWORDS: Final[dict[str, Any]] = {"_": None, "gettext": None, "ngettext": (1, 2), "N_": None}
TEMPLATE_OPTIONS: Final = {"trimmed": "true", "extensions": "jinja2.ext.do"}
NOT_DETECTORS: Final = frozenset(("base.py", "described.py", "reference.py", "presets.py", "options.py", "registry.py"))
_ADVICE: Final = re.compile(r"[A-Za-z_]+\.[a-z_.]+\b.*|VERL_\w+.*|[a-z][a-zA-Z' ]+: .*")
_MEANING: Final = re.compile(r"[A-Z][^{}]* [^{}]* [^{}]*\.")
MANY_WORDS: Final = 7
"""Of a text that is neither a sentence nor about a setting: fewer are a part of a summary."""

Message = str | tuple[str, str]


def messages() -> dict[Message, list[str]]:
    """Every text, with the files in which it stands; of a plural both forms."""
    found: dict[Message, list[str]] = {}
    for message, place in [*_of_templates(), *_of_code(), *_of_detectors()]:
        places = found.setdefault(message, [])
        if place not in places:
            places.append(place)
    return found


def catalogue_path(language: str) -> Path:
    return Path(str(resources.files("exporter.console") / "languages" / f"{language}.po"))


def read(language: str) -> Catalog:
    """The catalogue of a language, fuzzy messages included."""
    with catalogue_path(language).open("rb") as file:
        return read_po(file, locale=language, abort_invalid=True)


def missing(language: str) -> list[Message]:
    """Texts that have no translation, or one that nobody has looked at since the text changed."""
    known = {_id(message.id): message for message in read(language) if message.id}
    return [one for one in messages() if one not in known or not _done(known[one])]


def unused(language: str) -> list[Message]:
    """Translations of texts that are nowhere any more."""
    wanted = messages()
    return [_id(message.id) for message in read(language) if message.id and _id(message.id) not in wanted]


def update(language: str) -> None:
    """Write the catalogue anew with what is in use; translations stay."""
    old = {_id(message.id): message for message in read(language) if message.id}
    made = Catalog(locale=language, project="verl-sentinel", charset="utf-8", fuzzy=False)
    for one, places in sorted(messages().items(), key=lambda item: (item[1][0], str(item[0]))):
        before = old.get(one)
        # Without line numbers: they would change with every edit of a page.
        where = [(place, None) for place in places[:1]]
        made.add(one, before.string if before is not None else None, locations=where)  # type: ignore[arg-type]
    header = [f'"Language: {language}\\n"', '"MIME-Version: 1.0\\n"', '"Content-Type: text/plain; charset=utf-8\\n"']
    header += ['"Content-Transfer-Encoding: 8bit\\n"', '"Plural-Forms: nplurals=1; plural=0;\\n"']
    body = BytesIO()
    write_po(body, made, omit_header=True, width=100, include_lineno=False)
    text = "\n".join(['msgid ""', 'msgstr ""', *header, "", body.getvalue().decode()])
    catalogue_path(language).write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def _id(given: Any) -> Message:
    return (str(given[0]), str(given[1])) if isinstance(given, (tuple, list)) else str(given)


def _done(message: Any) -> bool:
    text = message.string[0] if isinstance(message.string, (tuple, list)) else message.string
    return bool(text) and not message.fuzzy


def _of_templates() -> Iterator[tuple[Message, str]]:
    folder = Path(str(resources.files("exporter.console") / "templates"))
    for path in sorted(folder.glob("*.html")):
        for _, _, found, _ in babel_extract(BytesIO(path.read_bytes()), list(KEYWORDS), [], TEMPLATE_OPTIONS):
            yield _message(found), f"templates/{path.name}"


def _of_code() -> Iterator[tuple[Message, str]]:
    for path in sorted(Path(str(resources.files("exporter.console"))).glob("*.py")):
        for _, found, _, _ in extract("python", BytesIO(path.read_bytes()), KEYWORDS):
            yield _message(found), path.name


def _message(found: Any) -> Message:
    if isinstance(found, (tuple, list)):
        texts = [str(one) for one in found if one]
        return (texts[0], texts[1]) if len(texts) > 1 else texts[0]
    return str(found)


def _of_detectors() -> Iterator[tuple[Message, str]]:
    for path in sorted(Path(str(resources.files("exporter.detectors"))).glob("*.py")):
        if path.name not in NOT_DETECTORS:
            for text in fixed_texts(path.read_text(encoding="utf-8")):
                yield text, f"detectors/{path.name}"


def fixed_texts(source: str) -> list[str]:
    """The constant meanings and pieces of advice in a detector's source.

    Those are sentences, and words after the name of a setting. What stands in docstrings, in errors and in texts that
    numbers are put into is none.

    >>> fixed_texts('LR = "optim.lr: lower it"\\ndef f(): return V(meaning="All is lost here.", summary=f"{x} is 1.")')
    ['optim.lr: lower it', 'All is lost here.']
    """
    tree = ast.parse(source)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.JoinedStr, ast.Raise)):
            left_out.update(id(inner) for inner in ast.walk(node))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out.add(id(node.value))
    texts = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out
    )
    return list(dict.fromkeys(text for text in texts if _is_fixed_text(text)))


def _is_fixed_text(text: str) -> bool:
    words = len(text.split())
    if words < 2 or "{" in text or text != text.strip():
        return False
    return words >= MANY_WORDS or bool(_MEANING.fullmatch(text) or _ADVICE.fullmatch(text))


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code is 1 where something is to be translated."""
    parser = argparse.ArgumentParser(prog="python -m exporter.console.extraction", description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the catalogues anew")
    options = parser.parse_args(argv)
    left = 0
    for language in LANGUAGES:
        if language == DEFAULT:
            continue
        if options.update:
            update(language)
        for one in missing(language):
            print(f"{language}: not translated: {one!r}")
            left += 1
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
