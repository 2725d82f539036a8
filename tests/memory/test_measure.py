import pytest

from kvconn.memory.measure import LAYOUTS, measure_copies


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_measurement_says_what_it_moved_and_against_what(layout):
    figures = measure_copies(
        4096, layers=4, blocks_per_chunk=2, total_bytes=1 << 20, layout=layout, rounds=1
    )
    assert [f["op"] for f in figures] == ["gather", "scatter"]
    for figure in figures:
        assert figure["page_bytes"] == 4096
        assert figure["chunk_bytes"] == 4096 * 4 * 2
        assert figure["threads"] == 1
        assert figure["gbps"] / figure["memcpy_gbps"] == pytest.approx(figure["ratio"])


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="choose one of"):
        measure_copies(4096, layout="diagonal", total_bytes=1 << 20)
