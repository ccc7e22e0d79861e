//! `ferroce doctor`: what the driver needs, checked, and what mends it.

use std::process::ExitCode;

use ferroce::host::{Check, Outcome};
use serde_json::{Value, json};

use crate::args::DoctorArgs;
use crate::error::CliError;
use crate::output::say;

pub fn run(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let checks = args.host.host().examine(args.address)?;
    let ok = checks.iter().all(|check| check.outcome != Outcome::Failed);
    if args.host.json {
        let checks: Vec<Value> = checks.iter().map(as_json).collect();
        say!("{}", json!({ "ok": ok, "checks": checks }));
    } else {
        checks.iter().for_each(print);
        let count = |outcome| checks.iter().filter(|c| c.outcome == outcome).count();
        say!(
            "{} checks, {} failed, {} warnings",
            checks.len(),
            count(Outcome::Failed),
            count(Outcome::Warning)
        );
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn outcome(check: &Check) -> &'static str {
    match check.outcome {
        Outcome::Ok => "ok",
        Outcome::Warning => "warning",
        _ => "failed",
    }
}

fn as_json(check: &Check) -> Value {
    json!({
        "name": check.name,
        "function": check.function.map(|f| f.to_string()),
        "outcome": outcome(check),
        "found": check.found,
        "mend": check.mend,
    })
}

fn print(check: &Check) {
    let subject = check.function.map_or(String::new(), |f| format!("{f} "));
    say!("{:<8}{subject}{}: {}", outcome(check), check.name, check.found);
    if let Some(mend) = &check.mend {
        say!("        {mend}");
    }
}
