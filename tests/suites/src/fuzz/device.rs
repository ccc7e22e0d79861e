//! A device that lies to the driver: completions and events.

use std::cell::RefCell;
use std::sync::Arc;

use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::verbs::{Cq, CqConfig, Pd, Qp, QpConfig, RecvWr, Srq, SrqConfig, WcOpcode};
use ferroce_nic_model::clock::ManualClock;
use ferroce_nic_model::link::cable::{CablePort, cable};
use ferroce_nic_model::nic::Nic;
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::runner::{Drive, Runner};

use super::Input;

/// One NIC, up.
struct Rig {
    runner: Runner,
    pd: Pd,
    context: Arc<Context>,
    _peer: CablePort,
}

impl Rig {
    fn new() -> Rig {
        let (port, peer) = cable(4);
        let nic = Nic::new(Profile::minimal(), Box::new(port));
        let runner = Runner::new(vec![nic], Arc::new(ManualClock::new()), Drive::Caller).expect("a runner");
        let function = InProcess::new("fuzzed", runner.device(0).expect("a NIC")).expect("a function");
        let config = OpenConfig::new().interrupts(false);
        let context = Context::open(Arc::new(function), config).expect("the NIC comes up");
        let pd = Pd::alloc(&context).expect("a PD");
        Rig {
            runner,
            pd,
            context,
            _peer: peer,
        }
    }

    /// What completions of a queue pair name it by.
    fn user_index(&self, qp: &Qp) -> u32 {
        let found = self.runner.with_nic(0, |nic| {
            let found = nic.data_plane.objects.qps.get(qp.qpn().get());
            found.map(|qp| qp.user_index)
        });
        found.flatten().expect("the NIC has it")
    }

    /// Writes into a queue that the device writes: at `offset` of the only object of that kind.
    fn scribble(&self, cq: bool, number: u32, offset: u64, bytes: &[u8]) {
        self.runner.with_nic(0, |nic| {
            let objects = &nic.data_plane.objects;
            let ring = if cq {
                objects.cqs.get(number).map(|cq| &cq.ring)
            } else {
                objects.eqs.get(number).map(|eq| &eq.ring)
            };
            if let Some((iova, _)) = ring.and_then(|ring| ring.iova(offset)) {
                nic.data_plane.host.write(iova, bytes).expect("mapped");
            }
        });
    }
}

thread_local! {
    static RIG: RefCell<Option<Rig>> = const { RefCell::new(None) };
}

/// Runs `f` on a NIC that may have served before, and throws it away if it has failed.
fn with_rig(f: impl FnOnce(&Rig)) {
    RIG.with(|rig| {
        let mut rig = rig.borrow_mut();
        f(rig.get_or_insert_with(Rig::new));
        if rig.as_ref().is_some_and(|rig| rig.context.failure().is_some()) {
            *rig = None;
        }
    });
}

/// Completion queue entries that the driver polls.
///
/// # Panics
/// On a bug.
pub fn completions(data: &[u8]) {
    with_rig(|rig| {
        let (cq, mut poller) = Cq::create(&rig.context, CqConfig::new(63)).expect("a CQ");
        let config = QpConfig {
            max_send_wr: 8,
            max_recv_wr: 8,
            ..QpConfig::default()
        };
        let mut qp = Qp::create(&rig.pd, &cq, &cq, &config).expect("a QP");
        qp.modify_to_init(&Default::default()).expect("INIT");
        let mut input = Input(data);
        let receives = u64::from(input.u8() & 7);
        for wr_id in 0..receives {
            qp.post_recv(&RecvWr { wr_id, sges: &[] }).expect("there is room");
        }
        qp.ring_recv();
        let mut shown = 0;
        for n in 0u64.. {
            if input.is_empty() {
                break;
            }
            let fitting = input.u8();
            let mut cqe: [u8; 64] = input.array();
            if fitting & 3 != 0 {
                // A receive of this queue pair, as far as that goes.
                let qpn = qp.qpn().get().to_be_bytes();
                cqe[0x38..0x3c].copy_from_slice(&qpn);
                cqe[0x3c..0x3e].copy_from_slice(&u16::from(fitting >> 2).to_be_bytes());
            }
            // The owner bit of this lap.
            cqe[0x3f] = cqe[0x3f] & 0xfe | (n >> 6 & 1) as u8;
            rig.scribble(true, cq.cqn().get(), n % 64 * 64, &cqe);
            if poller
                .poll(8, |wc| drop(wc.result()))
                .map(|n| shown += n)
                .is_err()
            {
                break;
            }
        }
        assert!(
            shown as u64 <= receives,
            "{shown} completions of {receives} receives"
        );
        let _ = qp.destroy();
        rig.context.process_events();
    });
}

/// Completion queue entries that name slots of a shared receive queue, which the driver polls for two queue pairs, one of which
/// goes in the middle.
///
/// # Panics
/// On a bug.
pub fn srq_completions(data: &[u8]) {
    with_rig(|rig| {
        let (cq, mut poller) = Cq::create(&rig.context, CqConfig::new(63)).expect("a CQ");
        let mut srq = Srq::create(
            &rig.pd,
            &SrqConfig {
                max_wr: 6,
                max_sge: 1,
            },
        )
        .expect("an SRQ");
        let config = QpConfig {
            max_send_wr: 8,
            ..QpConfig::default()
        };
        let create = || Qp::create_on_srq(&rig.pd, &cq, &cq, &srq, &config).expect("a QP");
        let (kept, gone) = (create(), create());
        let keys = [&kept, &gone].map(|qp| rig.user_index(qp));
        let mut gone = Some(gone);
        let mut input = Input(data);
        let (mut posted, mut shown, mut returned) = (0u64, 0u64, 0u64);
        for n in 0u64.. {
            if input.is_empty() {
                break;
            }
            let choice = input.u8();
            while srq
                .post_recv(&RecvWr {
                    wr_id: posted,
                    sges: &[],
                })
                .is_ok()
            {
                posted += 1;
            }
            srq.ring();
            let mut cqe: [u8; 64] = input.array();
            if choice & 3 != 0 {
                cqe[0x20..0x24].copy_from_slice(&keys[usize::from(choice >> 7)].to_be_bytes());
                cqe[0x3c..0x3e].copy_from_slice(&u16::from(choice >> 2 & 7).to_be_bytes());
            }
            cqe[0x3f] = cqe[0x3f] & 0xfe | (n >> 6 & 1) as u8;
            rig.scribble(true, cq.cqn().get(), n % 64 * 64, &cqe);
            if n == 20 {
                drop(gone.take());
                rig.context.process_events();
            }
            let polled = poller.poll(8, |wc| {
                shown += u64::from(wc.result().is_ok_and(|done| done.opcode == WcOpcode::Recv));
            });
            if polled.is_err() {
                break;
            }
            while srq.take_returned().is_some() {
                returned += 1;
            }
        }
        assert!(
            shown + returned <= posted,
            "{shown} and {returned} of {posted} receives"
        );
        drop((kept, gone));
        rig.context.process_events();
    });
}

/// Event queue entries that the driver takes in.
///
/// # Panics
/// On a bug.
pub fn events(data: &[u8]) {
    with_rig(|rig| {
        let numbers: Vec<u32> = rig
            .runner
            .with_nic(0, |nic| {
                nic.data_plane
                    .objects
                    .eqs
                    .iter()
                    .map(|(number, _)| number)
                    .collect()
            })
            .expect("a NIC");
        let mut input = Input(data);
        while !input.is_empty() && rig.context.failure().is_none() {
            let number = numbers[usize::from(input.u8()) % numbers.len()];
            let eqe: [u8; 64] = input.array();
            // Everywhere, so that wherever the driver looks next there is one, whichever lap it is.
            for slot in 0..256 {
                rig.scribble(false, number, slot * 64, &eqe);
            }
            rig.context.process_events();
            while rig.context.next_event().is_some() {}
        }
    });
    // What its queues hold is nonsense now.
    RIG.with(|rig| *rig.borrow_mut() = None);
}
