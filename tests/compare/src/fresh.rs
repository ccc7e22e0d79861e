//! ferroce's own recording: the whole driver on two NIC models, from opening to closing, with each kind of work request.

mod datagrams;
mod messages;
mod side;

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use ferroce::context::Context;
use ferroce::ethernet::{EthernetConfig, EthernetQueues};
use ferroce::port::MacAddress;
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::record::Recorder;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair;

use crate::record::{Record, RecordError, parse};

const ETHERTYPE_ARP: u16 = 0x0806;

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FreshError {
    /// The model wrote what is no recording.
    #[error("the model's recording can't be read")]
    Record(#[from] RecordError),
    /// Something of the driver or the model failed.
    #[error("{what}")]
    Run {
        /// What.
        what: String,
    },
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs the driver on a ConnectX-5, the NIC of the other recordings, and gives what it said.
///
/// # Errors
/// The driver, the model or the recording fails.
pub fn record() -> Result<Vec<Record>, FreshError> {
    let kept = Kept::default();
    let profile = |last| Profile::connectx5().with_mac([0x02, 0xfe, 0x0c, 0xe0, 0x00, last]);
    let config_of_testbed = TestbedConfig {
        profiles: [profile(1), profile(2)],
        ..TestbedConfig::default()
    };
    let testbed = Testbed::new(config_of_testbed).map_err(failed)?;
    testbed.with_nic(0, |nic| {
        nic.set_recorder(Some(Recorder::new(Box::new(kept.clone()))))
    });
    traffic(&testbed)?;
    testbed.with_nic(0, |nic| nic.set_recorder(None));
    let bytes = kept.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(parse(&String::from_utf8_lossy(&bytes))?)
}

fn failed(error: impl std::error::Error) -> FreshError {
    let what = error.to_string();
    FreshError::Run { what }
}

/// Everything that the driver does with a NIC, once.
fn traffic(testbed: &Testbed) -> Result<(), FreshError> {
    let contexts = [pair::open(testbed, 0), pair::open(testbed, 1)];
    messages::connected(testbed, &contexts)?;
    messages::blueflame(testbed, &contexts)?;
    messages::shared_receives(testbed, &contexts)?;
    datagrams::datagrams(testbed, &contexts)?;
    frames(testbed, &contexts)?;
    contexts[0].congestion_counters().map_err(failed)?;
    contexts[0].port_counters().map_err(failed)?;
    for context in contexts {
        context.close().map_err(failed)?;
    }
    Ok(())
}

/// A broadcast each way on the NICs' raw Ethernet queues, which the link's agent has.
fn frames(testbed: &Testbed, contexts: &[Arc<Context>; 2]) -> Result<(), FreshError> {
    let open = |nic: usize| EthernetQueues::open(&contexts[nic], &EthernetConfig::default()).map_err(failed);
    let mut ends = [open(0)?, open(1)?];
    for end in &mut ends {
        end.set_multicast(&[MacAddress([0x33, 0x33, 0, 0, 0, 1])])
            .map_err(failed)?;
        end.arm();
    }
    for (from, to) in [(0, 1), (1, 0)] {
        let mut frame = [0; 60];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&pair::mac(from).0);
        frame[12..14].copy_from_slice(&ETHERTYPE_ARP.to_be_bytes());
        ends[from].send(&frame).map_err(failed)?;
        side::until("a frame", || ends[to].poll(|_| ()) != 0)?;
        side::settle(testbed);
    }
    drop(ends);
    (0..2).try_for_each(|nic| side::no_more("CQ", testbed, nic))
}
