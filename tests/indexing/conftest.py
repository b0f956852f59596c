"""Images to index, and a model that needs no weights: those of the tests of search."""

from search.conftest import model, photos  # noqa: F401 - fixtures
