import pytest

from octavo.text.tokenizer import Tokenizer
from tests.tokenizers import make_byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return Tokenizer.from_directory(make_byte_tokenizer(tmp_path_factory.mktemp("tokenizer")))
