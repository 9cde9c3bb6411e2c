"""A name with "groups" in it that penstock.utils lacks was looked up there again, without an end.

hasattr(penstock.utils, "expert_groups") was a RecursionError.
"""

import penstock.utils


def test_an_unknown_name_is_not_there():
    assert not hasattr(penstock.utils, "expert_groups")
    assert penstock.utils.groups.__name__ == "penstock.utils.groups"
