//! `ferroce exercise`, hidden: a program that holds a NIC and does one step after the other, for the tests of whole
//! machines (tests/lab).

mod gone;
mod traffic;
mod vectors;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ferroce::context::{Context, OpenConfig};
use ferroce::events::AsyncEvent;
use ferroce::function::{self, FunctionAddress, PciFunction};
use ferroce::mem::{AllocOptions, PageKind};
use ferroce::verbs::{Access, Cq, CqConfig, CqPoller, Mr, Pd, Qp};

use self::traffic::{Traffic, Way};
use crate::args::ExerciseArgs;
use crate::error::{CliError, chain};
use crate::output::say;

/// How long a step may wait for what it waits for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(50);

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bring the NIC up, and make a PD and a CQ. Tried again until it works.
    Open,
    /// The same with as many completion vectors as the NIC has.
    OpenWide,
    /// Have each completion vector announce a completion.
    Vectors,
    /// Register that many bytes, of normal pages or of huge ones.
    Region(usize, PageKind),
    /// End the region registered last.
    Drop,
    /// Reset the function while the NIC is up.
    Reset,
    /// Wait for an asynchronous event.
    Event,
    /// Wait until the device is gone; then nothing may work any more.
    Gone,
    /// Let go of everything; whether the shutdown was in order does not matter.
    LetGo,
    /// Shut down in order.
    Close,
    /// Wait until that file is there.
    File(PathBuf),
    /// Keep that many queue pairs busy until this process is ended.
    Traffic(u32),
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Step, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let bytes = || {
            value
                .parse::<usize>()
                .map_err(|_| format!("{text}: a number of bytes"))
        };
        Ok(match name {
            "open" => Step::Open,
            "open-wide" => Step::OpenWide,
            "vectors" => Step::Vectors,
            "region" => Step::Region(bytes()?, PageKind::Normal),
            "huge-region" => Step::Region(bytes()?, PageKind::Huge2M),
            "drop" => Step::Drop,
            "reset" => Step::Reset,
            "event" => Step::Event,
            "gone" => Step::Gone,
            "let-go" => Step::LetGo,
            "close" => Step::Close,
            "traffic" => Step::Traffic(bytes()?.clamp(1, 1000) as u32),
            "file" => Step::File(value.into()),
            _ => return Err(format!("no step {text:?}")),
        })
    }
}

/// What a program with an open NIC has. Fields go in this order.
struct Held {
    regions: Vec<Mr>,
    /// Connected with itself.
    qp: Option<Qp>,
    poller: CqPoller,
    cq: Cq,
    pd: Pd,
    context: Arc<Context>,
}

pub fn run(args: &ExerciseArgs) -> Result<ExitCode, CliError> {
    let mut held = None;
    for step in &args.steps {
        let started = Instant::now();
        let found = take(step, &args.device, &mut held, args.huge_firmware_pages)?;
        say!("{step:?}: {found}; {} ms", started.elapsed().as_millis());
    }
    Ok(ExitCode::SUCCESS)
}

fn failed<E: std::error::Error>(error: E) -> CliError {
    CliError::Other(chain(&error))
}

fn take(
    step: &Step,
    device: &FunctionAddress,
    held: &mut Option<Held>,
    huge: bool,
) -> Result<String, CliError> {
    if let Step::Open | Step::OpenWide = step {
        // Not while the old one is there: the device has one user.
        *held = None;
        *held = Some(open(device, huge, *step == Step::OpenWide)?);
        return Ok("is up".to_string());
    }
    if let Step::File(path) = step {
        return wait_for(path);
    }
    let Some(holder) = held else {
        return Err(CliError::Other(format!("{step:?} needs an open NIC")));
    };
    match step {
        Step::Region(bytes, pages) => {
            let options = AllocOptions {
                pages: *pages,
                dedicated: true,
            };
            let region = Mr::alloc_with(&holder.pd, *bytes, Access::all(), &options).map_err(failed)?;
            let found = format!("iova {:#x} len {:#x}", region.addr(), region.len());
            holder.regions.push(region);
            Ok(found)
        }
        Step::Drop => {
            let region = holder.regions.pop();
            let region = region.ok_or_else(|| CliError::Other("no region to drop".to_string()))?;
            let found = format!("iova {:#x} len {:#x}", region.addr(), region.len());
            region.dereg().map_err(failed)?;
            Ok(found)
        }
        Step::Reset => {
            let function: &Arc<dyn PciFunction> = holder.context.function();
            function.reset().map_err(failed)?;
            Ok("function reset".to_string())
        }
        Step::Traffic(count) => {
            Traffic::new(&holder.context, &holder.pd, *count)?.run()?;
            Ok("ended".to_string())
        }
        Step::Vectors => {
            let count = vectors::each_announces(&holder.context, &holder.pd)?;
            Ok(format!("{count} announced"))
        }
        Step::Event => event(&holder.context),
        Step::Gone => gone::wait(holder),
        Step::LetGo => {
            *held = None;
            Ok("let go".to_string())
        }
        Step::Close => match held.take() {
            Some(Held {
                regions,
                qp,
                poller,
                cq,
                pd,
                context,
            }) => {
                drop((regions, qp, poller, cq, pd));
                let report = context.close().map_err(failed)?;
                Ok(format!(
                    "{} of {} pages back",
                    report.pages_reclaimed, report.pages_given
                ))
            }
            None => Ok(String::new()),
        },
        Step::Open | Step::OpenWide | Step::File(_) => Ok(String::new()),
    }
}

/// Opens the NIC, again and again while somebody else has it.
fn open(device: &FunctionAddress, huge: bool, wide: bool) -> Result<Held, CliError> {
    let deadline = Instant::now() + PATIENCE;
    let function = loop {
        match function::open(device) {
            Ok(function) => break function,
            Err(_) if Instant::now() < deadline => thread::sleep(LOOK),
            Err(source) => {
                return Err(CliError::Function {
                    device: device.clone(),
                    source: Box::new(source),
                });
            }
        }
    };
    let mut config = OpenConfig::new().huge_pages(huge);
    if wide {
        // It is cut to what there is.
        config = config.completion_vectors(usize::MAX);
    }
    let context = Context::open(function, config).map_err(|source| CliError::Open {
        device: device.clone(),
        source: Box::new(source),
    })?;
    let pd = Pd::alloc(&context).map_err(failed)?;
    let (cq, poller) = Cq::create(&context, CqConfig::new(64)).map_err(failed)?;
    let qp = Way::to_itself(&context)?.connected(&pd, &cq)?;
    Ok(Held {
        regions: Vec::new(),
        qp: Some(qp),
        poller,
        cq,
        pd,
        context,
    })
}

/// Waits for the next asynchronous event, and says what it is.
fn event(context: &Context) -> Result<String, CliError> {
    match context.wait_event(Instant::now() + PATIENCE) {
        Some(AsyncEvent::Port { port, change }) => Ok(format!("port {port}: {change}")),
        Some(other) => Ok(format!("{other:?}")),
        None => Err(CliError::Other("no event came".to_string())),
    }
}

fn wait_for(path: &Path) -> Result<String, CliError> {
    let deadline = Instant::now() + PATIENCE;
    while !path.exists() {
        if Instant::now() > deadline {
            return Err(CliError::Other(format!("{} did not appear", path.display())));
        }
        thread::sleep(LOOK);
    }
    Ok("is there".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_names() {
        assert_eq!("open".parse(), Ok(Step::Open));
        assert_eq!("event".parse(), Ok(Step::Event));
        assert_eq!("region=4096".parse(), Ok(Step::Region(4096, PageKind::Normal)));
        assert_eq!("file=/tmp/x".parse(), Ok(Step::File("/tmp/x".into())));
        assert!("region=x".parse::<Step>().is_err());
        assert!("jump".parse::<Step>().is_err());
    }
}
