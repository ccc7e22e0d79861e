//! Polling and posting take `&mut`: two threads can't do it at once.
use ferroce::verbs::{CqPoller, Qp};

fn polled_twice(poller: &CqPoller) {
    poller.poll_one().unwrap();
}

fn rung_twice(qp: &Qp) {
    qp.ring_send();
}

fn copied(poller: CqPoller) -> (CqPoller, CqPoller) {
    (poller.clone(), poller)
}

fn main() {}
