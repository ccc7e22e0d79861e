//! What both sides have to have the same.

use serde_json::{Value, json};

use super::args::{PerfArgs, Test};
use crate::error::CliError;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub test: Test,
    /// Bytes of the messages.
    pub sizes: Vec<usize>,
    /// Messages of each size and queue pair.
    pub iters: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Path MTU in bytes.
    pub mtu: u16,
}

impl Plan {
    pub fn of(args: &PerfArgs) -> Plan {
        Plan {
            test: args.test,
            sizes: args.sizes(),
            iters: args.iters(),
            qps: args.qps(),
            mtu: args.mtu,
        }
    }

    /// Its parts, as they are said over TCP.
    pub fn values(&self) -> [(&'static str, Value); 5] {
        [
            ("test", json!(self.test)),
            ("sizes", json!(self.sizes)),
            ("iters", json!(self.iters)),
            ("number of queue pairs", json!(self.qps)),
            ("mtu", json!(self.mtu)),
        ]
    }

    /// Compares what the peer has, by name, with it.
    ///
    /// # Errors
    /// Names the first part that differs.
    pub fn compare(&self, peer: impl Fn(&str) -> Value) -> Result<(), CliError> {
        for (name, own) in self.values() {
            let peers = peer(name);
            if peers != own {
                return Err(CliError::Other(format!(
                    "the peer has {name} {}, this side {}; give both the same",
                    shown(&peers),
                    shown(&own)
                )));
            }
        }
        Ok(())
    }

    /// As [`Plan::compare`].
    ///
    /// # Errors
    /// As [`Plan::compare`].
    pub fn compare_with(&self, peer: &Plan) -> Result<(), CliError> {
        let values = peer.values();
        self.compare(|name| {
            let found = values.iter().find(|(have, _)| *have == name);
            found.map_or(Value::Null, |(_, value)| value.clone())
        })
    }
}

/// Lists by their ends, which are short enough for a rejection.
fn shown(value: &Value) -> String {
    match value.as_array().map(Vec::as_slice) {
        Some([one]) => one.to_string(),
        Some([first, .., last]) => format!("{first} to {last}"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let plan = Plan {
            test: Test::WriteBw,
            sizes: vec![65536],
            iters: 5,
            qps: 1,
            mtu: 4096,
        };
        plan.compare_with(&plan.clone()).unwrap();
        let told = |peer: Plan| plan.compare_with(&peer).unwrap_err().to_string();
        let other = Plan {
            sizes: PerfArgs::all_sizes(),
            ..plan.clone()
        };
        assert_eq!(
            told(other),
            "the peer has sizes 2 to 8388608, this side 65536; give both the same"
        );
        let other = Plan {
            test: Test::SendBw,
            ..plan.clone()
        };
        assert!(told(other).contains("test \"send-bw\", this side \"write-bw\""));
        let nothing = plan.compare(|_| Value::Null).unwrap_err().to_string();
        assert!(nothing.contains("test null"), "{nothing}");
    }
}
