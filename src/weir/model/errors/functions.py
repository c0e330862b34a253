"""Functions that are deployed."""

from weir.model.errors.base import WeirError


class FunctionError(WeirError):
    """A function whose code cannot be loaded, or does not do what functions do."""


class FunctionNotFoundError(WeirError):
    """No function of this name is deployed."""

    hint = "weir functions list shows those that are"


class FunctionExistsError(WeirError):
    """A function of this name is deployed already."""

    hint = "change it with weir functions update, or choose another name with --name"
