//! The thread that answers page requests, takes events in, watches health and destroys what was dropped, when no other
//! thread is waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::eq::Waited;
use crate::hca::Hca;
use crate::reaper::Reaper;

/// How often the service thread reads the health buffer. Source: Linux mlx5.
const HEALTH_POLL: Duration = Duration::from_secs(2);
/// How often the idle service thread looks for what it was not told of.
const SERVICE_RECHECK: Duration = Duration::from_secs(1);

/// The thread that is there when no other is.
#[derive(Debug)]
pub(super) struct Service {
    stop: Arc<AtomicBool>,
    /// The thread takes nothing up any more, since the device has failed.
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Service {
    pub(super) fn start(hca: Arc<Hca>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::new(AtomicBool::new(false));
        let (stopped, ending) = (stop.clone(), ended.clone());
        let thread = std::thread::Builder::new()
            .name("ferroce-events".into())
            .spawn(move || serve(&hca, &stopped, &ending))?;
        Ok(Self { stop, ended, thread })
    }

    /// Whether the thread destroys what is handed to the reaper before this is asked.
    pub(super) fn is_at_work(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }

    pub(super) fn stop(self, hca: &Hca) {
        self.stop.store(true, Ordering::Release);
        if let Some(vector) = hca.vectors().first() {
            vector.wake();
        }
        // The last object may have gone in the service thread itself, which then ends on its own.
        if self.thread.thread().id() != std::thread::current().id() && self.thread.join().is_err() {
            log::error!("the service thread of {} panicked", hca.function().address());
        }
    }
}

fn serve(hca: &Hca, stop: &AtomicBool, ended: &AtomicBool) {
    let Some(vector) = hca.vectors().first() else {
        return;
    };
    let mut next_health = Instant::now() + HEALTH_POLL;
    let reaper: &Reaper = hca.reaper();
    while !stop.load(Ordering::Acquire) {
        reaper.run(hca);
        if Instant::now() >= next_health {
            hca.poll_health();
            next_health = Instant::now() + HEALTH_POLL;
        }
        let mut ready = || stop.load(Ordering::Acquire) || !reaper.is_idle();
        let waited = vector.wait_rechecking(hca, Some(next_health), SERVICE_RECHECK, &mut ready);
        if waited == Waited::Dead {
            // Nothing more will happen. What is dropped from now on, its dropper runs the reaper for: it may hold the
            // context, which would else never end. What came before that is known is in the queue now.
            ended.store(true, Ordering::Release);
            reaper.run(hca);
            return;
        }
    }
}
