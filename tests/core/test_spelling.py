"""Names of sources, views and tables are one however they are spelled, as in Spark."""

from holdfast.core.spelling import Names, respelled, spelled, taken


def test_a_name_is_found_in_every_spelling_and_keeps_its_own() -> None:
    names = Names({"Orders": 1, "payments": 2})
    assert (names["orders"], names["PAYMENTS"], "oRDERS" in names, "order" in names) == (1, 2, True, False)
    assert (list(names), dict(names), len(names)) == (["Orders", "payments"], {"Orders": 1, "payments": 2}, 2)
    names["ORDERS"] = 3
    assert dict(names) == {"Orders": 3, "payments": 2}
    del names["orders"]
    assert list(names) == ["payments"]


def test_a_spelling_is_found_among_those_that_are_known() -> None:
    assert spelled("orders", ["Payments", "ORDERS"]) == "ORDERS"
    assert spelled("order", ["ORDERS"]) is None
    assert respelled({"Orders": 1, "gone": 2}, ["orders", "new"]) == {"orders": 1, "gone": 2}


def test_a_collision_is_told_with_both_names() -> None:
    assert "the view 'orders' and 'Orders'" in taken("view", "orders", "Orders")
    assert taken("view", "a", "a") == "the name 'a' is taken: sources, views and tables share their names"
