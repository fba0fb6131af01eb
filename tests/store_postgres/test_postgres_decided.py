"""What is known of drawn numbers: never more than the server promises, also when somebody sets them back."""

from asyncqueue.stores.postgres.floor import Decided, Signs

LAST = Signs(first=0, last=30, oldest=9, xact=11, server="s", redrives=0)


def test_what_was_drawn_before_a_look_is_decided_when_all_who_may_have_drawn_it_have_ended():
    known = Decided("s", seq=10, last=20, next_seq=15, waits_for=5)
    assert known.after(LAST) == Decided("s", seq=15, last=30, next_seq=20, waits_for=11)
    assert known.after(LAST._replace(oldest=4)) == known._replace(last=30)


def test_a_server_that_was_changed_or_a_sequence_that_was_set_back_decides_nothing():
    known = Decided("s", seq=10, last=20, next_seq=15, waits_for=5)
    assert known.after(LAST._replace(server="other")) == Decided("other", last=30)
    assert known.after(LAST._replace(last=3)) == Decided("s", last=3)
