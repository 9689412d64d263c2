"""The errors that Leadline raises, and its notes on those of the user; an InputError says what to do."""

from leadline.text import clean, clean_lines, cut

# Heuristic: a longer message can only come from quoting a damaged file.
MAX_MESSAGE_LENGTH = 4000


class LeadlineError(Exception):
    """Base class of every error that Leadline itself raises. Errors from your own code are passed on unchanged."""

    def __init__(self, message: str = "") -> None:
        super().__init__(clean_lines(cut(message, MAX_MESSAGE_LENGTH)))


class InputError(LeadlineError):
    """The model, batch, loss or target that was passed cannot be used."""

    def __init__(self, *, expected: str, got: str, fix: str) -> None:
        self.expected, self.got, self.fix = expected, got, fix
        super().__init__(f"expected {_line(expected)}\n     got {_line(got)}\n     fix {_line(fix)}")


class CopyError(InputError):
    """A model, optimizer or loss cannot be copied, or its copy still uses the original."""


class SchemaError(LeadlineError):
    """A saved record cannot be read: it is damaged, of another kind, or newer than this version."""


class AlertError(LeadlineError):
    """A watch with `on_alert="raise"` raised an alert; `alert` is its record."""

    def __init__(self, alert: object, message: str) -> None:
        self.alert = alert
        super().__init__(message)


class RuleError(LeadlineError):
    """A check is malformed: its docstring, code or examples do not meet the contract of all checks."""


# Notes on errors of the user's code: the exception stays the user's, and a note says what Leadline knows.

_NOTE_START = "leadline: "


def add_advice(error: BaseException, known: str, fix: str) -> None:
    """Add a note that says what Leadline knows about an error of the user's code, and what to do."""
    error.add_note(f"{_NOTE_START}{_line(known)}\n     fix: {_line(fix)}")


def add_first_advice(error: BaseException, known: str, fix: str) -> None:
    """Add a note as `add_advice` does, before all others, because it names the cause."""
    add_advice(error, known, fix)
    error.__notes__.insert(0, error.__notes__.pop())


def has_advice(error: BaseException) -> bool:
    return bool(advice_on(error))


def advice_on(error: BaseException) -> list[str]:
    """The notes that `add_advice` added, without their prefix."""
    notes = getattr(error, "__notes__", ())
    return [note.removeprefix(_NOTE_START) for note in notes if str(note).startswith(_NOTE_START)]


def install_extra(extra: str) -> str:
    """Return what installs an optional part of Leadline; it is not on a package index, so it comes from a clone."""
    return f"run pip install '.[{extra}]' in your clone of Leadline"


def _line(text: str) -> str:
    return clean(cut(text, MAX_MESSAGE_LENGTH // 3))


def summarize_error(error: BaseException) -> str:
    """Return the class of an error and the first line of its message, such as `ValueError: no labels`."""
    first = (str(error).strip().splitlines() or ["no reason given"])[0]
    return f"{type(error).__name__}: {first}"
