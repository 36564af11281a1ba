"""Promises of tables: one value for every output, and missing is not zero."""

from wattloop.core.table import Column, Table, records_csv


def test_one_table_has_all_its_forms() -> None:
    """People read formatted texts, and programs get the values."""
    columns = (Column("cap"), Column("energy (J)", lambda j: f"{j:.1f}", is_number=True))
    table = Table(columns, (("200 W", 12.345), ("=evil()", 1.0)), "a title")
    assert table.headers == ("cap", "energy (J)")
    assert table.texts() == [("200 W", "12.3"), ("=evil()", "1.0")]
    assert table.records()[0] == {"cap": "200 W", "energy (J)": 12.345}
    assert table.csv() == "cap,energy (J)\n200 W,12.345\n'=evil(),1.0\n"


def test_a_missing_value_is_neither_zero_nor_empty_for_people() -> None:
    """A dash for people, null in JSON, an empty cell in CSV."""
    table = Table.of(("a", "b", "c"), [(None, 1234.5678, True)], numbers=[1])
    assert table.texts() == [("-", "1,235", "yes")]
    assert table.records() == [{"a": None, "b": 1234.5678, "c": True}]
    assert table.csv() == "a,b,c\n,1234.5678,True\n"
    assert [column.is_number for column in table.columns] == [False, True, False]


def test_records_become_rows() -> None:
    table = Table.from_records([3, 4], {"n": str, "square": lambda n: n * n}, numbers=["square"])
    assert table.texts() == [("3", "9"), ("4", "16")]
    assert table.columns[1].is_number
    assert records_csv([{"a": 1}, {"a": 2, "b": 3}]) == "a,b\n1,\n2,3\n"
    assert records_csv([], "a") == "a\n"


def test_columns_are_left_out_by_name_or_when_empty() -> None:
    table = Table.of(("a", "b", "c"), [("1", "", "x"), ("2", "", "")])
    assert table.without("a", "unknown").headers == ("b", "c")
    assert table.without_empty().texts() == [("1", "x"), ("2", "")]
    assert Table.of(("a", "b"), ()).without_empty().headers == ("a", "b")
