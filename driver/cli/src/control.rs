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
    /// The wire of a port (from 1) is plugged in, or pulled out.
    Plug(u8, bool),
    /// Says whether it is bus master, how far it is brought up, and how many pages of a host it holds.
    State,
}

/// A command: the NIC's number, from 0, and what it is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line(usize, Order);

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Line, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let word = words.first().copied().unwrap_or_default();
        let most = match word {
            "release" | "state" => 0,
            "fatal" | "health" => 1,
            "port" => 2,
            _ => {
                return Err(format!(
                    "no command {word:?}; there are: fatal, health, port, release, state"
                ));
            }
        };
        let number = |text: &str| text.parse::<u8>();
        let nic = words.get(1).and_then(|text| number(text).ok());
        let nic = nic.ok_or("the NIC's number, from 0, comes second")?;
        let rest = words.get(2..).unwrap_or_default();
        if let Some(more) = rest.get(most) {
            return Err(format!("{more:?} is too much"));
        }
        let syndrome = || {
            let text = rest.first().map(|text| number(text).map(HealthSyndrome));
            text.transpose()
                .map_err(|_| "a syndrome is a number from 0 to 255")
        };
        let order = match word {
            "fatal" => Order::Health(syndrome()?.unwrap_or(HealthSyndrome::FW_INTERNAL_ERR), true),
            "health" => Order::Health(syndrome()?.ok_or("a syndrome comes third")?, false),
            "port" => plug(rest)?,
            "release" => Order::Release,
            _ => Order::State,
        };
        Ok(Line(usize::from(nic), order))
    }
}

/// What follows `port NIC`.
fn plug(words: &[&str]) -> Result<Order, String> {
    let plugged = match words.first() {
        Some(&"up") => true,
        Some(&"down") => false,
        _ => return Err("`up` or `down` comes third".to_string()),
    };
    let port = words.get(1).map_or(Ok(1), |text| text.parse());
    let port = port.map_err(|_| "a port is a number from 1")?;
    Ok(Order::Plug(port, plugged))
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
            Order::Plug(port, plugged) => if nic.plug(port, plugged) {
                "ok"
            } else {
                "error: there is no such port"
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
    use ferroce_nic_model::clock::Nanos;
    use ferroce_nic_model::link::cable::cable;
    use ferroce_nic_model::profile::Profile;

    use super::*;

    #[test]
    fn commands_have_a_nic() {
        let fatal = Order::Health(HealthSyndrome::FW_INTERNAL_ERR, true);
        assert_eq!("fatal 0".parse(), Ok(Line(0, fatal)));
        let warm = Order::Health(HealthSyndrome::HIGH_TEMP_ERR, false);
        assert_eq!("health 1 16".parse(), Ok(Line(1, warm)));
        assert_eq!("state 0".parse(), Ok(Line(0, Order::State)));
        assert_eq!("port 1 down".parse(), Ok(Line(1, Order::Plug(1, false))));
        assert_eq!("port 0 up 2".parse(), Ok(Line(0, Order::Plug(2, true))));
        for (wrong, part) in [
            ("", "there are: fatal"),
            ("explode 0", "there are: fatal"),
            ("fatal", "comes second"),
            ("fatal x", "comes second"),
            ("release 300", "comes second"),
            ("health 0", "comes third"),
            ("fatal 0 high", "0 to 255"),
            ("fatal 0 256", "0 to 255"),
            ("fatal 0 1 2", "too much"),
            ("state 0 1", "too much"),
            ("port 0", "comes third"),
            ("port 0 sideways", "comes third"),
            ("port 0 up x", "from 1"),
            ("port 0 up 1 1", "too much"),
        ] {
            let error = wrong.parse::<Line>().unwrap_err();
            assert!(error.contains(part), "{wrong:?}: {error}");
        }
    }
    #[test]
    fn a_wire_is_pulled_out_and_put_back() {
        let mut nic = Nic::new(Profile::minimal(), Box::new(cable(8).0));
        assert_eq!(Order::Plug(1, false).carry_out(&mut nic), "ok");
        nic.poll(Nanos::ZERO);
        assert!(!nic.data_plane.line(1).link_up);
        assert_eq!(Order::Plug(1, true).carry_out(&mut nic), "ok");
        nic.poll(Nanos::ZERO);
        assert!(nic.data_plane.line(1).link_up);
        for port in [0, 2, 255] {
            let said = Order::Plug(port, false).carry_out(&mut nic);
            assert!(said.starts_with("error"), "{port}: {said}");
        }
    }
}
