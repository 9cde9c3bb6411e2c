"""groups.get_expert_* raised a ConfigError, so that hasattr() raised in place of answering."""

import pytest

from penstock.utils import groups


@pytest.mark.parametrize(
    "name", ["get_expert_parallel_group", "_get_expert_parallel_group", "_get_max_expert_size"]
)
def test_hasattr_answers(name):
    assert not hasattr(groups, name)


def test_it_is_said_why():
    with pytest.raises(AttributeError, match="there is no expert parallelism"):
        groups._get_expert_parallel_group("ep_size_2")
