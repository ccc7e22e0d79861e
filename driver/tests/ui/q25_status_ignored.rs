//! Q25: a completion whose status nobody looks at is a warning.
#![deny(unused)]
use ferroce::verbs::CqPoller;

pub fn ignored(poller: &mut CqPoller) {
    poller.poll(16, |wc| {
        wc.result();
    }).unwrap();
    poller.poll(16, |wc| {}).unwrap();
}

fn main() {}
