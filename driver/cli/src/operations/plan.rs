//! Which operations there are, and what they do to memory.

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::CliError;

/// Most operations of a batch.
pub const BATCH: usize = 64;
/// Bytes that the peer may reach.
pub const REMOTE: usize = 256 << 10;
/// Bytes that WRITEs and SENDs take their data from; they never change.
pub const SOURCE: usize = 256 << 10;
/// Most bytes of a message that a receive takes.
pub const SLOT: usize = 8 << 10;
/// Most bytes of a READ.
const READ: usize = 16 << 10;
/// Bytes that READs and atomics put their results into.
pub const RESULTS: usize = BATCH * READ;
/// Bytes that receives go to.
pub const RECEIVES: usize = BATCH * SLOT;
/// What receives and results hold before a batch.
pub const FILL: u8 = 0xa5;
/// Bytes that a key which is going to be invalidated is over.
pub const WINDOW: usize = 4096;

/// Which side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This one.
    Host,
    /// The peer.
    Guest,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Host => "ferroce",
            Role::Guest => "the peer",
        }
    }
}

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Write,
    WriteImm,
    Read,
    Send,
    SendImm,
    SendInvalidate,
    CompareSwap,
    FetchAdd,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::Write,
        Kind::WriteImm,
        Kind::Read,
        Kind::Send,
        Kind::SendImm,
        Kind::SendInvalidate,
        Kind::CompareSwap,
        Kind::FetchAdd,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Write => "write",
            Kind::WriteImm => "write_imm",
            Kind::Read => "read",
            Kind::Send => "send",
            Kind::SendImm => "send_imm",
            Kind::SendInvalidate => "send_inv",
            Kind::CompareSwap => "cas",
            Kind::FetchAdd => "fadd",
        }
    }

    pub fn takes_receive(self) -> bool {
        matches!(
            self,
            Kind::WriteImm | Kind::Send | Kind::SendImm | Kind::SendInvalidate
        )
    }

    pub fn is_atomic(self) -> bool {
        matches!(self, Kind::CompareSwap | Kind::FetchAdd)
    }

    fn is_rdma(self) -> bool {
        matches!(self, Kind::Read | Kind::Write | Kind::WriteImm)
    }

    fn answers(self) -> bool {
        self == Kind::Read || self.is_atomic()
    }
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    pub kind: Kind,
    /// Where its data are, or its result goes, at its own side.
    pub local: usize,
    /// Where at the peer; of no meaning to SENDs.
    pub remote: usize,
    pub len: usize,
    /// Immediate data; or what an atomic adds, or swaps in.
    pub value: u64,
    /// What a compare and swap compares with.
    pub compare: u64,
    /// Waits for earlier READs and atomics.
    pub fence: bool,
}

impl Op {
    /// As the peer is told of it.
    pub fn as_json(&self, key: Option<u32>) -> Value {
        json!({
            "kind": self.kind.name(), "local": self.local, "remote": self.remote, "len": self.len,
            "value": self.value, "compare": self.compare, "fence": self.fence, "key": key,
        })
    }

    fn overlaps(&self, other: &Op) -> bool {
        let end = |op: &Op| op.remote + op.len;
        self.remote < end(other) && other.remote < end(self)
    }
}

/// Operations of these kinds by chance; READs and WRITEs of 0 bytes only with `empty_rdma`.
pub fn batch(random: &mut StdRng, count: usize, kinds: &[Kind], empty_rdma: bool) -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    let mut results = 0;
    for _ in 0..count {
        let kind = kinds[random.random_range(0..kinds.len())];
        let len = if kind.is_atomic() { 8 } else { length(random, kind) };
        let len = if kind.is_rdma() && !empty_rdma {
            len.max(1)
        } else {
            len
        };
        let local = if kind.answers() {
            let at = results;
            results += len.next_multiple_of(8);
            at
        } else {
            random.random_range(0..=SOURCE - len)
        };
        // Most of them in a small part, so that they meet.
        let room = if random.random() { REMOTE } else { REMOTE / 16 };
        let align = if kind.is_atomic() { 8 } else { 1 };
        let remote = random.random_range(0..=(room - len.min(room)) / align) * align;
        let value = random.random();
        let value = if kind.is_atomic() {
            value
        } else {
            value & 0xffff_ffff
        };
        let mut op = Op {
            kind,
            local,
            remote: remote.min(REMOTE - len),
            len,
            value,
            compare: random.random_range(0..2),
            fence: false,
        };
        // A READ may be carried out after what follows it, unless this is fenced (IBTA vol. 1, 10.8.3.3, table 79).
        op.fence = ops
            .iter()
            .any(|earlier| earlier.kind.answers() && earlier.overlaps(&op));
        ops.push(op);
    }
    ops
}

fn length(random: &mut StdRng, kind: Kind) -> usize {
    let most = if kind == Kind::Read || kind == Kind::Write || kind == Kind::WriteImm {
        READ
    } else {
        SLOT
    };
    match random.random_range(0..10) {
        0 => 0,
        1..4 => random.random_range(1..=64),
        4..6 => (1 << random.random_range(8..13)) + random.random_range(0..3) - 1,
        6..9 => random.random_range(1..=4096),
        _ => random.random_range(1..=most),
    }
    .min(most)
}

/// What one side's memory has to hold.
pub struct Memory {
    pub remote: Vec<u8>,
    pub source: Vec<u8>,
    pub results: Vec<u8>,
    pub receives: Vec<u8>,
}

impl Memory {
    /// At the beginning.
    pub fn new(seed: u64, role: Role) -> Memory {
        let letter = match role {
            Role::Host => 'h',
            Role::Guest => 'g',
        };
        let source = (0..SOURCE / 32).flat_map(|i| Sha256::digest(format!("{seed} {letter} {i}")));
        Memory {
            remote: vec![0; REMOTE],
            source: source.collect(),
            results: vec![FILL; RESULTS],
            receives: vec![FILL; RECEIVES],
        }
    }

    /// Before a batch.
    pub fn begin(&mut self) {
        self.results.fill(FILL);
        self.receives.fill(FILL);
    }

    fn atomic(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.remote[at..at + 8]);
        u64::from_ne_bytes(bytes)
    }
}

/// Result of an atomic: where it went, and what it is.
pub type AtomicResult = (usize, u64);

/// Does the operations to the memories; the atomics' results, which stand in no memory of these as a NIC may write them
/// in an order of its own.
pub fn apply(ops: &[Op], from: &mut Memory, to: &mut Memory) -> Vec<AtomicResult> {
    let mut slot = 0;
    let mut results = Vec::new();
    for op in ops {
        let (local, remote) = (op.local..op.local + op.len, op.remote..op.remote + op.len);
        match op.kind {
            Kind::Write | Kind::WriteImm => to.remote[remote].copy_from_slice(&from.source[local]),
            Kind::Read => from.results[local].copy_from_slice(&to.remote[remote]),
            Kind::Send | Kind::SendImm | Kind::SendInvalidate => {
                to.receives[slot * SLOT..][..op.len].copy_from_slice(&from.source[local]);
            }
            Kind::CompareSwap | Kind::FetchAdd => {
                let old = to.atomic(op.remote);
                let new = match op.kind {
                    Kind::FetchAdd => old.wrapping_add(op.value),
                    _ if old == op.compare => op.value,
                    _ => old,
                };
                to.remote[remote].copy_from_slice(&new.to_ne_bytes());
                results.push((op.local, old));
            }
        }
        slot += usize::from(op.kind.takes_receive());
    }
    results
}

/// What a receive says: bytes, and immediate data or the key that was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub len: usize,
    pub imm: Option<u32>,
    pub key: Option<u32>,
}

/// What the target's receives have to say.
pub fn arrivals(ops: &[Op], keys: &[Option<u32>]) -> Vec<Arrival> {
    let takers = ops.iter().zip(keys).filter(|(op, _)| op.kind.takes_receive());
    takers
        .map(|(op, key)| Arrival {
            len: op.len,
            imm: matches!(op.kind, Kind::WriteImm | Kind::SendImm).then_some(op.value as u32),
            key: *key,
        })
        .collect()
}

fn wrong(what: String) -> CliError {
    CliError::Other(what)
}

/// Compares what the peer says of its memory, and of what arrived there.
pub fn check_report(report: &Value, memory: &Memory, arrivals: &[Arrival]) -> Result<(), CliError> {
    let hash = |bytes: &[u8]| {
        Sha256::digest(bytes)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect::<String>()
    };
    for (name, bytes) in [("remote", &memory.remote), ("receives", &memory.receives)] {
        if report[name] != hash(bytes) {
            return Err(wrong(format!(
                "the peer's memory ({name}) does not hold what it should"
            )));
        }
    }
    // Where this side's atomics wrote, the peer leaves the old bytes out.
    if report["results"] != hash(&memory.results) {
        return Err(wrong("the peer's READs did not get what they should".to_string()));
    }
    let want: Vec<Value> = arrivals.iter().map(|a| json!([a.len, a.imm, a.key])).collect();
    if report["arrivals"] != Value::Array(want.clone()) {
        return Err(wrong(format!(
            "the peer received {}, which should be {}",
            report["arrivals"],
            Value::Array(want)
        )));
    }
    Ok(())
}

/// Compares the results of the peer's atomics.
pub fn check_results(report: &Value, results: &[AtomicResult]) -> Result<(), CliError> {
    let want: Vec<Value> = results.iter().map(|(_, old)| json!(old)).collect();
    if report["atomics"] != Value::Array(want.clone()) {
        return Err(wrong(format!(
            "the peer's atomics gave {}, which should be {}",
            report["atomics"],
            Value::Array(want)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn batches_stay_within_the_memories_and_have_all_kinds() {
        let mut random = StdRng::seed_from_u64(1);
        let mut kinds = std::collections::HashSet::new();
        for _ in 0..200 {
            let ops = batch(&mut random, BATCH, &Kind::ALL, true);
            let (mut a, mut b) = (Memory::new(1, Role::Host), Memory::new(1, Role::Guest));
            apply(&ops, &mut a, &mut b);
            kinds.extend(ops.iter().map(|op| op.kind.name()));
        }
        assert_eq!(kinds.len(), Kind::ALL.len());
    }

    #[test]
    fn operations_do_what_they_say() {
        let (mut a, mut b) = (Memory::new(1, Role::Host), Memory::new(1, Role::Guest));
        let op = |kind, local, remote, len, value| Op {
            kind,
            local,
            remote,
            len,
            value,
            compare: 5,
            fence: false,
        };
        let ops = [
            op(Kind::Write, 10, 100, 20, 0),
            op(Kind::Read, 0, 96, 30, 0),
            op(Kind::FetchAdd, 32, 0, 8, 5),
            op(Kind::CompareSwap, 40, 0, 8, 9),
            op(Kind::CompareSwap, 48, 0, 8, 7),
            op(Kind::SendImm, 3, 0, 4, 77),
        ];
        assert_eq!(apply(&ops, &mut a, &mut b), [(32, 0), (40, 5), (48, 9)]);
        assert_eq!(b.remote[100..120], a.source[10..30]);
        assert_eq!(a.results[4..24], a.source[10..30]);
        assert_eq!(b.atomic(0), 9);
        assert_eq!(b.receives[..4], a.source[3..7]);
        assert_eq!(b.receives[4], FILL);
        let said = arrivals(&ops, &[None; 6]);
        assert_eq!((said.len(), said[0].imm, said[0].len), (1, Some(77), 4));
    }
}
