from wattloop.accounting.node import EIGHTY_PLUS, PSU_EFFICIENCY


def test_the_stated_efficiency_range_is_that_of_the_80_plus_table():
    """Default and half-width span Gold at 20% load to Titanium at 50%."""
    low, high = EIGHTY_PLUS["gold"][0.2], EIGHTY_PLUS["titanium"][0.5]
    assert round(PSU_EFFICIENCY.value - PSU_EFFICIENCY.half_width, 6) == low
    assert round(PSU_EFFICIENCY.value + PSU_EFFICIENCY.half_width, 6) == high
