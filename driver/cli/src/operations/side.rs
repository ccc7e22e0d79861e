//! This side's verbs objects.

use std::time::Instant;

use ferroce::verbs::{
    Access, Cq, CqConfig, CqPoller, Mr, Payload, Pd, Qp, QpConfig, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, ToInit, ToRtr, ToRts, WcOpcode, WcSuccess,
};
use serde_json::{Value, json};

use super::OperationsArgs;
use super::plan::{
    Arrival, AtomicResult, FILL, Kind, Memory, Op, RECEIVES, REMOTE, RESULTS, Role, SLOT, SOURCE, WINDOW,
};
use super::talk::Peer;
use crate::error::{CliError, failed};
use crate::nic::{self, LocalGid, Nic};

/// Requests under way at a time.
const DEPTH: u32 = 32;
/// `wr_id` of receives; sends have their number.
const RECV: u64 = 1 << 32;

/// Fields go in this order.
pub struct Side {
    qp: Qp,
    poller: CqPoller,
    remote: Mr,
    source: Mr,
    results: Mr,
    receives: Mr,
    /// Keys that the peer ends.
    windows: Vec<Mr>,
    /// Receives that have completed.
    arrived: Vec<Arrival>,
    sent: u32,
    peer: RemoteAddr,
    psn: u32,
    pd: Pd,
}

impl Side {
    pub fn new(nic: &Nic, seed: u64) -> Result<Side, CliError> {
        let context = nic.context();
        let pd = Pd::alloc(context).map_err(failed("protection domain"))?;
        let (cq, poller) = Cq::create(context, CqConfig::new(4 * DEPTH)).map_err(failed("CQ"))?;
        let config = QpConfig {
            max_send_wr: DEPTH,
            max_recv_wr: 2 * DEPTH,
            ..QpConfig::default()
        };
        let mut qp = Qp::create(&pd, &cq, &cq, &config).map_err(failed("QP"))?;
        qp.modify_to_init(&ToInit::default())
            .map_err(failed("QP to INIT"))?;
        let region = |len, access| Mr::alloc(&pd, len, access).map_err(failed("memory region"));
        let source = region(SOURCE, Access::empty())?;
        source
            .write(0, &Memory::new(seed, Role::Host).source)
            .map_err(failed("memory region"))?;
        Ok(Side {
            qp,
            poller,
            remote: region(REMOTE, Access::supported_by(context))?,
            source,
            results: region(RESULTS, Access::LOCAL_WRITE)?,
            receives: region(RECEIVES, Access::LOCAL_WRITE)?,
            windows: Vec::new(),
            arrived: Vec::new(),
            sent: 0,
            peer: RemoteAddr { addr: 0, rkey: 0 },
            psn: (seed as u32).wrapping_mul(0x9e37_79b1) >> 8,
            pd,
        })
    }

    fn gid(nic: &Nic) -> Result<LocalGid, CliError> {
        nic.gid(None)
    }

    /// What the peer has to know.
    pub fn describe(&self, nic: &Nic, mtu: u16, seed: u64) -> Result<Value, CliError> {
        let remote = self.remote.remote(0);
        Ok(json!({
            "qpn": self.qp.qpn().get(), "psn": self.psn, "gid": Side::gid(nic)?.entry.gid.to_string(), "mtu": mtu,
            "addr": remote.addr, "rkey": remote.rkey, "seed": seed,
            "sizes": { "remote": REMOTE, "source": SOURCE, "results": RESULTS, "receives": RECEIVES, "slot": SLOT,
                       "window": WINDOW, "depth": DEPTH, "fill": FILL },
        }))
    }

    pub fn connect(&mut self, nic: &Nic, args: &OperationsArgs, peer: &Peer) -> Result<(), CliError> {
        let path = nic.path(&Side::gid(nic)?, peer.gid, args.patience())?;
        let to_rtr = ToRtr {
            mtu: nic::mtu(args.mtu)?,
            ..ToRtr::new(path, peer.qpn, peer.psn)
        };
        self.peer = peer.memory;
        self.qp.modify_to_rtr(&to_rtr).map_err(failed("QP to RTR"))?;
        self.qp
            .modify_to_rts(&ToRts::new(self.psn))
            .map_err(failed("QP to RTS"))
    }

    /// Before a batch in which so many messages come.
    pub fn begin(&mut self, receives: usize) -> Result<(), CliError> {
        let memory = failed::<ferroce::mem::DmaError>;
        self.results.fill(0, RESULTS, FILL).map_err(memory("results"))?;
        self.receives
            .fill(0, RECEIVES, FILL)
            .map_err(memory("receives"))?;
        self.windows.clear();
        self.arrived.clear();
        for slot in 0..receives {
            let sges = [self
                .receives
                .sge(slot * SLOT..(slot + 1) * SLOT)
                .map_err(failed("receive"))?];
            let wr = RecvWr {
                wr_id: RECV,
                sges: &sges,
            };
            self.qp.post_recv(&wr).map_err(failed("receive"))?;
        }
        self.qp.ring_recv();
        Ok(())
    }

    /// Keys that the peer's operations shall end.
    pub fn make_keys(&mut self, ops: &[Op]) -> Result<Vec<Option<u32>>, CliError> {
        let mut keys = Vec::new();
        for op in ops {
            keys.push(if op.kind == Kind::SendInvalidate {
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                let window =
                    Mr::alloc_invalidatable(&self.pd, WINDOW, access).map_err(failed("memory region"))?;
                let key = window.rkey();
                self.windows.push(window);
                Some(key)
            } else {
                None
            });
        }
        Ok(keys)
    }

    /// Does the operations, some at a time, and waits for all of them.
    pub fn execute(&mut self, ops: &[Op], keys: &[Option<u32>], deadline: Instant) -> Result<(), CliError> {
        self.sent = 0;
        for (number, (op, key)) in ops.iter().zip(keys).enumerate() {
            while number as u32 - self.sent >= DEPTH {
                self.wait(deadline)?;
            }
            self.post(number as u64, op, *key)?;
        }
        while (self.sent as usize) < ops.len() {
            self.wait(deadline)?;
        }
        Ok(())
    }

    fn post(&mut self, wr_id: u64, op: &Op, key: Option<u32>) -> Result<(), CliError> {
        let from = if op.kind == Kind::Read || op.kind.is_atomic() {
            &self.results
        } else {
            &self.source
        };
        let sge = from.sge(op.local..op.local + op.len).map_err(failed("request"))?;
        let sges = [sge];
        let data = Payload::Gather(&sges);
        let remote = RemoteAddr {
            addr: self.peer.addr + op.remote as u64,
            rkey: self.peer.rkey,
        };
        let imm = Some(op.value as u32);
        let send_op = match op.kind {
            Kind::Write => SendOp::Write {
                data,
                remote,
                imm: None,
            },
            Kind::WriteImm => SendOp::Write { data, remote, imm },
            Kind::Read => SendOp::Read { into: &sges, remote },
            Kind::Send => SendOp::Send { data, imm: None },
            Kind::SendImm => SendOp::Send { data, imm },
            Kind::SendInvalidate => SendOp::SendInvalidate {
                data,
                rkey: key.unwrap_or_default(),
            },
            Kind::CompareSwap => SendOp::CompareSwap {
                into: sge,
                remote,
                compare: op.compare,
                swap: op.value,
            },
            Kind::FetchAdd => SendOp::FetchAdd {
                into: sge,
                remote,
                add: op.value,
            },
        };
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::FENCE, op.fence);
        let wr = SendWr {
            wr_id,
            op: send_op,
            flags,
        };
        self.qp.post_send(&wr).map_err(failed("request"))?;
        self.qp.ring_send();
        Ok(())
    }

    /// Takes completions in; asleep until there is one.
    fn wait(&mut self, deadline: Instant) -> Result<(), CliError> {
        self.poller.wait(deadline).map_err(failed("completion"))?;
        while let Some(wc) = self.poller.poll_one().map_err(failed("completion"))? {
            let wc = wc.result().map_err(failed("completion"))?;
            self.completed(&wc)?;
        }
        Ok(())
    }

    fn completed(&mut self, wc: &WcSuccess) -> Result<(), CliError> {
        match wc.opcode {
            WcOpcode::Recv | WcOpcode::RecvRdmaWithImm => self.arrived.push(Arrival {
                len: wc.byte_len as usize,
                imm: wc.imm,
                key: wc.invalidated_rkey,
            }),
            _ if wc.wr_id == u64::from(self.sent) => self.sent += 1,
            _ => {
                let text = format!("request {} completed where {} was due", wc.wr_id, self.sent);
                return Err(CliError::Other(text));
            }
        }
        Ok(())
    }

    /// What so many receives say.
    pub fn arrivals(&mut self, count: usize, deadline: Instant) -> Result<Vec<Arrival>, CliError> {
        while self.arrived.len() < count {
            self.wait(deadline)?;
        }
        Ok(std::mem::take(&mut self.arrived))
    }

    /// Compares what atomics gave, and puts their bytes, which may be in the NIC's own order, where they are.
    pub fn check_results(&self, results: &[AtomicResult], memory: &mut Memory) -> Result<(), CliError> {
        for &(at, want) in results {
            let got = self.results.atomic_result(at).map_err(failed("results"))?;
            if got != want {
                return Err(CliError::Other(format!(
                    "an atomic gave {got:#x}, which should be {want:#x}"
                )));
            }
            self.results
                .read(at, &mut memory.results[at..at + 8])
                .map_err(failed("results"))?;
        }
        Ok(())
    }

    /// Compares all memory with what it has to hold.
    pub fn check_memory(&self, memory: &Memory) -> Result<(), CliError> {
        let regions = [
            ("remote", &self.remote, &memory.remote),
            ("results", &self.results, &memory.results),
            ("receives", &self.receives, &memory.receives),
        ];
        for (name, region, want) in regions {
            let mut got = vec![0; want.len()];
            region.read(0, &mut got).map_err(failed("memory region"))?;
            if let Some(at) = got.iter().zip(want).position(|(got, want)| got != want) {
                return Err(CliError::Other(format!(
                    "this side's memory ({name}) is {:#04x} at {at}, which should be {:#04x}",
                    got[at], want[at]
                )));
            }
        }
        Ok(())
    }

    /// Ends the objects.
    pub fn close(self) -> Result<(), CliError> {
        drop(self.windows);
        self.qp.destroy().map_err(failed("destroying the QP"))?;
        for region in [self.remote, self.source, self.results, self.receives] {
            region.dereg().map_err(failed("ending a memory region"))?;
        }
        Ok(())
    }
}
