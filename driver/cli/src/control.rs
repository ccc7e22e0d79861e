//! What a running `ferroce model` is told by `--control`: one command a line, one answer a line.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferroce_firmware_iface::status::HealthSyndrome;
use ferroce_nic_model::nic::Nic;
use ferroce_nic_model::runner::Runner;

use crate::error::CliError;

/// The longest that a client may say, in bytes.
const MOST: u64 = 4096;
/// How long a client may take for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a NIC is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The health buffer shows this syndrome; fatal: only a reset mends it.
    Health(HealthSyndrome, bool),
    /// It asks its user to let go.
    Release,
    /// Says whether it is bus master, and how many objects and pages of a host it holds.
    State,
}

/// A command: the NIC's number, from 0, and what it is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line(usize, Order);

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Line, String> {
        let mut words = text.split_whitespace();
        let word = words.next().unwrap_or_default();
        let number = |text: Option<&str>| text.and_then(|t| t.parse::<u8>().ok());
        let nic = number(words.next()).ok_or("the NIC's number, from 0, comes second")?;
        let syndrome = number(words.next()).map(HealthSyndrome);
        let order = match word {
            "fatal" => Order::Health(syndrome.unwrap_or(HealthSyndrome::FW_INTERNAL_ERR), true),
            "health" => Order::Health(syndrome.ok_or("a syndrome comes third")?, false),
            "release" => Order::Release,
            "state" => Order::State,
            _ => {
                return Err(format!(
                    "no command {word:?}; there are: fatal, health, release, state"
                ));
            }
        };
        Ok(Line(usize::from(nic), order))
    }
}

impl Order {
    fn carry_out(self, nic: &mut Nic) -> String {
        match self {
            Order::Health(syndrome, fatal) => {
                nic.firmware().set_health(syndrome, fatal);
                format!("ok {syndrome}")
            }
            Order::Release => if nic.request_release() {
                "ok"
            } else {
                "error: nobody listens"
            }
            .to_string(),
            Order::State => {
                let state = nic.firmware().state();
                let pages = nic.firmware().pages_held();
                format!("ok bus_master={} hca={state:?} pages={pages}", nic.bus_master())
            }
        }
    }
}

/// The control socket.
pub struct Control<'a> {
    path: &'a Path,
    listener: UnixListener,
    ended: AtomicBool,
}

impl<'a> Control<'a> {
    /// Listens at `path`.
    ///
    /// # Errors
    /// The socket can't be made; a path that is there is not taken.
    pub fn bind(path: &'a Path) -> Result<Control<'a>, CliError> {
        let listener = UnixListener::bind(path).map_err(CliError::file("can't listen at", path))?;
        Ok(Control {
            path,
            listener,
            ended: AtomicBool::new(false),
        })
    }

    /// Serves one client after the other until [`Control::end`].
    pub fn serve(&self, runner: &Runner) {
        for client in self.listener.incoming() {
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            if let Err(error) = client.and_then(|client| answer(&client, runner)) {
                log::warn!("control socket: {error}");
            }
        }
    }

    /// Ends [`Control::serve`].
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // It waits for a client.
        if let Err(error) = UnixStream::connect(self.path) {
            log::warn!("the control socket does not end: {error}");
        }
    }
}

impl Drop for Control<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(self.path) {
            log::debug!("{} stays: {error}", self.path.display());
        }
    }
}

fn answer(client: &UnixStream, runner: &Runner) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    for line in BufReader::new(client.take(MOST)).lines() {
        let said = match line?.parse::<Line>() {
            Ok(Line(nic, order)) => runner
                .with_nic(nic, |nic| order.carry_out(nic))
                .unwrap_or_else(|| format!("error: there is no NIC {nic}")),
            Err(error) => format!("error: {error}"),
        };
        let mut client = client;
        writeln!(client, "{said}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_a_nic() {
        let fatal = Order::Health(HealthSyndrome::FW_INTERNAL_ERR, true);
        assert_eq!("fatal 0".parse(), Ok(Line(0, fatal)));
        let warm = Order::Health(HealthSyndrome::HIGH_TEMP_ERR, false);
        assert_eq!("health 1 16".parse(), Ok(Line(1, warm)));
        assert_eq!("state 0".parse(), Ok(Line(0, Order::State)));
        for wrong in ["", "fatal", "fatal x", "health 0", "explode 0", "release 300"] {
            assert!(wrong.parse::<Line>().is_err(), "{wrong:?}");
        }
    }
}
