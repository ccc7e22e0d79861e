//! File descriptors that run out or are thrown at the server. Alone in its process, since it sets the process's
//! limit and counts what is open.

mod common;

use std::os::fd::OwnedFd;

use common::{RawClient, Served, event, memfd, open_fds, send_with_fds};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const DMA_MAP: u16 = 2;
const SET_IRQS: u16 = 8;
const RESET: u16 = 13;
const EMFILE: u32 = 24;

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn refused_descriptors_are_closed_and_lost_ones_are_told() {
    let served = Served::new(16);
    let mut client = RawClient::new(&served);
    let events: Vec<OwnedFd> = (0..16).map(|_| event()).collect();
    let memory = memfd(0x1000, true);
    let before = open_fds();
    // Refused in each way: none of the descriptors stays open.
    let set = |flags, count| words(&[20, flags, 2, 0, count]);
    let map = |flags, size| words(&[32, flags, 0, 0, 0, 0, size, 0]);
    for (command, payload) in [
        (SET_IRQS, set(0x24, 15)),
        (SET_IRQS, set(0x24, 17)),
        (SET_IRQS, set(0x21, 16)),
        (SET_IRQS, vec![1, 2]),
        (DMA_MAP, map(3, 0x1000)),
        (DMA_MAP, map(3, 0)),
        (DMA_MAP, map(0, 0x1000)),
        (DMA_MAP, vec![]),
        (RESET, vec![]),
        (99, vec![]),
        (1, vec![0; 4]),
    ] {
        let answer = client.ask_with_fds(command, &payload, &events).unwrap();
        assert_eq!(answer.flags, 0x21, "{command} {payload:?}");
        assert_eq!(open_fds(), before, "{command} {payload:?}");
    }
    // A map that works and one that does not, over and over.
    for _ in 0..100 {
        for size in [0x1000, 0x2000] {
            let fds = std::slice::from_ref(&memory);
            let answer = client.ask_with_fds(DMA_MAP, &map(3, size), fds).unwrap();
            assert_eq!(answer.flags, if size == 0x1000 { 1 } else { 0x21 });
        }
        assert_eq!(open_fds(), before + 1);
        assert_eq!(client.ask(3, &words(&[24, 0, 0, 0, 0x1000, 0])).unwrap().flags, 1);
    }
    // A connection that ends in the middle of a message with descriptors.
    send_with_fds(&client.0, &[1, 0, 8], &events);
    drop(client);
    served.device.wait("detach", |s| s.detached == 1);
    let mut client = RawClient::new(&served);
    assert_eq!(open_fds(), before);

    // No room for more than a few: the kernel drops the rest, and the sender is told.
    let limit = getrlimit(Resource::Nofile);
    let used = std::fs::read_dir("/proc/self/fd").unwrap();
    let used: Vec<u64> = used
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let last = (0..).filter(|n| !used.contains(n)).nth(3).unwrap();
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(last + 1),
            maximum: limit.maximum,
        },
    )
    .unwrap();
    let answer = client.ask_with_fds(SET_IRQS, &set(0x24, 16), &events).unwrap();
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!((answer.flags, answer.error), (0x21, EMFILE));
    assert_eq!(open_fds(), before);
    let answer = client.ask_with_fds(SET_IRQS, &set(0x24, 16), &events).unwrap();
    assert_eq!(answer.flags, 1);
    assert_eq!(open_fds(), before + 16);
}
