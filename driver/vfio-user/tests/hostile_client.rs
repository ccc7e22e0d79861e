//! Our server against clients that break every rule (case V10).

mod common;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use common::{RawClient, Served, event, memfd, message, read_message, send_with_fds};
use ferroce_vfio_user::client::{Client, ClientOptions};
use ferroce_vfio_user::server::ServerOptions;
use proptest::prelude::*;

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const GET_REGION_INFO: u16 = 5;
const GET_IRQ_INFO: u16 = 7;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const RESET: u16 = 13;
const WRITE_MULTI: u16 = 15;

const EPERM: u32 = 1;
const ENOSPC: u32 = 28;
const E2BIG: u32 = 7;
const EEXIST: u32 = 17;
const EINVAL: u32 = 22;
const EMSGSIZE: u32 = 90;
const EOPNOTSUPP: u32 = 95;

/// Joins little-endian words.
fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn dma_map(flags: u32, offset: u64, iova: u64, len: u64) -> Vec<u8> {
    [
        words(&[32, flags]),
        [offset, iova, len].iter().flat_map(|v| v.to_le_bytes()).collect(),
    ]
    .concat()
}

fn dma_unmap(flags: u32, iova: u64, len: u64) -> Vec<u8> {
    [
        words(&[24, flags]),
        [iova, len].iter().flat_map(|v| v.to_le_bytes()).collect(),
    ]
    .concat()
}

fn access(offset: u64, region: u32, count: u32) -> Vec<u8> {
    [offset.to_le_bytes().to_vec(), words(&[region, count])].concat()
}

/// The error number of the answer to a command, 0 for success.
fn errno(client: &mut RawClient, command: u16, payload: &[u8], fds: &[OwnedFd]) -> u32 {
    let answer = client.ask_with_fds(command, payload, fds).expect("an answer");
    assert_eq!((answer.id, answer.command), (77, command));
    match answer.flags {
        0x21 => {
            assert_ne!(answer.error, 0);
            assert!(answer.payload.is_empty(), "an error reply is a header alone");
            answer.error
        }
        0x01 => 0,
        other => panic!("flags {other:#x}"),
    }
}

/// The server lives, and a well-behaved client finds it as new.
fn assert_serves(served: &Served) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let client = loop {
        match Client::connect(&served.path, ClientOptions::default()) {
            Ok(client) => break client,
            // The one before may not have been seen to leave.
            Err(e) => assert!(Instant::now() < deadline, "{e}"),
        }
    };
    let mut id = [0; 4];
    client.config_read(0, &mut id).unwrap();
    assert_eq!(id, [0xb3, 0x15, 0x13, 0x10]);
    assert!(served.device.state.lock().unwrap().maps.is_empty());
}

#[test]
fn connection_that_does_not_begin_with_a_good_version_is_closed() {
    let served = Served::new(1);
    let json = |text: &[u8]| [b"\0\0\x01\0", text].concat();
    for (command, payload, expected) in [
        (RESET, vec![], EINVAL),
        (VERSION, vec![0, 0], EINVAL),
        (VERSION, vec![1, 0, 0, 0], EOPNOTSUPP),
        (VERSION, json(b"{"), EINVAL),
        (VERSION, json(b"{\0"), EINVAL),
        (VERSION, json(&[b'['; 5000]), EINVAL),
        (VERSION, json(&vec![b' '; 100_000]), EINVAL),
    ] {
        let mut client = RawClient::silent(&served);
        let answer = client.ask(command, &payload).expect("an answer");
        assert_eq!(
            (answer.flags, answer.error),
            (0x21, expected),
            "{command} {payload:?}"
        );
        assert!(client.read().is_none(), "closed");
        served.device.wait("nobody attached", |s| s.attached == 0);
    }
    assert_serves(&served);
}

#[test]
fn version_is_agreed_downwards_and_once() {
    let served = Served::new(1);
    let mut client = RawClient::silent(&served);
    let text = b"\0\0\x09\0{\"capabilities\":{\"max_msg_fds\":8,\"write_multiple\":true,\"other\":[1]}}\0";
    let answer = client.ask(VERSION, text).unwrap();
    assert_eq!(answer.payload[..4], [0, 0, 1, 0]);
    let json = std::str::from_utf8(&answer.payload[4..]).unwrap();
    assert!(json.ends_with('\0'));
    // What QEMU insists on.
    assert!(
        json.contains("\"max_msg_fds\":16") && json.contains("\"max_dma_maps\":65535"),
        "{json}"
    );
    assert!(
        json.contains("\"pgsizes\":4096") && json.contains("\"write_multiple\":true"),
        "{json}"
    );
    assert_eq!(errno(&mut client, VERSION, text, &[]), EINVAL);
    assert_eq!(errno(&mut client, RESET, &[], &[]), 0);
}

#[test]
fn v10_truncated_payloads_are_answered() {
    let served = Served::new(1);
    let mut client = RawClient::new(&served);
    for command in 0..=20 {
        for len in [0, 1, 3] {
            let expected = match command {
                RESET => 0,
                VERSION | DMA_MAP | DMA_UNMAP | 4 | GET_REGION_INFO | GET_IRQ_INFO | SET_IRQS => EINVAL,
                REGION_READ | REGION_WRITE | WRITE_MULTI => EINVAL,
                _ => EOPNOTSUPP,
            };
            assert_eq!(
                errno(&mut client, command, &vec![0; len], &[]),
                expected,
                "command {command}"
            );
        }
    }
    assert_eq!(errno(&mut client, u16::MAX, &[], &[]), EOPNOTSUPP);
}

#[test]
fn v10_impossible_dma_maps_are_refused() {
    let served = Served::new(1);
    let mut client = RawClient::new(&served);
    let memory = || vec![memfd(0x4000, true)];
    for (flags, offset, iova, len, fds, expected) in [
        (3, 0, 0, 0, memory(), EINVAL),
        (3, 0, 0, u64::MAX, memory(), EINVAL),
        (3, 0, 0x1000, !0xfff, memory(), EINVAL),
        (3, 0, !0xfff, 0x2000, vec![], EINVAL),
        (3, 0, 0x800, 0x1000, memory(), EINVAL),
        (3, 0, 0, 0x5000, memory(), EINVAL),
        (3, 0x4000, 0, 0x1000, memory(), EINVAL),
        (3, u64::MAX, 0, 0x1000, memory(), EINVAL),
        (0, 0, 0, 0x1000, memory(), EINVAL),
        (7, 0, 0, 0x1000, memory(), EINVAL),
        (3, 0, 0, 0x1000, vec![event()], EINVAL),
        (
            3,
            0,
            0,
            0x1000,
            vec![memfd(0x4000, true), memfd(0x4000, true)],
            EINVAL,
        ),
    ] {
        assert_eq!(
            errno(&mut client, DMA_MAP, &dma_map(flags, offset, iova, len), &fds),
            expected
        );
        assert!(served.device.state.lock().unwrap().maps.is_empty());
    }
    assert_eq!(
        errno(&mut client, DMA_MAP, &dma_map(3, 0, 0x10000, 0x4000), &memory()),
        0
    );
    for (iova, len) in [
        (0x10000, 0x4000),
        (0xf000, 0x2000),
        (0x13000, 0x1000),
        (0, 0x10_0000),
    ] {
        let fds = vec![memfd(0x10_0000, true)];
        assert_eq!(
            errno(&mut client, DMA_MAP, &dma_map(3, 0, iova, len), &fds),
            EEXIST
        );
    }
    assert_eq!(served.device.state.lock().unwrap().maps.len(), 1);
}

#[test]
fn unsealed_memory_and_too_many_maps_are_refused() {
    let mut options = ServerOptions::default();
    options.unsealed_memory = ferroce_vfio_user::server::UnsealedMemory::Refuse;
    options.max_dma_maps = 1;
    let served = Served::with(1, options);
    let mut client = RawClient::new(&served);
    let map = dma_map(3, 0, 0, 0x1000);
    assert_eq!(errno(&mut client, DMA_MAP, &map, &[memfd(0x1000, false)]), EPERM);
    // A descriptor that was opened for reading can't be sealed through.
    let memory = memfd(0x1000, true);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
    let read_only = std::fs::File::open(path).unwrap().into();
    assert_eq!(errno(&mut client, DMA_MAP, &map, &[read_only]), EPERM);
    assert_eq!(errno(&mut client, DMA_MAP, &map, &[memfd(0x1000, true)]), 0);
    assert_eq!(
        errno(&mut client, DMA_MAP, &dma_map(3, 0, 0x1000, 0x1000), &[]),
        ENOSPC
    );
}

// What QEMU does at start and at guest reset.
#[test]
fn v10_unmaps_of_nothing_are_answered() {
    let served = Served::new(1);
    let mut client = RawClient::new(&served);
    for page in 0..1000u64 {
        let unmap = dma_unmap(0, page << 12, 0x1000);
        let answer = client.ask(DMA_UNMAP, &unmap).unwrap();
        assert_eq!(
            (answer.flags, answer.payload),
            (1, unmap),
            "the reply repeats the request"
        );
    }
    assert_eq!(errno(&mut client, DMA_UNMAP, &dma_unmap(0, 0, u64::MAX), &[]), 0);
    for page in 0..10u64 {
        assert_eq!(
            errno(&mut client, DMA_MAP, &dma_map(3, 0, page << 12, 0x1000), &[]),
            0
        );
    }
    // A span that would cut one of them takes none.
    assert_eq!(
        errno(&mut client, DMA_UNMAP, &dma_unmap(0, 0, 0x1800), &[]),
        EINVAL
    );
    assert_eq!(
        errno(&mut client, DMA_UNMAP, &dma_unmap(2, 0, 0x1000), &[]),
        EINVAL
    );
    assert_eq!(errno(&mut client, DMA_UNMAP, &dma_unmap(8, 0, 0), &[]), EINVAL);
    assert_eq!(served.device.state.lock().unwrap().maps.len(), 10);
    assert_eq!(errno(&mut client, DMA_UNMAP, &dma_unmap(2, 0, 0), &[]), 0);
    assert!(served.device.state.lock().unwrap().maps.is_empty());
    assert_eq!(
        errno(&mut client, DMA_UNMAP, &dma_unmap(1, u64::MAX, 2), &[]),
        EINVAL
    );
    assert_eq!(
        errno(&mut client, DMA_UNMAP, &dma_unmap(0, u64::MAX, 2), &[]),
        EINVAL
    );
}

#[test]
fn impossible_interrupts_are_refused() {
    let served = Served::new(8);
    let mut client = RawClient::new(&served);
    const EVENTFD: u32 = 0x24;
    let events = |n| (0..n).map(|_| event()).collect::<Vec<_>>();
    for (flags, index, start, count, fds, expected) in [
        (EVENTFD, 2, 0, 9, events(9), EINVAL),
        (EVENTFD, 2, 8, 1, events(1), EINVAL),
        (EVENTFD, 2, u32::MAX, 2, events(2), EINVAL),
        (EVENTFD, 2, 0, u32::MAX, events(0), EINVAL),
        (EVENTFD, 2, 0, 4, events(3), EINVAL),
        (EVENTFD, 2, 0, 2, events(3), EINVAL),
        (EVENTFD, 2, 0, 0, events(1), EINVAL),
        (EVENTFD, 0, 0, 1, events(1), EINVAL),
        (EVENTFD, 5, 0, 1, events(1), EINVAL),
        (EVENTFD, u32::MAX, 0, 1, events(1), EINVAL),
        (EVENTFD | 1, 2, 0, 1, events(1), EOPNOTSUPP),
        (0x22, 2, 0, 1, events(0), EOPNOTSUPP),
        (0x21, 2, 0, 1, events(0), EOPNOTSUPP),
        (0x09, 2, 0, 1, events(0), EOPNOTSUPP),
        (0, 2, 0, 1, events(0), EOPNOTSUPP),
        (EVENTFD, 2, 0, 8, events(8), 0),
        (EVENTFD, 3, 0, 1, events(1), 0),
        (EVENTFD, 4, 0, 1, events(1), 0),
    ] {
        let payload = words(&[20, flags, index, start, count]);
        assert_eq!(
            errno(&mut client, SET_IRQS, &payload, &fds),
            expected,
            "{payload:?}"
        );
    }
    assert!(
        served
            .device
            .state
            .lock()
            .unwrap()
            .msix
            .iter()
            .all(Option::is_some)
    );
    // Disable: no data, count 0.
    assert_eq!(errno(&mut client, SET_IRQS, &words(&[20, 0x21, 2, 0, 0]), &[]), 0);
    assert!(
        served
            .device
            .state
            .lock()
            .unwrap()
            .msix
            .iter()
            .all(Option::is_none)
    );
    for index in [0, 1, 3, 4] {
        assert_eq!(
            errno(&mut client, SET_IRQS, &words(&[20, 0x21, index, 0, 0]), &[]),
            0
        );
    }
    assert!(served.device.state.lock().unwrap().request.is_none());
}

// QEMU sets INTx up wherever configuration space names a pin, and fails if it can't.
#[test]
fn intx_is_taken_where_there_is_a_pin() {
    let served = Served::new(8);
    let mut client = RawClient::new(&served);
    let set = |flags| words(&[20, flags, 0, 0, 1]);
    let info = |client: &mut RawClient| client.ask(GET_IRQ_INFO, &words(&[16, 0, 0, 0])).unwrap().payload;
    assert_eq!(info(&mut client), words(&[16, 0, 0, 0]));
    assert_eq!(errno(&mut client, SET_IRQS, &set(0x24), &[event()]), EINVAL);
    served.device.state.lock().unwrap().config[0x3d] = 1;
    assert_eq!(info(&mut client), words(&[16, 7, 0, 1]));
    // The eventfd, the one that unmasks, mask, unmask.
    assert_eq!(errno(&mut client, SET_IRQS, &set(0x24), &[event()]), 0);
    assert_eq!(errno(&mut client, SET_IRQS, &set(0x14), &[event()]), 0);
    assert_eq!(errno(&mut client, SET_IRQS, &set(0x09), &[]), 0);
    assert_eq!(errno(&mut client, SET_IRQS, &set(0x11), &[]), 0);
    // Not for MSI-X.
    for flags in [0x14, 0x09, 0x11] {
        assert_eq!(
            errno(&mut client, SET_IRQS, &words(&[20, flags, 2, 0, 1]), &[]),
            EOPNOTSUPP
        );
    }
    assert!(
        served
            .device
            .state
            .lock()
            .unwrap()
            .msix
            .iter()
            .all(Option::is_none)
    );
}

#[test]
fn impossible_accesses_are_refused() {
    let served = Served::new(1);
    let mut client = RawClient::new(&served);
    for (offset, region, count, expected) in [
        (0, 0, u32::MAX, E2BIG),
        (0, 0, (1 << 20) + 1, E2BIG),
        (0, 0, 0x4001, EINVAL),
        (u64::MAX, 0, 1, EINVAL),
        (u64::MAX, 0, 0, EINVAL),
        (0x1_0000_0000, 7, 4, EINVAL),
        (4095, 7, 2, EINVAL),
        (0, 6, 1, EINVAL),
        (0, 9, 4, EINVAL),
        (0, u32::MAX, 4, EINVAL),
        (0, 256, 4, EINVAL),
        (0x4000, 0, 0, 0),
        (4092, 7, 4, 0),
    ] {
        let read = access(offset, region, count);
        assert_eq!(
            errno(&mut client, REGION_READ, &read, &[]),
            expected,
            "{offset:#x} {region} {count}"
        );
        if count <= 0x4001 {
            let write = [read, vec![0; count as usize]].concat();
            assert_eq!(
                errno(&mut client, REGION_WRITE, &write, &[]),
                expected,
                "{offset:#x} {region} {count}"
            );
        }
    }
    // The count and the data disagree.
    assert_eq!(
        errno(
            &mut client,
            REGION_WRITE,
            &[access(0, 0, 8), vec![0; 7]].concat(),
            &[]
        ),
        EINVAL
    );
    assert_eq!(
        errno(
            &mut client,
            REGION_WRITE,
            &[access(0, 0, 8), vec![0; 9]].concat(),
            &[]
        ),
        EINVAL
    );
    assert_eq!(
        errno(&mut client, REGION_WRITE, &access(0, 0, u32::MAX), &[]),
        EINVAL
    );
    // Infos past the end.
    for index in [9, 1000, u32::MAX] {
        assert_eq!(
            errno(
                &mut client,
                GET_REGION_INFO,
                &words(&[32, 0, index, 0, 0, 0, 0, 0]),
                &[]
            ),
            EINVAL
        );
        assert_eq!(
            errno(&mut client, GET_IRQ_INFO, &words(&[16, 0, index, 0]), &[]),
            EINVAL
        );
    }
    // A command that takes no descriptors.
    assert_eq!(errno(&mut client, RESET, &[], &[event()]), EINVAL);
    assert_eq!(served.device.state.lock().unwrap().resets, 0);
}

#[test]
fn several_writes_in_one_message_are_done_in_order() {
    let served = Served::new(1);
    let mut client = RawClient::new(&served);
    let write = |offset: u64, count: u32, byte: u8| [access(offset, 0, count), vec![byte; 8]].concat();
    let multi = |count: u64, writes: &[Vec<u8>]| [count.to_le_bytes().to_vec(), writes.concat()].concat();
    let answer = client
        .ask(WRITE_MULTI, &multi(2, &[write(0, 8, 1), write(4, 4, 2)]))
        .unwrap();
    assert_eq!((answer.flags, answer.payload), (1, 2u64.to_le_bytes().to_vec()));
    assert_eq!(
        served.device.state.lock().unwrap().bar0[..9],
        [1, 1, 1, 1, 2, 2, 2, 2, 0]
    );
    // Stops at the first bad one.
    let writes = [write(8, 8, 3), write(0x4000, 8, 4), write(16, 8, 5)];
    assert_eq!(
        client.ask(WRITE_MULTI, &multi(3, &writes)).unwrap().payload,
        1u64.to_le_bytes()
    );
    assert_eq!(served.device.state.lock().unwrap().bar0[16], 0);
    assert_eq!(
        errno(&mut client, WRITE_MULTI, &multi(1, &[write(0, 9, 1)]), &[]),
        E2BIG
    );
    for count in [0, 2, 1 << 61, u64::MAX] {
        assert_eq!(
            errno(&mut client, WRITE_MULTI, &multi(count, &[write(0, 8, 1)]), &[]),
            EINVAL
        );
    }
}

#[test]
fn commands_without_reply_get_none() {
    let served = Served::new(1);
    let mut client = RawClient::new(&served);
    let write = [access(0x20, 0, 4), vec![9; 4]].concat();
    for (command, payload) in [
        (REGION_WRITE, write.clone()),
        (REGION_WRITE, vec![0; 3]),
        (REGION_READ, access(0, 99, 1)),
        (REGION_READ, access(0, 0, 64)),
        (99, vec![]),
        (DMA_UNMAP, dma_unmap(0, 0, 0)),
    ] {
        client.0.write_all(&message(5, command, 0x10, &payload)).unwrap();
    }
    // The next answer is that of the next command.
    assert_eq!(
        client.ask(REGION_READ, &access(0x20, 0, 4)).unwrap().payload[16..],
        [9; 4]
    );
}

#[test]
fn impossible_headers_end_the_connection() {
    let served = Served::new(1);
    for (size, flags) in [
        (0u32, 0u32),
        (15, 0),
        (u32::MAX, 0),
        ((1 << 20) + 100, 0),
        (16, 2),
        (16, 0xf),
        (16, 1),
    ] {
        let mut client = RawClient::new(&served);
        let mut bytes = message(3, RESET, flags, &[]);
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        client.0.write_all(&bytes).unwrap();
        if flags == 0 {
            let answer = client.read().expect("an answer before the end");
            assert_eq!((answer.id, answer.command, answer.error), (3, RESET, EMSGSIZE));
        }
        assert!(client.read().is_none(), "size {size}, flags {flags}");
    }
    assert_serves(&served);
}

#[test]
fn messages_may_come_in_any_pieces() {
    let served = Served::new(4);
    let client = RawClient::new(&served);
    // One byte at a time, with the descriptors at the first.
    let bytes = message(1, SET_IRQS, 0, &words(&[20, 0x24, 2, 1, 2]));
    send_with_fds(&client.0, &bytes[..1], &[event(), event()]);
    for byte in &bytes[1..] {
        send_with_fds(&client.0, &[*byte], &[]);
    }
    assert_eq!(read_message(&client.0).unwrap().flags, 1);
    let set: Vec<_> = served
        .device
        .state
        .lock()
        .unwrap()
        .msix
        .iter()
        .map(Option::is_some)
        .collect();
    assert_eq!(set, [false, true, true, false]);
    // The header, then the payload with the descriptors.
    send_with_fds(&client.0, &bytes[..16], &[]);
    send_with_fds(&client.0, &bytes[16..], &[event(), event()]);
    assert_eq!(read_message(&client.0).unwrap().flags, 1);
    // Many at once, descriptors with the last; they stay with it.
    let map = |page: u64| message(2, DMA_MAP, 0, &dma_map(3, 0, page << 12, 0x1000));
    send_with_fds(&client.0, &[map(1), map(2), map(3)].concat(), &[]);
    send_with_fds(&client.0, &map(4), &[memfd(0x1000, true)]);
    for _ in 0..4 {
        assert_eq!(read_message(&client.0).unwrap().flags, 1);
    }
    let with_memory: Vec<_> = served
        .device
        .state
        .lock()
        .unwrap()
        .maps
        .values()
        .map(|m| m.memory.is_some())
        .collect();
    assert_eq!(with_memory, [false, false, false, true]);
}

#[test]
fn flood_of_descriptors_is_refused() {
    let served = Served::new(1);
    let client = RawClient::new(&served);
    let events: Vec<_> = (0..200).map(|_| event()).collect();
    let bytes = message(1, SET_IRQS, 0, &words(&[20, 0x24, 2, 0, 1]));
    // Two pieces with 200 each are more than one message can have.
    send_with_fds(&client.0, &bytes[..20], &events);
    send_with_fds(&client.0, &bytes[20..], &events);
    let answer = read_message(&client.0).unwrap();
    assert_eq!((answer.flags, answer.error), (0x21, 24));
    // A few at a time without end.
    let bytes = message(1, DMA_MAP, 0, &vec![0; 1000]);
    for byte in &bytes {
        // Ends in an error once the server has closed the connection.
        let fds = std::slice::from_ref(&events[0]);
        if !try_send_with_fds(&client.0, &[*byte], fds) {
            break;
        }
    }
    assert!(read_message(&client.0).is_none(), "closed");
    drop(client);
    assert_serves(&served);
}

fn try_send_with_fds(stream: &std::os::unix::net::UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> bool {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::os::fd::AsFd;
    let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    sendmsg(
        stream,
        &[std::io::IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .is_ok()
}

#[test]
fn client_that_reads_nothing_is_dropped() {
    let mut options = ServerOptions::default();
    options.send_timeout = Duration::from_millis(50);
    let served = Served::with(1, options);
    let mut client = RawClient::new(&served);
    client.0.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let read = message(1, REGION_READ, 0, &access(0, 0, 0x4000));
    // Until the server has closed the connection.
    while client.0.write_all(&read).is_ok() {}
    drop(client);
    assert_serves(&served);
}

#[test]
fn client_that_says_nothing_is_dropped() {
    let mut options = ServerOptions::default();
    options.handshake_timeout = Duration::from_millis(50);
    let served = Served::with(1, options);
    let mut silent = RawClient::silent(&served);
    assert!(silent.read().is_none(), "closed");
    let mut half = RawClient::silent(&served);
    half.0.write_all(&message(1, VERSION, 0, &[0; 4])[..10]).unwrap();
    assert!(half.read().is_none(), "closed");
    drop(half);
    assert_serves(&served);
}

/// Plausible and implausible messages.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        0u32..40,
        Just(0x24),
        Just(0x21),
        Just(0x1000),
        Just(u32::MAX),
        any::<u32>()
    ];
    let payload = prop::collection::vec(word, 0..12).prop_map(|w| words(&w));
    let flags = prop_oneof![8 => Just(0u32), 1 => Just(0x10), 1 => any::<u32>()];
    let whole = (any::<u16>(), 0u16..20, flags, payload).prop_map(|(id, c, f, p)| message(id, c, f, &p));
    // Now and then a byte is changed.
    (
        whole,
        prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>())),
    )
        .prop_map(|(mut m, change)| {
            if let Some((at, byte)) = change {
                let at = at.index(m.len());
                m[at] = byte;
            }
            m
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn v10_any_messages_are_survived(
        messages in prop::collection::vec((any_message(), 0usize..4), 1..40),
        negotiate in any::<bool>(),
    ) {
        let served = Served::new(8);
        let mut client =
            if negotiate { RawClient::new(&served) } else { RawClient::silent(&served) };
        client.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let memory: Vec<OwnedFd> = (0..4).map(|_| memfd(0x10000, true)).collect();
        for (message, fds) in &messages {
            if !memory[..*fds].is_empty() {
                if !try_send_with_fds(&client.0, message, &memory[..1]) {
                    break;
                }
            } else if client.0.write_all(message).is_err() {
                break;
            }
        }
        // Whatever is answered is well formed; then the stream ends.
        let _ = client.0.shutdown(std::net::Shutdown::Write);
        while let Some(answer) = client.read() {
            prop_assert!(answer.flags & 0xf <= 1);
        }
        drop(client);
        assert_serves(&served);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..2000), negotiate in any::<bool>()) {
        let served = Served::new(8);
        let mut client =
            if negotiate { RawClient::new(&served) } else { RawClient::silent(&served) };
        let _ = client.0.write_all(&bytes);
        let _ = client.0.shutdown(std::net::Shutdown::Write);
        while client.read().is_some() {}
        drop(client);
        assert_serves(&served);
    }
}
