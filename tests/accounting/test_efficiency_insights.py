import pytest

from tests.accounting.windows import domain, window
from wattloop.accounting.device_efficiency import efficiencies, insights, node_imbalance


def codes(cpu_w=None, gpu_w=(), **over):
    domains = [domain(f"gpu:{i}", 10 * w, tdp_w=300.0, **over) for i, w in enumerate(gpu_w)]
    if cpu_w is not None:
        domains.append(domain("cpu:0/package", 10 * cpu_w, tdp_w=200.0))
    return {i.code: i.text for i in insights(efficiencies(window(10, *domains)))}


@pytest.mark.parametrize(
    ("cpu_w", "gpu_w", "expected"),
    [
        (190, (290,), {"high_efficiency"}),
        (60, (100,), {"low_efficiency"}),
        (120, (180,), set()),
        (40, (270,), {"cpu_underload"}),
        (180, (60,), {"gpu_underload"}),
        (None, (280, 280, 100), {"gpu_imbalance"}),
        (None, (200, 160), set()),
        (150, (), set()),
    ],
)
def test_each_insight_of_the_document_is_given_when_it_holds(cpu_w, gpu_w, expected):
    """Low and high efficiency, CPU and GPU underload and imbalance of GPUs each give one
    insight.
    """
    assert set(codes(cpu_w, gpu_w)) == expected


def test_the_underused_gpu_is_named():
    """The text says which device and how far it is from the others."""
    assert codes(None, (280, 280, 100))["gpu_imbalance"].startswith("gpu:2 worked at 0.33")


def test_under_a_cap_the_text_names_the_cap():
    """The text of a capped GPU names the cap as its limit."""
    note = "enforced power limit 300 W of 700 W"
    assert note in codes(None, (295,), tdp_note=note)["high_efficiency"]


def test_a_node_underused_compared_with_the_others_is_named():
    """Only the node that is clearly below the median of the others is named."""
    found = node_imbalance({"n1": 0.8, "n2": 0.82, "n3": 0.3})
    assert [i.code for i in found] == ["node_imbalance"]
    assert "node n3" in found[0].text
    assert node_imbalance({"n1": 0.8}) == ()
    assert node_imbalance({}) == ()
