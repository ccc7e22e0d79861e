//! Our client against our server.

mod common;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{
    BAR0_DMA, BAR0_DMA_ELSEWHERE, BAR0_FIRE, BAR0_SIZE, FakeDevice, Served, event, memfd, signalled,
};
use ferroce_vfio_user::CloseReason;
use ferroce_vfio_user::client::{Client, ClientError, ClientOptions};
use ferroce_vfio_user::device::{BarArea, DeviceError, DmaMessages};
use ferroce_vfio_user::server::{
    Server, ServerError, ServerOptions, StopHandle, UnsealedMemory, serve_stream,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

#[test]
fn device_is_described_and_accessed() {
    let served = Served::new(33);
    let client = served.connect();
    assert_eq!(
        (client.bar_size(0), client.bar_size(1), client.bar_size(6)),
        (BAR0_SIZE, 0, 0)
    );
    assert_eq!(client.msix_vectors(), 33);
    assert!(client.is_resettable());
    let mut id = [0; 4];
    client.config_read(0, &mut id).unwrap();
    assert_eq!(id, [0xb3, 0x15, 0x13, 0x10]);
    client.config_write(4, &[6, 0]).unwrap();
    let mut command = [0; 2];
    client.config_read(4, &mut command).unwrap();
    assert_eq!(command, [6, 0]);
    client.bar_write_and_wait(0, 0x10, &[1, 2, 3, 4]).unwrap();
    // A posted write is seen by the next read.
    client.bar_write(0, 0x14, &[5, 6, 7, 8]).unwrap();
    let mut data = [0; 8];
    client.bar_read(0, 0x10, &mut data).unwrap();
    assert_eq!(data, [1, 2, 3, 4, 5, 6, 7, 8]);
    client.reset().unwrap();
    client.bar_read(0, 0x10, &mut data).unwrap();
    assert_eq!(data, [0; 8]);
    assert_eq!(client.gone(), None);
}

#[test]
fn accesses_out_of_range_are_not_sent() {
    let served = Served::new(1);
    let client = served.connect();
    for (bar, offset, len) in [
        (0, BAR0_SIZE, 1),
        (0, BAR0_SIZE - 1, 2),
        (0, u64::MAX, 2),
        (1, 0, 1),
        (200, 0, 1),
    ] {
        let e = client.bar_write(bar, offset, &vec![0; len]).unwrap_err();
        assert!(matches!(e, ClientError::OutOfRange { .. }), "{e}");
        assert!(client.bar_read(bar, offset, &mut vec![0; len]).is_err());
    }
    assert!(client.config_read(4095, &mut [0; 2]).is_err());
    assert!(matches!(
        client.set_msix(1, &[None]),
        Err(ClientError::NoSuchVector { vectors: 1, .. })
    ));
}

#[test]
fn large_accesses_go_in_pieces() {
    let mut options = ServerOptions::default();
    options.max_data_xfer_size = 1000;
    let served = Served::with(1, options);
    let client = served.connect();
    assert_eq!(client.server_capabilities().max_data_xfer_size, 1000);
    let data: Vec<u8> = (0..0x3000).map(|i| (i % 251) as u8).collect();
    client.bar_write(0, 0, &data[..0x1800]).unwrap();
    client.bar_write_and_wait(0, 0x1800, &data[0x1800..]).unwrap();
    let mut read = vec![0; data.len()];
    client.bar_read(0, 0, &mut read).unwrap();
    assert_eq!(read, data);
}

#[test]
fn mappable_areas_arrive_with_their_file() {
    let served = Served::new(1);
    let client = served.connect();
    assert!(client.bar(0).unwrap().memory.is_none());
    let memory = client.bar(2).unwrap().memory.as_ref().unwrap();
    assert_eq!(
        memory.areas,
        [
            BarArea {
                offset: 0x1000,
                len: 0x1000
            },
            BarArea {
                offset: 0x3000,
                len: 0x1000
            }
        ]
    );
    rustix::io::pwrite(&memory.fd, b"shared", memory.offset + 0x1000).unwrap();
    let mut data = [0; 6];
    client.bar_read(2, 0x1000, &mut data).unwrap();
    assert_eq!(&data, b"shared");
}

// Case V04.
#[test]
fn msix_beyond_small_counts_is_set_in_batches() {
    let served = Served::new(512);
    let client = served.connect();
    for count in [1, 33, 256, 512] {
        let events: Vec<_> = (0..count).map(|_| event()).collect();
        let fds: Vec<_> = events.iter().map(|e| Some(e.as_fd())).collect();
        client.set_msix(0, &fds).unwrap();
        for vector in [0, count - 1] {
            client
                .bar_write_and_wait(0, BAR0_FIRE, &(vector as u16).to_le_bytes())
                .unwrap();
            assert!(signalled(&events[vector]), "vector {vector} of {count}");
        }
        let set = served
            .device
            .state
            .lock()
            .unwrap()
            .msix
            .iter()
            .filter(|s| s.is_some())
            .count();
        assert_eq!(set, count);
        client.set_msix(0, &vec![None; 512]).unwrap();
        assert!(
            served
                .device
                .state
                .lock()
                .unwrap()
                .msix
                .iter()
                .all(|s| s.is_none())
        );
    }
}

#[test]
fn mixed_vectors_are_set_and_taken_away() {
    let served = Served::new(8);
    let client = served.connect();
    let events: Vec<_> = (0..8).map(|_| event()).collect();
    let fds: Vec<_> = events.iter().map(|e| Some(e.as_fd())).collect();
    client.set_msix(0, &fds).unwrap();
    client.set_msix(1, &[None, fds[2], None, None, fds[5]]).unwrap();
    let set: Vec<bool> = served
        .device
        .state
        .lock()
        .unwrap()
        .msix
        .iter()
        .map(|s| s.is_some())
        .collect();
    assert_eq!(set, [true, false, true, false, false, true, true, true]);
    client.set_msix(8, &[]).unwrap();
}

#[test]
fn request_notifier_is_set_and_taken_away() {
    let served = Served::new(1);
    let client = served.connect();
    let notifier = event();
    client.set_request_notifier(Some(notifier.as_fd())).unwrap();
    assert!(served.device.state.lock().unwrap().request.is_some());
    client.set_request_notifier(None).unwrap();
    assert!(served.device.state.lock().unwrap().request.is_none());
}

#[test]
fn dma_maps_carry_their_memory() {
    let served = Served::new(1);
    let client = served.connect();
    let memory = memfd(0x3000, true);
    client
        .dma_map(0x10000, 0x2000, true, false, Some((memory.as_fd(), 0x1000)))
        .unwrap();
    client.dma_map(0x20000, 0x1000, true, true, None).unwrap();
    {
        let state = served.device.state.lock().unwrap();
        let map = &state.maps[&0x10000];
        assert_eq!((map.len, map.readable, map.writable), (0x2000, true, false));
        assert_eq!(map.memory.as_ref().unwrap().offset, 0x1000);
        assert!(state.maps[&0x20000].memory.is_none());
    }
    // The owner can't pull the memory away any more.
    assert!(rustix::fs::ftruncate(&memory, 0).is_err());
    client.dma_unmap(0x10000, 0x2000).unwrap();
    assert_eq!(served.device.state.lock().unwrap().maps.len(), 1);
    // Nothing is there: answered, not refused.
    client.dma_unmap(0x10000, 0x2000).unwrap();
}

// Case M12, over the wire.
#[test]
fn partial_unmap_is_refused_without_change() {
    let served = Served::new(1);
    let client = served.connect();
    let mib = 1u64 << 20;
    let memory = memfd(4 * mib, true);
    client
        .dma_map(4 * mib, 4 * mib, true, true, Some((memory.as_fd(), 0)))
        .unwrap();
    for (iova, len) in [(5 * mib, mib), (3 * mib, 2 * mib), (4 * mib, 0)] {
        let e = client.dma_unmap(iova, len).unwrap_err();
        assert!(matches!(e, ClientError::Refused { errno: 22, .. }), "{e}");
        assert_eq!(served.device.state.lock().unwrap().maps.len(), 1);
    }
    client.dma_unmap(4 * mib, 4 * mib).unwrap();
    assert!(served.device.state.lock().unwrap().maps.is_empty());
}

// As QEMU does when the guest's IOMMU driver frees a page table.
#[test]
fn pages_mapped_one_by_one_may_be_unmapped_at_once() {
    let served = Served::new(1);
    let client = served.connect();
    let memory = memfd(0x4000, true);
    for (iova, at) in [
        (0x20_0000, 0),
        (0x20_1000, 0x2000),
        (0x3f_f000, 0x3000),
        (0x40_0000, 0x1000),
    ] {
        client
            .dma_map(iova, 0x1000, true, true, Some((memory.as_fd(), at)))
            .unwrap();
    }
    client.dma_unmap(0x20_0000, 0x20_0000).unwrap();
    let left: Vec<u64> = served.device.state.lock().unwrap().maps.keys().copied().collect();
    assert_eq!(left, [0x40_0000]);
    client
        .dma_map(0x20_0000, 0x1000, true, true, Some((memory.as_fd(), 0x1000)))
        .unwrap();
}

#[test]
fn unsealed_memory_is_treated_as_the_options_say() {
    for (policy, expected) in [
        (UnsealedMemory::Refuse, None),
        (UnsealedMemory::UseMessages, Some(false)),
        (UnsealedMemory::Trust, Some(true)),
    ] {
        let mut options = ServerOptions::default();
        options.unsealed_memory = policy;
        let served = Served::with(1, options);
        let client = served.connect();
        let memory = memfd(0x1000, false);
        let result = client.dma_map(0x1000, 0x1000, true, true, Some((memory.as_fd(), 0)));
        assert_eq!(result.is_ok(), expected.is_some(), "{policy:?}");
        let state = served.device.state.lock().unwrap();
        assert_eq!(
            state.maps.get(&0x1000).map(|m| m.memory.is_some()),
            expected,
            "{policy:?}"
        );
    }
}

#[test]
fn v11_thousands_of_regions_and_a_clean_upper_bound() {
    let mut options = ServerOptions::default();
    options.max_dma_maps = 4096;
    let served = Served::with(1, options);
    let client = served.connect();
    let limit = client.server_capabilities().max_dma_maps;
    assert_eq!(limit, 4096);
    let memory = memfd(4096 * 4096, true);
    // An odd multiplier visits every page once, in no order.
    let pages = (0..4096u64).map(|i| i * 2731 % 4096);
    for page in pages {
        client
            .dma_map(page << 12, 4096, true, true, Some((memory.as_fd(), page << 12)))
            .unwrap();
    }
    let e = client.dma_map(1 << 40, 4096, true, true, None).unwrap_err();
    assert!(matches!(e, ClientError::Refused { errno: 28, .. }), "{e}");
    client.dma_unmap(77 << 12, 4096).unwrap();
    client.dma_map(1 << 40, 4096, true, true, None).unwrap();
    assert_eq!(served.device.state.lock().unwrap().maps.len(), 4096);
}

/// 64 KiB of memory at IOVA 0x100000 that is served by messages.
struct HostMemory(Mutex<Vec<u8>>);

impl HostMemory {
    fn range(iova: u64, len: usize) -> Result<std::ops::Range<usize>, DeviceError> {
        let start = iova.checked_sub(0x100000).filter(|s| s + len as u64 <= 0x10000);
        let start = start.ok_or(DeviceError::NotMapped {
            iova,
            len: len as u64,
        })? as usize;
        Ok(start..start + len)
    }
}

impl DmaMessages for HostMemory {
    fn read(&self, iova: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        data.copy_from_slice(&self.0.lock().unwrap()[Self::range(iova, data.len())?]);
        Ok(())
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.0.lock().unwrap()[Self::range(iova, data.len())?].copy_from_slice(data);
        Ok(())
    }
}

#[test]
fn memory_without_descriptor_is_reached_by_messages() {
    let served = Served::new(1);
    let memory = Arc::new(HostMemory(Mutex::new((0..=255).cycle().take(0x10000).collect())));
    let mut options = ClientOptions::default();
    options.dma = Some(memory.clone());
    let client = Client::connect(&served.path, options).unwrap();
    client.dma_map(0x100000, 0x10000, true, true, None).unwrap();
    // From the thread that serves the client, while the client waits for the reply ...
    client
        .bar_write_and_wait(0, BAR0_DMA, &0x100000u64.to_le_bytes())
        .unwrap();
    let read = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(
        served.device.state.lock().unwrap().dma_result.take(),
        Some(Ok(read))
    );
    assert_eq!(memory.0.lock().unwrap()[8..16], (read + 1).to_le_bytes());
    // ... and while it does not.
    client.bar_write(0, BAR0_DMA, &0x100100u64.to_le_bytes()).unwrap();
    served
        .device
        .wait("posted DMA", |s| s.dma_result == Some(Ok(read)));
    // From another thread, while the one that serves the client is kept by the device and commands queue up.
    client
        .bar_write(0, BAR0_DMA_ELSEWHERE, &0x100200u64.to_le_bytes())
        .unwrap();
    for i in 0..100u32 {
        client.bar_write(0, 0, &i.to_le_bytes()).unwrap();
    }
    let mut last = [0; 4];
    client.bar_read(0, 0, &mut last).unwrap();
    assert_eq!(last, 99u32.to_le_bytes());
    assert_eq!(
        served.device.state.lock().unwrap().dma_result.take(),
        Some(Ok(read))
    );
    // From another thread, in several messages.
    let host = served.device.state.lock().unwrap().host.clone().unwrap();
    let mut all = vec![0; 0x10000];
    host.read(0x100000, &mut all).unwrap();
    assert_eq!(all, *memory.0.lock().unwrap());
    all.reverse();
    host.write(0x100000, &all).unwrap();
    assert_eq!(all, *memory.0.lock().unwrap());
    let e = host.read(0x0f_0000, &mut [0; 4]).unwrap_err();
    assert!(matches!(e, DeviceError::Refused { errno: 2, .. }), "{e}");
    drop(client);
    served.device.wait("detach", |s| s.detached == 1);
    assert!(matches!(
        host.read(0x100000, &mut [0; 4]),
        Err(DeviceError::Gone { .. })
    ));
}

#[test]
fn without_a_dma_handler_the_device_gets_an_error() {
    let served = Served::new(1);
    let client = served.connect();
    client
        .bar_write_and_wait(0, BAR0_DMA, &0x1000u64.to_le_bytes())
        .unwrap();
    let result = served.device.state.lock().unwrap().dma_result.take().unwrap();
    assert!(result.unwrap_err().contains("refused"));
    assert_eq!(client.gone(), None);
}

#[test]
fn second_client_is_told_that_the_device_is_busy() {
    let served = Served::new(1);
    let first = served.connect();
    let e = Client::connect(&served.path, ClientOptions::default()).unwrap_err();
    assert!(matches!(e, ClientError::Busy { .. }), "{e}");
    first.reset().unwrap();
    drop(first);
    served.connect().reset().unwrap();
}

#[test]
fn server_that_stops_is_noticed_at_once() {
    let mut served = Served::new(1);
    let client = served.connect();
    let gone = client.gone_fd();
    let mut fds = [PollFd::new(&gone, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    client.reset().unwrap();
    assert_eq!(
        poll(&mut fds, Some(&now)),
        Ok(0),
        "replies do not make it readable"
    );
    served.stop();
    assert_eq!(
        poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 20,
                tv_nsec: 0
            })
        ),
        Ok(1)
    );
    assert_eq!(client.gone(), Some(CloseReason::PeerClosed));
    let e = client.bar_read(0, 0, &mut [0; 4]).unwrap_err();
    assert!(e.is_gone(), "{e}");
    assert!(client.bar_write(0, 0, &[0; 4]).is_err());
    assert_eq!(poll(&mut fds, Some(&now)), Ok(1), "and it stays readable");
}

#[test]
fn stop_ends_a_server_with_and_without_a_client() {
    let mut served = Served::new(1);
    served.stop();
    assert!(!served.path.exists(), "the socket file is removed");
    let mut served = Served::new(1);
    let _client = served.connect();
    served.stop();
}

#[test]
fn many_threads_share_a_client() {
    let served = Served::new(1);
    let client = served.connect();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let client = &client;
            scope.spawn(move || {
                for i in 0..500u64 {
                    let value = (thread << 32 | i).to_le_bytes();
                    match i % 2 {
                        0 => client.bar_write(0, thread * 8, &value).unwrap(),
                        _ => client.bar_write_and_wait(0, thread * 8, &value).unwrap(),
                    }
                    let mut read = [0; 8];
                    client.bar_read(0, thread * 8, &mut read).unwrap();
                    assert_eq!(read, value);
                }
            });
        }
    });
}

#[test]
fn socket_pair_serves_too() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let device = FakeDevice::new(1);
    let stop = StopHandle::new().unwrap();
    let their_device = device.clone();
    let thread =
        std::thread::spawn(move || serve_stream(theirs, their_device, &stop, ServerOptions::default()));
    let client = Client::from_stream(ours, ClientOptions::default()).unwrap();
    client.reset().unwrap();
    drop(client);
    assert_eq!(thread.join().unwrap(), CloseReason::PeerClosed);
    let state = device.state.lock().unwrap();
    assert_eq!((state.resets, state.attached, state.detached), (1, 1, 1));
}

#[test]
fn a_stopped_server_hangs_up_after_its_device_has_stopped() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (device, stop) = (FakeDevice::new(1), StopHandle::new().unwrap());
    let (their_device, their_stop) = (device.clone(), stop.clone());
    let thread =
        std::thread::spawn(move || serve_stream(theirs, their_device, &their_stop, ServerOptions::default()));
    let seen = ours.try_clone().unwrap();
    let client = Client::from_stream(ours, ClientOptions::default()).unwrap();
    client.reset().unwrap();
    let (sender, hung_up) = std::sync::mpsc::channel();
    let look = move || {
        let mut fds = [PollFd::new(&seen, PollFlags::IN | PollFlags::RDHUP)];
        sender
            .send(poll(&mut fds, Some(&Timespec::default())) != Ok(0))
            .unwrap();
    };
    *device.on_detach.lock().unwrap() = Some(Box::new(look));
    stop.stop();
    assert_eq!(thread.join().unwrap(), CloseReason::Closed);
    assert!(
        !hung_up.recv().unwrap(),
        "the client takes a hang-up for the end of all DMA"
    );
    assert_eq!(client.gone(), Some(CloseReason::PeerClosed));
}

#[test]
fn times_without_end_are_no_reason_to_panic() {
    let mut options = ServerOptions::default();
    (options.handshake_timeout, options.send_timeout) = (Duration::MAX, Duration::MAX);
    options.dma_timeout = Duration::MAX;
    let served = Served::with(1, options);
    let mut options = ClientOptions::default();
    (options.connect_timeout, options.request_timeout) = (Duration::MAX, Duration::MAX);
    options.reset_timeout = Duration::MAX;
    let client = Client::connect(&served.path, options).unwrap();
    client.bar_write(0, 0x10, &[1, 2, 3, 4]).unwrap();
    client.reset().unwrap();
}

#[test]
fn connecting_to_what_is_not_there_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nic.sock");
    let connect = || Client::connect(&path, ClientOptions::default()).unwrap_err();
    let e = connect();
    assert!(
        matches!(e, ClientError::SocketMissing { .. }) && e.to_string().contains("nic.sock"),
        "{e}"
    );
    std::fs::write(&path, "").unwrap();
    assert!(matches!(connect(), ClientError::NotASocket { .. }));
    assert!(matches!(Server::bind(&path), Err(ServerError::NotASocket { .. })));
    std::fs::remove_file(&path).unwrap();
    // Dropping a listener leaves its file behind, as a server that was killed does.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(matches!(connect(), ClientError::StaleSocket { .. }));
    let server = Server::bind(&path).unwrap();
    assert!(matches!(Server::bind(&path), Err(ServerError::InUse { .. })));
    drop(server);
    let long = directory.path().join("x".repeat(200));
    let e = Client::connect(&long, ClientOptions::default()).unwrap_err();
    assert!(matches!(e, ClientError::PathTooLong { .. }), "{e}");
}

#[test]
fn hung_server_meets_the_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nic.sock");
    // Listens and never accepts; one connection fits its queue.
    let address = SocketAddrUnix::new(&path).unwrap();
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &address).unwrap();
    listen(&listener, 0).unwrap();
    let mut options = ClientOptions::default();
    options.connect_timeout = Duration::from_millis(50);
    let e = Client::connect(&path, options.clone()).unwrap_err();
    assert!(matches!(e, ClientError::TimedOut { millis: 50, .. }), "{e}");
    assert!(e.to_string().contains("VERSION"));
    let e = Client::connect(&path, options).unwrap_err();
    assert!(matches!(e, ClientError::NotAccepting { millis: 50, .. }), "{e}");
}
