//! Our client against servers that break every rule.

mod common;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{Answer, event, message, open_fds, read_message, send_with_fds};
use ferroce_vfio_user::client::{Client, ClientError, ClientOptions};
use ferroce_vfio_user::device::{DeviceError, DmaMessages};
use ferroce_vfio_user::{CloseReason, ProtocolError};
use proptest::prelude::*;

const VERSION: u16 = 1;
const GET_INFO: u16 = 4;
const GET_REGION_INFO: u16 = 5;
const GET_IRQ_INFO: u16 = 7;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const DMA_READ: u16 = 11;
const DMA_WRITE: u16 = 12;

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The payload that an honest server would answer with: BAR 0 of 4 KiB, 4 vectors.
fn honest(request: &Answer) -> Vec<u8> {
    match request.command {
        VERSION => b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":4}}\0".to_vec(),
        GET_INFO => words(&[16, 3, 9, 5]),
        GET_REGION_INFO => {
            let index = u32::from_le_bytes(request.payload[8..12].try_into().unwrap());
            words(&[32, 3, index, 0, if index % 7 == 0 { 0x1000 } else { 0 }, 0, 0, 0])
        }
        GET_IRQ_INFO => {
            let index = u32::from_le_bytes(request.payload[8..12].try_into().unwrap());
            words(&[16, 1, index, if index == 2 { 4 } else { 1 }])
        }
        REGION_READ => {
            let count = u32::from_le_bytes(request.payload[12..16].try_into().unwrap());
            [&request.payload[..16], &vec![0x5a; count as usize]].concat()
        }
        REGION_WRITE => request.payload[..16].to_vec(),
        _ => Vec::new(),
    }
}

fn reply(request: &Answer, payload: &[u8]) -> Vec<u8> {
    message(request.id, request.command, 1, payload)
}

/// A server in a thread. What `say` gives is sent as it is; `None` ends the connection.
fn server(
    mut say: impl FnMut(&Answer, &UnixStream) -> Option<Vec<u8>> + Send + 'static,
) -> (UnixStream, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        while let Some(request) = read_message(&theirs) {
            let Some(bytes) = say(&request, &theirs) else {
                return;
            };
            if (&theirs).write_all(&bytes).is_err() {
                return;
            }
        }
    });
    (ours, thread)
}

fn options(millis: u64) -> ClientOptions {
    let mut options = ClientOptions::default();
    options.connect_timeout = Duration::from_millis(millis);
    options.request_timeout = Duration::from_millis(millis);
    options.reset_timeout = Duration::from_millis(millis);
    options
}

/// Connects to a server that answers `command` with `payload` and all else honestly.
fn connect_to(command: u16, payload: &[u8]) -> Result<Client, ClientError> {
    let payload = payload.to_vec();
    let (stream, _) = server(move |request, _| match request.command {
        c if c == command => Some(reply(request, &payload)),
        _ => Some(reply(request, &honest(request))),
    });
    Client::from_stream(stream, options(5000))
}

#[test]
fn honest_server_is_accepted() {
    let (stream, _) = server(|request, _| Some(reply(request, &honest(request))));
    let client = Client::from_stream(stream, options(20_000)).unwrap();
    let mut data = [0; 4];
    client.bar_read(0, 8, &mut data).unwrap();
    assert_eq!(data, [0x5a; 4]);
}

#[test]
fn what_is_no_vfio_user_server_is_told_from_one() {
    for bytes in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"SSH-2.0-OpenSSH_9.2\r\n",
        &[0; 64],
        &[0xff; 64],
    ] {
        let (stream, _) = server(move |_, _| Some(bytes.to_vec()));
        let e = Client::from_stream(stream, options(5000)).unwrap_err();
        assert!(matches!(e, ClientError::NotVfioUser { .. }), "{e}");
    }
    let (stream, _) = server(|_, _| None);
    let e = Client::from_stream(stream, options(5000)).unwrap_err();
    assert!(matches!(e, ClientError::NotVfioUser { .. }), "{e}");
    let e = connect_to(VERSION, &[0]).unwrap_err();
    assert!(matches!(e, ClientError::NotVfioUser { .. }), "{e}");
}

#[test]
fn version_that_differs_is_named() {
    let e = connect_to(VERSION, b"\x01\0\0\0").unwrap_err();
    assert!(
        matches!(
            e,
            ClientError::VersionMismatch {
                major: 1,
                minor: 0,
                ..
            }
        ),
        "{e}"
    );
    let e = connect_to(VERSION, b"\0\0\x02\0").unwrap_err();
    assert!(e.to_string().contains("0.2"), "{e}");
    assert!(
        connect_to(VERSION, b"\0\0\0\0").is_ok(),
        "an older minor version and no capabilities"
    );
    for text in [
        &b"\0\0\x01\0{"[..],
        b"\0\0\x01\0nonsense\0",
        b"\0\0\x01\0{\"capabilities\":{\"pgsizes\":0}}\0",
    ] {
        let e = connect_to(VERSION, text).unwrap_err();
        assert!(matches!(e, ClientError::VersionData { .. }), "{e}");
    }
}

#[test]
fn device_that_makes_no_sense_is_refused() {
    for (command, payload) in [
        (GET_INFO, words(&[16, 1, 9, 5])),
        (GET_INFO, words(&[16, 3, 7, 5])),
        (GET_IRQ_INFO, words(&[16, 1, 2, 2049])),
        (GET_IRQ_INFO, words(&[16, 1, 2, u32::MAX])),
    ] {
        let e = connect_to(command, &payload).unwrap_err();
        assert!(matches!(e, ClientError::NotUsable { .. }), "{e}");
    }
    for (command, payload) in [
        (GET_INFO, words(&[16, 3, 9])),
        (GET_INFO, vec![]),
        (GET_REGION_INFO, words(&[32, 3, 0, 0, 0x1000, 0, 0])),
        (GET_REGION_INFO, words(&[32, 3, 1, 0, 0x1000, 0, 0, 0])),
        (GET_REGION_INFO, words(&[u32::MAX, 3, 5, 0, 0x1000, 0, 0, 0])),
        (GET_IRQ_INFO, words(&[16, 1, 2])),
    ] {
        let e = connect_to(command, &payload).unwrap_err();
        assert!(matches!(e, ClientError::BadReply { .. }), "{e}");
    }
    // More regions and interrupts than are asked about.
    assert!(connect_to(GET_INFO, &words(&[16, 3, u32::MAX, u32::MAX])).is_ok());
    let client = connect_to(GET_INFO, &words(&[16, 2, 9, 2])).unwrap();
    assert_eq!((client.msix_vectors(), client.is_resettable()), (0, false));
    assert!(matches!(client.reset(), Err(ClientError::Unsupported { .. })));
    assert!(matches!(
        client.set_request_notifier(None),
        Err(ClientError::Unsupported { .. })
    ));
}

/// A client whose server does `say` for each access to BAR 0 and is honest before. Requests have `millis`.
fn access_answered_by(
    millis: u64,
    mut say: impl FnMut(&Answer, &UnixStream) -> Option<Vec<u8>> + Send + 'static,
) -> Client {
    let (stream, _) = server(move |request, stream| match request.command {
        REGION_READ | REGION_WRITE => say(request, stream),
        _ => Some(reply(request, &honest(request))),
    });
    Client::from_stream(stream, options(millis)).unwrap()
}

#[test]
fn error_replies_name_the_command() {
    let client = access_answered_by(20_000, |request, _| {
        let mut bytes = message(request.id, request.command, 0x21, &[]);
        bytes[12..16].copy_from_slice(&5u32.to_le_bytes());
        Some(bytes)
    });
    let e = client.bar_read(0, 0, &mut [0; 4]).unwrap_err();
    assert_eq!(
        e.to_string(),
        "the device refused REGION_READ: Input/output error (os error 5)"
    );
    let e = client.bar_write_and_wait(0, 0, &[0; 4]).unwrap_err();
    assert!(matches!(e, ClientError::Refused { errno: 5, .. }), "{e}");
    assert_eq!(client.gone(), None);
}

#[test]
fn replies_of_the_wrong_length_are_refused() {
    for payload in [
        vec![],
        vec![0; 16],
        [words(&[0, 0, 0, 4]), vec![0; 3]].concat(),
        [words(&[0, 0, 0, 5]), vec![0; 5]].concat(),
    ] {
        let client = access_answered_by(20_000, move |request, _| Some(reply(request, &payload)));
        let e = client.bar_read(0, 0, &mut [0; 4]).unwrap_err();
        assert!(matches!(e, ClientError::BadReply { .. }), "{e}");
        assert!(e.to_string().contains("REGION_READ"), "{e}");
    }
    let client = access_answered_by(20_000, |request, _| Some(reply(request, &[])));
    assert!(matches!(
        client.bar_write_and_wait(0, 0, &[0; 4]),
        Err(ClientError::BadReply { .. })
    ));
}

#[test]
fn replies_to_what_was_not_asked_end_the_connection() {
    type Say = fn(&Answer) -> Vec<u8>;
    let lies: [Say; 4] = [
        |r| message(r.id.wrapping_add(1), r.command, 1, &honest(r)),
        |r| message(r.id, r.command + 1, 1, &honest(r)),
        |r| message(r.id, r.command, 3, &honest(r)),
        |r| {
            let mut bytes = message(r.id, r.command, 1, &honest(r));
            bytes[4..8].fill(0xff);
            bytes
        },
    ];
    for say in lies {
        let client = access_answered_by(20_000, move |request, _| Some(say(request)));
        let e = client.bar_read(0, 0, &mut [0; 4]).unwrap_err();
        assert!(
            matches!(
                &e,
                ClientError::Gone {
                    reason: CloseReason::Protocol(_),
                    ..
                }
            ),
            "{e}"
        );
        assert!(client.gone().is_some());
        assert!(client.bar_write(0, 0, &[0; 4]).is_err());
    }
    // The reply is there twice.
    let client = access_answered_by(20_000, |request, _| {
        Some(reply(request, &honest(request)).repeat(2))
    });
    let (first, second) = (
        client.bar_read(0, 0, &mut [0; 4]),
        client.bar_read(0, 0, &mut [0; 4]),
    );
    assert!(first.is_ok() && second.is_err());
}

#[test]
fn hung_server_meets_the_deadline_and_may_recover() {
    let mut held = None;
    let mut first = true;
    let client = access_answered_by(500, move |request, _| {
        let answer = reply(request, &honest(request));
        if std::mem::take(&mut first) {
            // Answered only after the second was asked.
            held = Some(answer);
            return Some(Vec::new());
        }
        Some([held.take().unwrap_or_default(), answer].concat())
    });
    let start = Instant::now();
    let e = client.bar_read(0, 0, &mut [0; 4]).unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(500));
    assert_eq!(
        e.to_string(),
        "no answer to REGION_READ within 500 ms; the device process hangs"
    );
    client.bar_read(0, 0, &mut [0; 4]).unwrap();
    client.bar_read(0, 0, &mut [0; 4]).unwrap();
}

#[test]
fn server_that_ends_in_the_middle_is_gone() {
    let client = access_answered_by(20_000, |_, _| None);
    let e = client.bar_read(0, 0, &mut [0; 4]).unwrap_err();
    assert!(
        matches!(
            e,
            ClientError::Gone {
                reason: CloseReason::PeerClosed,
                ..
            }
        ),
        "{e}"
    );
    let client = access_answered_by(20_000, |request, stream| {
        let _ = (&*stream).write_all(&reply(request, &honest(request))[..20]);
        None
    });
    let e = client.bar_read(0, 0, &mut [0; 4]).unwrap_err();
    let truncated = CloseReason::Protocol(ProtocolError::Truncated);
    assert!(
        matches!(&e, ClientError::Gone { reason, .. } if *reason == truncated),
        "{e}"
    );
}

#[test]
fn server_that_reads_nothing_blocks_no_longer_than_the_deadline() {
    let (enough, wait) = std::sync::mpsc::channel::<()>();
    let client = access_answered_by(500, move |_, _| {
        let _ = wait.recv();
        None
    });
    let e = loop {
        if let Err(e) = client.bar_write(0, 0, &[0; 0x1000]) {
            break e;
        }
    };
    assert!(
        matches!(
            e,
            ClientError::Gone {
                reason: CloseReason::Stalled,
                ..
            }
        ),
        "{e}"
    );
    drop(enough);
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let events: Arc<Vec<OwnedFd>> = Arc::new((0..200).map(|_| event()).collect());
    let theirs = events.clone();
    let (stream, _) = server(move |request, stream| {
        send_with_fds(stream, &reply(request, &honest(request)), &theirs);
        Some(Vec::new())
    });
    let client = Client::from_stream(stream, options(20_000)).unwrap();
    // Other tests open descriptors meanwhile, though not thousands.
    let before = open_fds();
    for _ in 0..50 {
        client.bar_read(0, 0, &mut [0; 4]).unwrap();
    }
    assert!(open_fds() < before + 5000);
}

struct Nothing;

impl DmaMessages for Nothing {
    fn read(&self, iova: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        let len = data.len() as u64;
        if iova == 0 {
            Ok(())
        } else {
            Err(DeviceError::NotMapped { iova, len })
        }
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.read(iova, &mut vec![0; data.len()])
    }
}

#[test]
fn impossible_dma_messages_are_refused() {
    let dma = |address: u64, count: u64| [address.to_le_bytes(), count.to_le_bytes()].concat();
    let asks = [
        (DMA_READ, dma(0, u64::MAX), 7),
        (DMA_READ, dma(0, (1 << 20) + 1), 7),
        (DMA_READ, dma(1, 8), 2),
        (DMA_READ, vec![0; 15], 22),
        (DMA_WRITE, dma(0, 8), 22),
        (DMA_WRITE, [dma(0, 1), vec![0; 2]].concat(), 22),
        (DMA_WRITE, [dma(1, 1), vec![0]].concat(), 2),
        (13, vec![], 95),
        (DMA_READ, dma(0, 4), 0),
        (DMA_WRITE, [dma(0, 1), vec![0]].concat(), 0),
    ];
    let (results, received) = std::sync::mpsc::channel();
    let (stream, _) = server(move |request, stream| {
        if request.command == REGION_READ {
            for (command, payload, expected) in &asks {
                (&*stream).write_all(&message(9, *command, 0, payload)).unwrap();
                let answer = read_message(stream).unwrap();
                results
                    .send((*command, answer.flags & 0x20 != 0, answer.error, *expected))
                    .unwrap();
            }
        }
        Some(reply(request, &honest(request)))
    });
    let mut options = options(20_000);
    options.dma = Some(Arc::new(Nothing));
    let client = Client::from_stream(stream, options).unwrap();
    client.bar_read(0, 0, &mut [0; 4]).unwrap();
    let results: Vec<_> = received.try_iter().collect();
    assert_eq!(results.len(), 10);
    for (command, failed, error, expected) in results {
        assert_eq!((failed, error), (expected != 0, expected), "command {command}");
    }
}

#[test]
fn eventfds_are_batched_as_the_server_asks() {
    let (sizes, received) = std::sync::mpsc::channel();
    let (stream, _) = server(move |request, _| {
        if request.command == 8 {
            sizes.send(request.payload.clone()).unwrap();
        }
        Some(reply(request, &honest(request)))
    });
    let client = Client::from_stream(stream, options(20_000)).unwrap();
    let event = event();
    client.set_msix(0, &[Some(event.as_fd()); 4]).unwrap();
    client.set_msix(1, &[Some(event.as_fd()), None, None]).unwrap();
    let seen: Vec<_> = received.try_iter().collect();
    assert_eq!(
        seen,
        [
            words(&[20, 0x24, 2, 0, 4]),
            words(&[20, 0x24, 2, 1, 1]),
            words(&[20, 0x24, 2, 2, 2])
        ]
    );
    // A server that says nothing takes one at a time.
    let client = connect_to(VERSION, b"\0\0\x01\0").unwrap();
    assert_eq!(client.server_capabilities().max_msg_fds, 1);
}

/// What a lying server does to an honest reply.
#[derive(Debug, Clone)]
enum Lie {
    Honest,
    FlipByte(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Append(Vec<u8>),
    Bytes(Vec<u8>),
    Payload(Vec<u8>),
}

fn any_lie() -> impl Strategy<Value = Lie> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..100);
    prop_oneof![
        6 => Just(Lie::Honest),
        2 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(i, b)| Lie::FlipByte(i, b)),
        1 => any::<prop::sample::Index>().prop_map(Lie::Cut),
        1 => bytes().prop_map(Lie::Append),
        1 => bytes().prop_map(Lie::Bytes),
        1 => bytes().prop_map(Lie::Payload),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever a server says, each request ends in time and nothing panics.
    #[test]
    fn any_replies_are_survived(lies in prop::collection::vec(any_lie(), 30)) {
        let mut lies = lies.into_iter();
        let (stream, _) = server(move |request, _| {
            let answer = reply(request, &honest(request));
            Some(match lies.next().unwrap_or(Lie::Honest) {
                Lie::Honest => answer,
                Lie::FlipByte(at, byte) => {
                    let mut answer = answer;
                    let at = at.index(answer.len());
                    answer[at] = byte;
                    answer
                }
                Lie::Cut(at) => answer[..at.index(answer.len())].to_vec(),
                Lie::Append(bytes) => [answer, bytes].concat(),
                Lie::Bytes(bytes) => bytes,
                Lie::Payload(payload) => reply(request, &payload),
            })
        });
        if let Ok(client) = Client::from_stream(stream, options(20)) {
            let event = event();
            let _ = client.bar_read(0, 0, &mut [0; 64]);
            let _ = client.config_write(0, &[0; 4]);
            let _ = client.bar_write(0, 0, &[0; 4]);
            let _ = client.set_msix(0, &[Some(event.as_fd())]);
            let _ = client.dma_map(0, 0x1000, true, true, None);
            let _ = client.dma_unmap(0, 0x1000);
            let _ = client.reset();
        }
    }
}
