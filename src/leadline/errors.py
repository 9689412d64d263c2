"""The errors Leadline raises; each says what was expected, what came, and what to do."""

from leadline.text import clean, clean_lines, cut

LONGEST = 4000  # characters of a message; ours: what quotes more is quoting a damaged file


class LeadlineError(Exception):
    """Base of every error that Leadline itself raises. What your model raises stays your model's error."""

    def __init__(self, message: str = "") -> None:
        super().__init__(clean_lines(cut(message, LONGEST)))


class InputError(LeadlineError):
    """The model, batch, loss or target that was passed cannot be used as it is."""

    def __init__(self, *, expected: str, got: str, fix: str) -> None:
        self.expected, self.got, self.fix = expected, got, fix
        super().__init__(f"expected {_line(expected)}\n     got {_line(got)}\n     fix {_line(fix)}")


class SchemaError(LeadlineError):
    """A saved trace or report cannot be read: it is damaged, of another kind, or newer than this version."""


class AlertError(LeadlineError):
    """A watch with `on_alert="raise"` saw something wrong; `alert` is the record of it."""

    def __init__(self, alert: object, message: str) -> None:
        self.alert = alert
        super().__init__(message)


class RuleError(LeadlineError):
    """A rule is ill-formed: its docstring, code or examples break a promise that all rules make."""


def _line(text: str) -> str:
    return clean(cut(text, LONGEST // 3))
