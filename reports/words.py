"""The catalogue of wording: every sentence that a report says on its own, by key.

A language is a table with the keys of `words_en`. What the diagnosis says itself (headlines,
claims, fixes) comes from the analyzers in English; `gpuprof.reports.sentences` translates it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gpuprof.diagnosis import Diagnosis
from gpuprof.errors import GpuprofError
from gpuprof.reports.sentences import Translator, translate
from gpuprof.reports.words_en import ENGLISH
from gpuprof.reports.words_zh import CHINESE


def language_of_environment() -> str:
    """What `GPUPROF_LANG` names, where that is a language of ours; else English."""
    named = os.environ.get("GPUPROF_LANG", "")
    return named if named in LANGUAGES else "en"


def translator(language: str) -> Translator | None:
    """Who says the analyzers' sentences in a language; None for English, which they are in."""
    if language == "en":
        return None
    return _chinese()


@lru_cache(maxsize=1)
def _chinese() -> Translator:
    from gpuprof.reports import (
        sentences_zh,
        sentences_zh_commands,
        sentences_zh_faults,
        sentences_zh_more,
        sentences_zh_nccl,
        sentences_zh_runs,
        sentences_zh_standing,
    )

    tables = (
        sentences_zh,
        sentences_zh_more,
        sentences_zh_runs,
        sentences_zh_standing,
        sentences_zh_faults,
        sentences_zh_nccl,
        sentences_zh_commands,
    )
    return Translator([pair for table in tables for pair in table.SENTENCES])


def speaker(language: str) -> Callable[[str], str]:
    """Says one of the analyzers' sentences in a language."""
    chosen = translator(language)
    return chosen.say if chosen is not None else str


def localized(diagnosis: Diagnosis, language: str) -> Diagnosis:
    """The diagnosis with its sentences in a language, where there is a translation.

    Raises:
        GpuprofError: the language is not one of `LANGUAGES`.
    """
    return translate(diagnosis, translator(catalog(language).language))


LANGUAGES: Mapping[str, Mapping[str, str]] = {"en": ENGLISH, "zh-CN": CHINESE}


@dataclass(frozen=True, slots=True)
class Catalog:
    """The wording of one language."""

    language: str
    texts: Mapping[str, str]

    def say(self, key: str, **values: object) -> str:
        """The text of `key` with its fields filled in; of `key.one` where `count` is one and there
        is such a text.

        Raises:
            KeyError: there is no such text: a fault of gpuprof, never of the input.
        """
        if str(values.get("count", "")) == "1":
            key = f"{key}.one" if f"{key}.one" in self.texts else key
        return self.texts[key].format(**values) if values else self.texts[key]

    def several(self, items: Iterable[str]) -> str:
        """`a, b, c` with the language's own separator."""
        return self.texts["points.list"].join(items)

    def clauses(self, parts: Iterable[str]) -> str:
        """Parts of one sentence, with the comma that stands between clauses."""
        return self.texts["points.clause"].join(parts)

    def labelled(self, name: str, value: str) -> str:
        """`name: value`."""
        return self.say("points.label", name=name, value=value)

    def aside(self, line: str, more: str) -> str:
        """`line (more)`."""
        return self.say("points.aside", line=line, more=more)

    def name(self, group: str, key: str) -> str:
        """The wording of a value that the diagnosis may hold, or the value itself when unknown."""
        return self.texts.get(f"{group}.{key}", key)


def catalog(language: str = "en") -> Catalog:
    """The wording of a language.

    Raises:
        GpuprofError: the language is not one of `LANGUAGES`.
    """
    texts = LANGUAGES.get(language)
    if texts is None:
        raise GpuprofError(
            f"no wording for the language {language!r}", hint=f"choose one of {sorted(LANGUAGES)}"
        )
    return Catalog(language, texts)
