"""Records of requests: bounded, by tenant, append-only."""

from __future__ import annotations

from services.router.records import Arrived, Ended, RequestRecords


def test_a_record_is_found_by_its_tenant_only() -> None:
    records = RequestRecords()
    record = records.open("acme", "r")
    record.add(Arrived(1.0, "m"))
    record.add(Ended("OK", 3, None))
    assert records.find("acme", "r") is record
    assert record.entries == [Arrived(1.0, "m"), Ended("OK", 3, None)]
    assert records.find("globex", "r") is None


def test_the_oldest_goes_where_it_is_full_and_a_new_run_takes_the_place_of_the_old() -> None:
    records = RequestRecords(max_records=2)
    first = records.open("acme", "1")
    records.open("acme", "2")
    again = records.open("acme", "1")
    assert again is not first
    records.open("acme", "3")
    assert records.find("acme", "2") is None
    assert records.find("acme", "1") is again
