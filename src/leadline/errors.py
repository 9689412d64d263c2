"""The errors that Leadline raises; an InputError says what was expected, what came, and what to do."""

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


class SchemaError(LeadlineError):
    """A saved record cannot be read: it is damaged, of another kind, or newer than this version."""


class AlertError(LeadlineError):
    """A watch with `on_alert="raise"` raised an alert; `alert` is its record."""

    def __init__(self, alert: object, message: str) -> None:
        self.alert = alert
        super().__init__(message)


class RuleError(LeadlineError):
    """A check is malformed: its docstring, code or examples do not meet the contract of all checks."""


def _line(text: str) -> str:
    return clean(cut(text, MAX_MESSAGE_LENGTH // 3))
