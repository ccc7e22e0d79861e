//! Records a port's frames in a pcap file with nanosecond time stamps, for tshark and Wireshark.

use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};

use super::{LinkError, MAX_FRAME, Port, PortCounters, Waker};
use crate::clock::Nanos;
use crate::wire::Frame;

type Sink = Box<dyn Write + Send>;

/// The sink, kept apart from the writer that owns it, since that has no way to flush it.
#[derive(Clone)]
struct SharedSink(Arc<Mutex<Sink>>);

impl SharedSink {
    fn lock(&self) -> MutexGuard<'_, Sink> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for SharedSink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.lock().flush()
    }
}

/// A pcap file that several ports may write to; clones share it.
#[derive(Clone)]
pub struct PcapFile {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    /// `None` after a write has failed: half a record ends the file.
    writer: Option<PcapWriter<SharedSink>>,
    sink: SharedSink,
    /// Time at which the clock stood at 0, since 1970.
    epoch: Duration,
    frames: u64,
}

impl PcapFile {
    /// Creates or overwrites the file at `path`. `epoch` is the time since 1970 at which the clock stood at 0;
    /// zero for virtual time.
    ///
    /// # Errors
    /// [`LinkError::Os`].
    pub fn create(path: &Path, epoch: Duration) -> Result<PcapFile, LinkError> {
        let os = |what| {
            move |source| LinkError::Os {
                what,
                object: path.display().to_string(),
                source,
            }
        };
        let file = File::create(path).map_err(os("creating"))?;
        PcapFile::new(Box::new(BufWriter::new(file)), epoch).map_err(os("writing"))
    }

    /// Writes to `sink`.
    ///
    /// # Errors
    /// The header can't be written.
    pub fn new(sink: Sink, epoch: Duration) -> std::io::Result<PcapFile> {
        let header = PcapHeader {
            version_major: 2,
            version_minor: 4,
            ts_correction: 0,
            ts_accuracy: 0,
            snaplen: MAX_FRAME as u32,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::Little,
        };
        let sink = SharedSink(Arc::new(Mutex::new(sink)));
        let writer = PcapWriter::with_header(sink.clone(), header).map_err(std::io::Error::other)?;
        let inner = Inner {
            writer: Some(writer),
            sink,
            epoch,
            frames: 0,
        };
        Ok(PcapFile {
            inner: Arc::new(Mutex::new(inner)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a frame. A failure is logged once and ends the recording; the wire goes on.
    pub fn write(&self, now: Nanos, frame: &Frame) {
        let mut inner = self.lock();
        let at = inner.epoch.saturating_add(Duration::from_nanos(now.get()));
        let Some(writer) = inner.writer.as_mut() else {
            return;
        };
        // A payload that the host has taken away can't be recorded; its receiver drops the frame too.
        let Ok(bytes) = frame.to_bytes() else {
            return;
        };
        let len = bytes.len() as u32;
        match writer.write_packet(&PcapPacket::new(at, len, &bytes)) {
            Ok(_) => inner.frames += 1,
            Err(e) => {
                log::warn!("recording frames ends, since one could not be written: {e}");
                inner.writer = None;
            }
        }
    }

    /// Frames written so far.
    pub fn frames(&self) -> u64 {
        self.lock().frames
    }

    /// Hands what is buffered to the operating system. Dropping the last clone does it too.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn flush(&self) -> std::io::Result<()> {
        self.lock().sink.flush()
    }
}

impl fmt::Debug for PcapFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PcapFile")
            .field("frames", &self.frames())
            .finish_non_exhaustive()
    }
}

/// A port that records what it sends and receives. Around a fault wrapper it records frames before the faults,
/// inside of one after them.
#[derive(Debug)]
pub struct PcapPort<P> {
    inner: P,
    file: PcapFile,
}

impl<P: Port> PcapPort<P> {
    /// Records `inner`'s frames in `file`.
    pub fn new(inner: P, file: PcapFile) -> PcapPort<P> {
        PcapPort { inner, file }
    }

    /// The port inside.
    pub fn inner(&self) -> &P {
        &self.inner
    }
}

impl<P: Port> Port for PcapPort<P> {
    fn send(&mut self, now: Nanos, frame: Frame) {
        self.file.write(now, &frame);
        self.inner.send(now, frame);
    }

    fn recv(&mut self, now: Nanos) -> Option<Frame> {
        let frame = self.inner.recv(now)?;
        self.file.write(now, &frame);
        Some(frame)
    }

    fn next_event(&self) -> Option<Nanos> {
        self.inner.next_event()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn set_waker(&mut self, waker: Option<Waker>) {
        self.inner.set_waker(waker);
    }

    fn is_up(&self) -> bool {
        self.inner.is_up()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcap::PcapReader;

    use super::*;
    use crate::link::cable::cable;

    #[test]
    fn both_directions_are_recorded_with_their_times() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wire.pcap");
        let file = PcapFile::create(&path, Duration::from_secs(1_000_000_000)).unwrap();
        let (a, mut b) = cable(4);
        let mut a = PcapPort::new(a, file.clone());
        a.send(Nanos(5), Frame::from_vec(vec![1; 60]));
        b.send(Nanos(6), Frame::from_vec(vec![2; 70]));
        assert!(a.recv(Nanos(1_500_000_007)).is_some());
        file.flush().unwrap();
        assert_eq!(file.frames(), 2);
        let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(reader.header().ts_resolution, TsResolution::NanoSecond);
        let first = reader.next_packet().unwrap().unwrap();
        assert_eq!(
            (first.timestamp, &first.data[..]),
            (Duration::new(1_000_000_000, 5), &[1; 60][..])
        );
        let second = reader.next_packet().unwrap().unwrap();
        assert_eq!(
            (second.timestamp, second.data.len()),
            (Duration::new(1_000_000_001, 500_000_007), 70)
        );
        assert!(reader.next_packet().is_none());
    }

    #[test]
    fn a_full_disk_ends_the_recording_and_not_the_wire() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0 = self
                    .0
                    .checked_sub(bytes.len())
                    .ok_or(std::io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let file = PcapFile::new(Box::new(Full(110)), Duration::ZERO).unwrap();
        let (a, mut b) = cable(4);
        let mut a = PcapPort::new(a, file.clone());
        for _ in 0..3 {
            a.send(Nanos::ZERO, Frame::from_vec(vec![1; 60]));
            assert!(b.recv(Nanos::ZERO).is_some());
        }
        assert_eq!(file.frames(), 1);
        file.flush().unwrap();
    }
}
