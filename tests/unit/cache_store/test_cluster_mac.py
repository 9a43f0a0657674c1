"""MACs of the cluster: the first key signs, each is believed, no other is."""

from __future__ import annotations

from cache_store.cluster_mac import MAC_BYTES, fits, sign_body

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
WHAT, OTHER_WHAT = b"sc-this", b"sc-that"


def test_two_keys_believe_each_other_and_one_alone_itself() -> None:
    of_old, of_new = (sign_body(key, b"body", WHAT) for key in (OLD + NEW, NEW + OLD))
    assert (of_old, of_new) == tuple(sign_body(key, b"body", WHAT) for key in (OLD, NEW))
    for keys in (OLD + NEW, NEW + OLD):
        assert fits(keys, b"body", of_old, WHAT)
        assert fits(keys, b"body", of_new, WHAT)
    assert fits(OLD, b"body", of_old, WHAT)
    assert not fits(OLD, b"body", of_new, WHAT)


def test_nothing_else_fits() -> None:
    mac = sign_body(OLD, b"body", WHAT)
    assert len(mac) == MAC_BYTES
    assert not fits(OLD + NEW, b"bodx", mac, WHAT)
    assert not fits(OLD + NEW, b"body", mac, OTHER_WHAT)
    assert not fits(OLD + NEW, b"body", mac[:-1], WHAT)
    assert not fits(OLD + NEW, b"body", b"", WHAT)
