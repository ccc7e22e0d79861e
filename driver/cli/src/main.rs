//! The `ferroce` command-line tool.
#![forbid(unsafe_code)]

mod args;
mod bind;
mod cmtools;
mod control;
mod demo;
mod devices;
mod doctor;
mod error;
mod exchange;
mod exercise;
mod info;
mod link;
mod model;
mod nic;
mod operations;
mod output;
mod perf;
mod perftest;
mod pingpong;
mod report;
mod route;
mod rping;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::error::{CliError, chain};
use crate::output::say;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = match cli.verbose {
        0 => "warn",
        1 => "info",
        _ => "trace",
    };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level)).init();
    let json = cli.command.json();
    let result = match cli.command {
        Command::Info(args) => info::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Model(args) => model::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bind(args) => bind::bind(&args),
        Command::Exercise(args) => exercise::run(&args),
        Command::Operations(args) => operations::run(&args),
        Command::Perftest(args) => perftest::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Pingpong(args) => pingpong::run(&args),
        Command::Ucmatose(args) => cmtools::run(cmtools::Tool::Ucmatose, &args),
        Command::Udaddy(args) => cmtools::run(cmtools::Tool::Udaddy, &args),
        Command::Cmtime(args) => cmtools::run_cmtime(&args),
        Command::Route(args) => route::run(&args),
        Command::Link(args) => link::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Rping(args) => rping::run(&args, cli.verbose > 0),
        Command::Unbind(args) => bind::unbind(&args),
    };
    let code = result.unwrap_or_else(|error: CliError| {
        let error = chain(&error);
        eprintln!("ferroce: {error}");
        if json {
            // A machine gets one object, whatever happens.
            say!("{}", serde_json::json!({ "ok": false, "error": error }));
        }
        ExitCode::FAILURE
    });
    if output::lost() {
        eprintln!("ferroce: can't write to standard output");
        return ExitCode::FAILURE;
    }
    code
}
