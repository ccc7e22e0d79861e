//! `ferroce bind` and `ferroce unbind`.

use std::process::ExitCode;

use ferroce::host::{BindOptions, Binding};
use serde_json::json;

use crate::args::{BindArgs, UnbindArgs};
use crate::devices;
use crate::error::CliError;
use crate::output::say;

pub fn bind(args: &BindArgs) -> Result<ExitCode, CliError> {
    let options = BindOptions::default().force(args.force);
    let done = args.host.host().bind(args.address, options)?;
    print(&done, args.host.json);
    if !args.host.json {
        for missing in &done.function.missing {
            say!("    still missing: {missing}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub fn unbind(args: &UnbindArgs) -> Result<ExitCode, CliError> {
    let done = args.host.host().unbind(args.address)?;
    print(&done, args.host.json);
    Ok(ExitCode::SUCCESS)
}

fn print(done: &Binding, json: bool) {
    if json {
        let function = devices::as_json(&done.function);
        say!(
            "{}",
            json!({ "changed": done.changed, "before": done.before, "after": done.after, "device": function })
        );
        return;
    }
    let name = |driver: &Option<String>| driver.clone().unwrap_or_else(|| "no driver".to_string());
    let address = done.function.address;
    if done.changed {
        say!("{address}: from {} to {}", name(&done.before), name(&done.after));
    } else {
        say!("{address}: {}, as before", name(&done.after));
    }
}
