//! Our ends against those of the vfio_user crate 0.1.7, which others wrote.
//!
//! What does not work there, and so is not tested here:
//! - Its client takes no notice of error replies: after a refused read it waits for data that never comes, and
//!   after other refusals it says that all is well. So nothing here is refused to it.
//! - Its client says that a device is resettable when it is not, and the other way round.
//! - Its client numbers a repeated DEVICE_GET_REGION_INFO as the one before; our server does not mind.
//! - Its client announces that it takes one descriptor a message, and sends as many as it likes itself.
//! - Its server reads no more than 16 descriptors a message and ends the connection at the 17th; it announces 1,
//!   and our client keeps to that.
//! - Its server answers most refusals with error number 0, and after some leaves the payload in the stream,
//!   where it takes it for the next message.
//! - Neither of its ends knows DMA messages or REGION_WRITE_MULTI.

mod common;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use common::{BAR0_FIRE, BAR0_SIZE, Served, event, memfd, signalled};
use ferroce_vfio_user::client::{Client, ClientError, ClientOptions};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, vfio_region_info, vfio_region_sparse_mmap_area,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, ServerBackend, ServerRegion, SparseArea};

const SET_EVENTFDS: u32 = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;

#[test]
fn their_client_works_with_our_server() {
    let served = Served::new(16);
    let mut client = vfio_user::Client::new(&served.path).unwrap();
    let sizes: Vec<u64> = (0..9).map(|i| client.region(i).unwrap().size).collect();
    assert_eq!(sizes, [BAR0_SIZE, 0, 0x4000, 0, 0, 0, 0, 0x1000, 0]);

    let mut id = [0; 4];
    client.region_read(7, 0, &mut id).unwrap();
    assert_eq!(id, [0xb3, 0x15, 0x13, 0x10]);
    client.region_write(0, 0x100, b"written").unwrap();
    let mut read = [0; 7];
    client.region_read(0, 0x100, &mut read).unwrap();
    assert_eq!(&read, b"written");

    let bar2 = client.region(2).unwrap();
    let areas: Vec<_> = bar2.sparse_areas.iter().map(|a| (a.offset, a.size)).collect();
    assert_eq!(areas, [(0x1000, 0x1000), (0x3000, 0x1000)]);
    let file = bar2.file_offset.as_ref().unwrap();
    rustix::io::pwrite(file.file(), b"mapped", file.start() + 0x1000).unwrap();
    let mut read = [0; 6];
    client.region_read(2, 0x1000, &mut read).unwrap();
    assert_eq!(&read, b"mapped");

    let info = client.get_irq_info(2).unwrap();
    assert_eq!((info.index, info.count), (2, 16));
    let events: Vec<OwnedFd> = (0..16).map(|_| event()).collect();
    let fds: Vec<_> = events.iter().map(|e| e.as_raw_fd()).collect();
    client.set_irqs(2, SET_EVENTFDS, 0, 16, &fds).unwrap();
    client.region_write(0, BAR0_FIRE, &15u16.to_le_bytes()).unwrap();
    assert!(signalled(&events[15]) && !signalled(&events[0]));

    let memory = memfd(0x10000, true);
    client
        .dma_map(0x1000, 0x10_0000, 0x2000, memory.as_raw_fd())
        .unwrap();
    {
        let state = served.device.state.lock().unwrap();
        let map = &state.maps[&0x10_0000];
        assert_eq!((map.len, map.readable, map.writable), (0x2000, true, true));
        assert_eq!(map.memory.as_ref().unwrap().offset, 0x1000);
    }
    client.dma_unmap(0x10_0000, 0x2000).unwrap();
    client.dma_unmap(0x20_0000, 0x2000).unwrap();
    assert!(served.device.state.lock().unwrap().maps.is_empty());

    client.reset().unwrap();
    assert_eq!(served.device.state.lock().unwrap().resets, 1);
    client.shutdown().unwrap();
    drop(client);
    served.device.wait("detach", |s| s.detached == 1);
}

/// What their server was asked to do.
#[derive(Default)]
struct Seen {
    bar0: Vec<u8>,
    events: Vec<Option<File>>,
    maps: Vec<(u64, u64, u64, bool, u32)>,
    unmaps: Vec<(u64, u64)>,
    resets: u32,
}

#[derive(Clone)]
struct Backend(Arc<Mutex<Seen>>);

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), std::io::Error> {
        match region {
            0 => data.copy_from_slice(&self.0.lock().unwrap().bar0[offset as usize..][..data.len()]),
            7 => data.fill(0x77),
            _ => return Err(std::io::Error::other("no such region")),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        assert_eq!(region, 0);
        let mut seen = self.0.lock().unwrap();
        seen.bar0[offset as usize..][..data.len()].copy_from_slice(data);
        if offset == 0x800
            && let Some(file) = &seen.events[usize::from(data[0])]
        {
            rustix::io::write(file, &1u64.to_ne_bytes())?;
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> Result<(), std::io::Error> {
        self.0
            .lock()
            .unwrap()
            .maps
            .push((offset, address, size, fd.is_some(), flags.bits()));
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, address: u64, size: u64) -> Result<(), std::io::Error> {
        self.0.lock().unwrap().unmaps.push((address, size));
        Ok(())
    }

    fn reset(&mut self) -> Result<(), std::io::Error> {
        self.0.lock().unwrap().resets += 1;
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> Result<(), std::io::Error> {
        assert_eq!((index, flags), (2, SET_EVENTFDS));
        assert!(fds.is_empty() || fds.len() == count as usize);
        let mut fds = fds.into_iter();
        for slot in &mut self.0.lock().unwrap().events[start as usize..][..count as usize] {
            *slot = fds.next();
        }
        Ok(())
    }
}

fn their_region(index: u32, size: u64, sparse: &[(u64, u64)], file: Option<&OwnedFd>) -> ServerRegion {
    let area = |&(offset, size)| SparseArea {
        area: vfio_region_sparse_mmap_area { offset, size },
    };
    ServerRegion {
        region_info: vfio_region_info {
            argsz: size_of::<vfio_region_info>() as u32,
            flags: if sparse.is_empty() { 3 } else { 7 },
            index,
            cap_offset: 0,
            size,
            offset: 0x5000,
        },
        sparse_areas: sparse.iter().map(area).collect(),
        mmap_fd: file.map(|f| f.as_raw_fd()),
    }
}

#[test]
fn our_client_works_with_their_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nic.sock");
    let file = memfd(0x10000, true);
    let regions = (0..9)
        .map(|index| match index {
            0 => their_region(0, 0x1000, &[], None),
            2 => their_region(2, 0x4000, &[(0x2000, 0x1000)], Some(&file)),
            7 => their_region(7, 0x100, &[], None),
            _ => their_region(index, 0, &[], None),
        })
        .collect();
    let irqs = (0..5)
        .map(|index| IrqInfo {
            index,
            flags: 1,
            count: if index == 2 { 40 } else { 1 },
        })
        .collect();
    let server = vfio_user::Server::new(&path, true, irqs, regions).unwrap();
    let seen = Seen {
        bar0: vec![0; 0x1000],
        events: (0..40).map(|_| None).collect(),
        ..Seen::default()
    };
    let mut backend = Backend(Arc::new(Mutex::new(seen)));
    let state = backend.0.clone();
    let thread = std::thread::spawn(move || server.run(&mut backend).unwrap());

    let client = Client::connect(&path, ClientOptions::default()).unwrap();
    assert_eq!(
        (client.bar_size(0), client.bar_size(1), client.msix_vectors()),
        (0x1000, 0, 40)
    );
    assert!(client.is_resettable());
    assert_eq!(client.server_capabilities().max_msg_fds, 1);
    let memory = client.bar(2).unwrap().memory.as_ref().unwrap();
    assert_eq!(
        (memory.offset, memory.areas.len(), memory.areas[0].offset),
        (0x5000, 1, 0x2000)
    );
    assert_eq!(
        rustix::fs::fstat(&memory.fd).unwrap().st_ino,
        rustix::fs::fstat(&file).unwrap().st_ino
    );

    let mut config = [0; 4];
    client.config_read(0, &mut config).unwrap();
    assert_eq!(config, [0x77; 4]);
    client.bar_write(0, 0x10, &[1, 2, 3, 4]).unwrap();
    client.bar_write_and_wait(0, 0x14, &[5, 6, 7, 8]).unwrap();
    let mut read = [0; 8];
    client.bar_read(0, 0x10, &mut read).unwrap();
    assert_eq!(read, [1, 2, 3, 4, 5, 6, 7, 8]);

    let events: Vec<OwnedFd> = (0..40).map(|_| event()).collect();
    client
        .set_msix(0, &events.iter().map(|e| Some(e.as_fd())).collect::<Vec<_>>())
        .unwrap();
    client.bar_write_and_wait(0, 0x800, &[39]).unwrap();
    assert!(signalled(&events[39]));
    client.set_msix(0, &[None; 40]).unwrap();
    assert!(state.lock().unwrap().events.iter().all(Option::is_none));

    let memory = memfd(0x4000, true);
    client
        .dma_map(0x9000, 0x1000, true, false, Some((memory.as_fd(), 0x2000)))
        .unwrap();
    client.dma_map(0xa000, 0x1000, true, true, None).unwrap();
    client.dma_unmap(0x9000, 0x1000).unwrap();
    client.reset().unwrap();
    {
        let state = state.lock().unwrap();
        assert_eq!(
            state.maps,
            [(0x2000, 0x9000, 0x1000, true, 1), (0, 0xa000, 0x1000, false, 3)]
        );
        assert_eq!((&state.unmaps[..], state.resets), (&[(0x9000, 0x1000)][..], 1));
    }
    // It answers a failed access with error number 0, after which the stream is still in step.
    let e = client.bar_read(2, 0, &mut [0; 4]).unwrap_err();
    assert!(matches!(e, ClientError::Refused { errno: 0, .. }), "{e}");
    client.reset().unwrap();
    drop(client);
    thread.join().unwrap();
}
