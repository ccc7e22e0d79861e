//! ferroce's own recording: the whole driver on two NIC models, from opening to closing, with each kind of work request.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ferroce::context::Context;
use ferroce::ethernet::{EthernetConfig, EthernetQueues};
use ferroce::port::MacAddress;
use ferroce::verbs::{
    Access, Ah, GSI_QKEY, Path, Payload, Qp, QpConfig, QpType, RecvWr, SendFlags, SendOp, SendWr, Srq,
    SrqConfig, ToInit, ToRtr, ToRts,
};
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::record::Recorder;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{self, PATIENCE, Side};

use crate::record::{Record, RecordError, parse};

/// What is sent inline.
const INLINE: [u8; 16] = [7; 16];
const ETHERTYPE_ARP: u16 = 0x0806;
/// The key of UD queue pairs.
const QKEY: u32 = 0x1111_1111;

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

/// Sizes that the test programs of Linux ask for too.
fn config(qp_type: QpType) -> QpConfig {
    QpConfig {
        qp_type,
        max_send_wr: 128,
        max_recv_wr: 512,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 64,
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
    for qp_type in [QpType::Rc, QpType::Uc] {
        let [mut a, mut b] = sides(&contexts, qp_type);
        pair::connect((&mut a.qp, &a.context), (&mut b.qp, &b.context), |rtr, rts| {
            if qp_type == QpType::Uc {
                *rtr = ToRtr::uc(rtr.path, rtr.remote_qpn, rtr.rq_psn);
                *rts = ToRts::uc(rts.sq_psn);
            }
        });
        messages(testbed, &mut a, &mut b)?;
        messages(testbed, &mut b, &mut a)?;
        writes(testbed, &mut a, &b)?;
        if qp_type == QpType::Rc {
            reads(testbed, &mut a, &b)?;
        }
        end(testbed, 0, a, None)?;
        end(testbed, 1, b, None)?;
    }
    shared_receives(testbed, &contexts)?;
    for (qp_type, init) in [(QpType::Ud, ToInit::ud(QKEY)), (QpType::Gsi, ToInit::default())] {
        let [mut a, mut b] = sides(&contexts, qp_type);
        for side in [&mut a, &mut b] {
            side.qp.start_datagrams(&init).map_err(failed)?;
        }
        datagrams(testbed, (&mut a, 0), (&mut b, 1))?;
        datagrams(testbed, (&mut b, 1), (&mut a, 0))?;
        end(testbed, 0, a, None)?;
        end(testbed, 1, b, None)?;
    }
    frames(testbed, &contexts)?;
    for context in contexts {
        context.close().map_err(failed)?;
    }
    Ok(())
}

/// Messages into a shared receive queue with a limit, each way.
fn shared_receives(testbed: &Testbed, contexts: &[Arc<Context>; 2]) -> Result<(), FreshError> {
    let mut both = sides(contexts, QpType::Rc);
    let mut srqs = Vec::new();
    for side in &mut both {
        let srq = Srq::create(
            &side.pd,
            &SrqConfig {
                max_wr: 16,
                max_sge: 1,
            },
        )
        .map_err(failed)?;
        let qp =
            Qp::create_on_srq(&side.pd, &side.cq, &side.cq, &srq, &config(QpType::Rc)).map_err(failed)?;
        std::mem::replace(&mut side.qp, qp).destroy().map_err(failed)?;
        srqs.push(srq);
    }
    let [a, b] = &mut both;
    pair::connect((&mut a.qp, &a.context), (&mut b.qp, &b.context), |_, _| ());
    for (from, to) in [(0, 1), (1, 0)] {
        let into = both[to].mr.sge(0..64).map_err(failed)?;
        let sges = std::slice::from_ref(&into);
        srqs[to].post_recv(&RecvWr { wr_id: 2, sges }).map_err(failed)?;
        srqs[to].ring();
        srqs[to].arm(1).map_err(failed)?;
        let out = both[from].mr.sge(0..64).map_err(failed)?;
        let data = Payload::Gather(std::slice::from_ref(&out));
        post(testbed, &mut both[from], SendOp::Send { data, imm: None })?;
        completion(&mut both[to])?;
    }
    for ((nic, side), srq) in both.into_iter().enumerate().zip(srqs) {
        end(testbed, nic, side, Some(srq))?;
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
        until("a frame", || ends[to].poll(|_| ()) != 0)?;
        settle(testbed);
    }
    drop(ends);
    (0..2).try_for_each(|nic| no_more("CQ", testbed, nic))
}

fn sides(contexts: &[Arc<Context>; 2], qp_type: QpType) -> [Side; 2] {
    contexts
        .each_ref()
        .map(|context| Side::on(Arc::clone(context), &config(qp_type)))
}

/// Takes a side down, in the order of Linux's test programs, one thing after the other: what is dropped is destroyed by
/// the reaper, when it comes to it.
fn end(testbed: &Testbed, nic: usize, side: Side, srq: Option<Srq>) -> Result<(), FreshError> {
    side.qp.destroy().map_err(failed)?;
    if let Some(srq) = srq {
        srq.destroy().map_err(failed)?;
    }
    drop((side.poller, side.cq));
    no_more("CQ", testbed, nic)?;
    side.mr.dereg().map_err(failed)?;
    side.pd.dealloc().map_err(failed)
}

fn post(testbed: &Testbed, side: &mut Side, op: SendOp<'_>) -> Result<(), FreshError> {
    let wr = SendWr {
        wr_id: 1,
        op,
        flags: SendFlags::SIGNALED,
    };
    // Armed while the queue is empty, and waited for until the event is there: so each run says the same.
    let before = side.poller.events();
    side.poller.req_notify(false);
    side.qp.post_send(&wr).map_err(failed)?;
    side.qp.ring_send();
    until("an event of the completion queue", || {
        side.context.poll_completion_events(0);
        side.poller.events() != before
    })?;
    completion(side)?;
    settle(testbed);
    Ok(())
}

/// Doorbells are posted writes: all have arrived when this returns, before another queue entry is there.
fn settle(testbed: &Testbed) {
    for nic in 0..2 {
        testbed.with_nic(nic, |_| ());
    }
}

/// Waits until a NIC has no object of a kind.
fn no_more(kind: &str, testbed: &Testbed, nic: usize) -> Result<(), FreshError> {
    until("the end of all objects of a kind", || {
        let stats = testbed.stats(nic);
        stats.is_some_and(|stats| {
            stats
                .objects
                .iter()
                .all(|(name, count)| *name != kind || *count == 0)
        })
    })
}

/// The next completion, which has to be a success.
fn completion(side: &mut Side) -> Result<(), FreshError> {
    let mut result = None;
    until("a completion", || {
        let polled = side.poller.poll(1, |wc| result = Some(wc.result().map(drop)));
        polled.is_err() || result.is_some()
    })?;
    result.unwrap_or(Ok(())).map_err(failed)
}

fn until(what: &str, mut so: impl FnMut() -> bool) -> Result<(), FreshError> {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        if Instant::now() > deadline {
            let what = format!("{what} did not come within {PATIENCE:?}");
            return Err(FreshError::Run { what });
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn receive(side: &mut Side) -> Result<(), FreshError> {
    let into = side.mr.sge(0..8192).map_err(failed)?;
    let wr = RecvWr {
        wr_id: 2,
        sges: std::slice::from_ref(&into),
    };
    side.qp.post_recv(&wr).map_err(failed)?;
    side.qp.ring_recv();
    Ok(())
}

/// SENDs of each form, and WRITEs with immediate.
fn messages(testbed: &Testbed, from: &mut Side, to: &mut Side) -> Result<(), FreshError> {
    let out = from.mr.sge(0..4096).map_err(failed)?;
    let remote = to.mr.remote(0);
    let data = || Payload::Gather(std::slice::from_ref(&out));
    let inline = || Payload::Inline(&INLINE);
    let ops = [
        SendOp::Send {
            data: data(),
            imm: None,
        },
        SendOp::Send {
            data: data(),
            imm: Some(7),
        },
        SendOp::Send {
            data: inline(),
            imm: None,
        },
        SendOp::Write {
            data: data(),
            remote,
            imm: Some(7),
        },
    ];
    for op in ops {
        receive(to)?;
        post(testbed, from, op)?;
        completion(to)?;
    }
    Ok(())
}

fn writes(testbed: &Testbed, from: &mut Side, to: &Side) -> Result<(), FreshError> {
    let own = from.mr.sge(0..4096).map_err(failed)?;
    let remote = to.mr.remote(0);
    for data in [Payload::Gather(&[own]), Payload::Inline(&INLINE)] {
        post(
            testbed,
            from,
            SendOp::Write {
                data,
                remote,
                imm: None,
            },
        )?;
    }
    Ok(())
}

/// READ, and atomics where there are any.
fn reads(testbed: &Testbed, from: &mut Side, to: &Side) -> Result<(), FreshError> {
    let own = from.mr.sge(0..4096).map_err(failed)?;
    let remote = to.mr.remote(0);
    post(testbed, from, SendOp::Read { into: &[own], remote })?;
    if Access::supported_by(&from.context).contains(Access::REMOTE_ATOMIC) {
        let into = from.mr.sge(0..8).map_err(failed)?;
        post(testbed, from, SendOp::FetchAdd { into, remote, add: 1 })?;
        post(
            testbed,
            from,
            SendOp::CompareSwap {
                into,
                remote,
                compare: 1,
                swap: 2,
            },
        )?;
    }
    Ok(())
}

/// Datagrams of each form from one NIC to the other.
fn datagrams(
    testbed: &Testbed,
    (from, own): (&mut Side, usize),
    (to, peer): (&mut Side, usize),
) -> Result<(), FreshError> {
    let gid = pair::gid_index(&from.context, own);
    let path = Path::to_ip(gid, pair::address(peer), pair::mac(peer));
    let ah = Ah::new(&from.pd, &path).map_err(failed)?;
    let out = from.mr.sge(0..64).map_err(failed)?;
    let forms = [
        (Payload::Gather(std::slice::from_ref(&out)), None),
        (Payload::Gather(std::slice::from_ref(&out)), Some(7)),
        (Payload::Inline(&INLINE), None),
    ];
    let (qpn, qkey) = match from.qp.config().qp_type {
        QpType::Gsi => (to.qp.qpn(), GSI_QKEY),
        _ => (to.qp.qpn(), QKEY),
    };
    for (data, imm) in forms {
        receive(to)?;
        post(
            testbed,
            from,
            SendOp::SendTo {
                data,
                imm,
                to: &ah,
                qpn,
                qkey,
            },
        )?;
        completion(to)?;
    }
    Ok(())
}
