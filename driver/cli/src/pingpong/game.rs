//! The game: who has received sends.

use std::time::{Duration, Instant};

use rand::{RngCore, SeedableRng, rngs::StdRng};

use super::args::{Kind, PingpongArgs};
use super::ends::{Ends, PAGE, RECV, SEND};
use crate::error::CliError;

/// How it went.
pub struct Outcome {
    pub took: Duration,
}

/// What a queue pair waits for before it may send again.
#[derive(Clone, Copy)]
struct Pending {
    send: bool,
    recv: bool,
}

/// Plays until all messages are through, each way.
pub fn play(args: &PingpongArgs, ends: &mut Ends) -> Result<Outcome, CliError> {
    let client = args.is_client();
    let count = ends.qpns().len();
    let mut content = Content::new(args, client);
    let mut pending = vec![
        Pending {
            send: client,
            recv: true
        };
        count
    ];
    let started = Instant::now();
    if client {
        for index in 0..count {
            content.next(ends)?;
            ends.post_send(index)?;
        }
    }
    let (mut sent, mut received) = (0, 0);
    while sent < args.iters || received < args.iters {
        let wc = ends.completion(args.events, Duration::from_secs(args.timeout))?;
        let index = ends
            .find(wc.qpn)
            .ok_or_else(|| CliError::Other(format!("a completion of {}, which is none of ours", wc.qpn)))?;
        match wc.wr_id {
            SEND => {
                sent += 1;
                pending[index].send = false;
            }
            RECV => {
                let bytes = u64::from(wc.byte_len).saturating_sub(ends.header() as u64);
                if bytes != args.size() {
                    return Err(CliError::Other(format!(
                        "a message of {bytes} bytes came where {} were expected; give both sides the same --size",
                        args.size()
                    )));
                }
                ends.check_sender(&wc)?;
                content.check(ends, received)?;
                received += 1;
                pending[index].recv = false;
                ends.received()?;
            }
            other => {
                return Err(CliError::Other(format!(
                    "a completion of request {other}, which is none of ours"
                )));
            }
        }
        if sent < args.iters && !pending[index].send && !pending[index].recv {
            content.next(ends)?;
            pending[index] = Pending {
                send: true,
                recv: true,
            };
            ends.post_send(index)?;
        }
    }
    Ok(Outcome {
        took: started.elapsed(),
    })
}

/// What is in the messages, if that matters.
struct Content {
    check: bool,
    client: bool,
    /// All messages are alike: with many on their way at a time, nothing tells which of them a server sends back.
    alike: bool,
    begun: bool,
    random: StdRng,
    sent: Vec<u8>,
    got: Vec<u8>,
}

impl Content {
    fn new(args: &PingpongArgs, client: bool) -> Content {
        // The size is bounded by its argument.
        let bytes = if args.check { args.size() as usize } else { 0 };
        Content {
            check: args.check,
            client,
            alike: args.kind == Kind::Srq,
            begun: false,
            random: StdRng::seed_from_u64(args.nic.faults.seed()),
            sent: vec![0; bytes],
            got: vec![0; bytes],
        }
    }

    /// Prepares the next message. A server sends what it has got.
    fn next(&mut self, ends: &Ends) -> Result<(), CliError> {
        if !self.check || !self.client || self.alike && self.begun {
            return Ok(());
        }
        self.begun = true;
        self.random.fill_bytes(&mut self.sent);
        for page in (0..self.sent.len()).step_by(PAGE) {
            self.sent[page] = 0;
        }
        ends.set_message(&self.sent)
    }

    /// Checks the message that was received.
    fn check(&mut self, ends: &Ends, number: u32) -> Result<(), CliError> {
        if !self.check {
            return Ok(());
        }
        ends.message(&mut self.got)?;
        let wrong = if self.client {
            self.sent
                .iter()
                .zip(&self.got)
                .position(|(sent, got)| sent != got)
        } else {
            (0..self.got.len()).step_by(PAGE).find(|at| self.got[*at] != 0)
        };
        match wrong {
            None => Ok(()),
            Some(at) => Err(CliError::Other(format!(
                "message {number} is not as it was sent: byte {at} is {:#04x}; does the peer have --chk too?",
                self.got[at]
            ))),
        }
    }
}
