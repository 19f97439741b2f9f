"""Tables of traces: numbers as people read them."""

import numpy as np
import pytest

from ccl_lab.trace.render import cell, cells, html_table, text_table
from ccl_lab.trace.table import Table


@pytest.mark.parametrize(
    ("values", "name", "shown"),
    [
        ([187_600.125, 9_808.0, 0.0], "busy_us", ["187,600", "9,808", "0"]),
        ([1_049.0, 0.3], "time_us", ["1,049.0", "0.3"]),
        ([60.0, 0.42], "us", ["60.00", "0.42"]),
        ([0.04396, None], "busbw_gbytes_per_s", ["0.04396", "-"]),
        ([-15_400.0, 61.18], "later_us", ["-15,400", "61"]),
        ([0.0, 0.0], "idle_us", ["0", "0"]),
        ([3e-11], "s", ["3e-11"]),
        ([8_388_608, -1], "nbytes", ["8,388,608", "-1"]),
        ([123_456, 7], "op_id", ["123456", "7"]),
        ([131_071], "last_rank", ["131071"]),
        ([True, "tx", None], "direction", ["True", "tx", "-"]),
        ([float("inf"), 2.0], "x", ["inf", "2.000"]),
        ([], "x", []),
    ],
)
def test_cells_of_a_column(values: list, name: str, shown: list[str]) -> None:
    assert cells(values, name) == shown


def test_a_time_of_microseconds_has_no_exponent() -> None:
    assert cell(187_600.0) == "187,600" and cell(12.345) == "12.35" and cell(1_234_567) == "1,234,567"


def test_columns_line_up_and_heads_may_break() -> None:
    assert text_table(["rank", "busy_us"], [[0, 187_600.0], [10, 5.0]]) == "rank  busy_us\n0     187,600\n10          5"
    html = html_table(["busy_us"], [[187_600.0]], caption="<Ranks>")
    assert "<td>187,600</td>" in html and "busy_<wbr>us" in html and "&lt;Ranks&gt;" in html
    assert html_table(["a"], []).endswith("<tbody></tbody></table>")


def test_a_table_reads_the_same_in_text_and_html() -> None:
    table = Table("NICs", {"nic": np.arange(2), "nbytes": np.array([2_097_280, 64]), "mean": np.array([0.5, np.nan])})
    for shown in (repr(table), table._repr_html_()):
        assert "2,097,280" in shown and "0.5000" in shown and "-" in shown
