//! Devices, threads and the order of accesses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferroce_vfio_user::device::{DeviceError, DmaFd, DmaMap, PciDevice};
use rustix::fs::MemfdFlags;

use super::*;
use crate::clock::{ManualClock, RealClock};
use crate::fw::plane::Plane;
use crate::link::cable::cable;
use crate::profile::Profile;

/// PCI command register: memory space and bus master.
const COMMAND: u16 = 4;

fn runner(drive: Drive) -> Runner {
    let (a, b) = cable(16);
    let nics = vec![
        Nic::new(Profile::minimal(), Box::new(a)),
        Nic::new(Profile::minimal(), Box::new(b)),
    ];
    let clock: Arc<dyn Clock> = match drive {
        Drive::Thread { .. } => Arc::new(RealClock::new()),
        Drive::Caller => Arc::new(ManualClock::new()),
    };
    Runner::new(nics, clock, drive).unwrap()
}

fn enabled(runner: &Runner, index: usize) -> Arc<ModelDevice> {
    let device = runner.device(index).unwrap();
    device.config_write(COMMAND, &6u16.to_le_bytes()).unwrap();
    device
}

fn read32(device: &ModelDevice, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    device.bar_read(0, offset, &mut bytes).unwrap();
    u32::from_be_bytes(bytes)
}

fn map(iova: u64, len: u64) -> DmaMap {
    let fd = rustix::fs::memfd_create("dma", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    DmaMap {
        iova,
        len,
        readable: true,
        writable: true,
        memory: Some(DmaFd { fd, offset: 0 }),
    }
}

#[test]
fn a_read_sees_the_writes_before_it() {
    for drive in [Drive::default(), Drive::Caller] {
        let runner = runner(drive);
        let device = enabled(&runner, 0);
        for round in 0..2_000u32 {
            device.bar_write(0, 0x10, &round.to_be_bytes()).unwrap();
            device.bar_write(0, 0x14, &(round << 12).to_be_bytes()).unwrap();
            // The low bits hold sizes and the state of the interface; the address reads as it was written.
            assert_eq!(read32(&device, 0x10), round);
        }
    }
}

#[test]
fn accesses_outside_are_refused_and_disabled_memory_reads_as_ones() {
    let runner = runner(Drive::Caller);
    let device = runner.device(0).unwrap();
    assert_eq!(read32(&device, 0), u32::MAX);
    let device = enabled(&runner, 0);
    assert_ne!(read32(&device, 0), u32::MAX);
    let size = device.bar_size(0);
    let mut bytes = [0; 8];
    assert!(matches!(
        device.bar_read(0, size - 4, &mut bytes),
        Err(DeviceError::OutOfRange { .. })
    ));
    assert!(matches!(
        device.bar_write(0, u64::MAX, &bytes),
        Err(DeviceError::OutOfRange { .. })
    ));
    assert!(matches!(
        device.bar_write(2, 0, &bytes),
        Err(DeviceError::NoSuch { .. })
    ));
    assert!(device.config_read(4090, &mut bytes).is_err());
    assert!(device.set_msix(device.msix_vectors(), vec![None]).is_err());
    assert!(runner.device(2).is_none());
}

#[test]
fn m12_only_whole_maps_are_unmapped_and_a_reset_keeps_them() {
    let runner = runner(Drive::Caller);
    let device = enabled(&runner, 0);
    device.dma_map(map(0x10_0000, 0x4000)).unwrap();
    for (iova, len) in [
        (0x10_1000, 0x1000),
        (0x10_0000, 0x8000),
        (0x10_0000, 0),
        (0x20_0000, 0x1000),
    ] {
        assert!(device.dma_unmap(iova, len).is_err(), "{iova:#x} {len:#x}");
    }
    device.reset().unwrap();
    assert!(matches!(
        device.dma_map(map(0x10_3000, 0x1000)),
        Err(DeviceError::Overlaps { .. })
    ));
    device.dma_unmap(0x10_0000, 0x4000).unwrap();
    device.dma_map(map(0x10_3000, 0x1000)).unwrap();
    device.detached();
    assert!(matches!(
        device.dma_unmap(0x10_3000, 0x1000),
        Err(DeviceError::NotMapped { .. })
    ));
}

#[test]
fn v03_resets_while_another_thread_writes_everywhere() {
    let runner = runner(Drive::default());
    let device = enabled(&runner, 0);
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (device, stop) = (Arc::clone(&device), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut at = 1u64;
            while !stop.load(Ordering::Relaxed) {
                // A walk over all offsets of registers, doorbells and the space between.
                at = at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let offset = ((at >> 20) % (device.bar_size(0) - 8)) & !3;
                device.bar_write(0, offset, &at.to_be_bytes()).unwrap();
            }
        })
    };
    for round in 0..1_000u64 {
        device.reset().unwrap();
        device.config_write(COMMAND, &6u16.to_le_bytes()).unwrap();
        let iova = 0x1000 * (1 + round % 7);
        device.dma_map(map(iova, 0x1000)).unwrap();
        device.dma_unmap(iova, 0x1000).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    device.reset().unwrap();
    let (objects, mapped) = runner
        .with_nic(0, |nic| {
            let plane = &nic.data_plane;
            (plane.census(), plane.host.counters().mapped_bytes)
        })
        .unwrap();
    assert!(objects.iter().all(|(_, count)| *count == 0), "{objects:?}");
    assert_eq!(mapped, 0);
}

#[test]
fn a_sleeping_engine_wakes_for_writes() {
    let spin = Duration::ZERO;
    let runner = runner(Drive::Thread { spin });
    let device = enabled(&runner, 0);
    let before = runner
        .with_nic(0, |nic| nic.data_plane.violations.total())
        .unwrap();
    let last_uar = device.bar_size(0) - 0x1000;
    for round in 1..=200 {
        // A doorbell in a page that nobody allocated: counted when the engine has seen it. `posted` is looked at
        // without the lock, so that nothing but the engine can have taken the write out.
        device.bar_write(0, last_uar + 0x800, &[0; 8]).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while !runner.shared.posted[0].is_empty() {
            assert!(
                std::time::Instant::now() < deadline,
                "the engine sleeps on, round {round}"
            );
            std::thread::yield_now();
        }
    }
    let after = runner
        .with_nic(0, |nic| nic.data_plane.violations.total())
        .unwrap();
    assert_eq!(after - before, 200);
}

#[test]
fn a_stopped_runner_leaves_devices_that_answer() {
    let mut runner = runner(Drive::default());
    let device = enabled(&runner, 1);
    runner.stop();
    drop(runner);
    assert_ne!(read32(&device, 0), u32::MAX);
    device.bar_write(0, 0x10, &[0; 4]).unwrap();
    device.detached();
}
