//! `whet-fleet`, the program that shares profiles between the hosts of a fleet.
#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(fleet_sync::cli::run(&fleet_sync::cli::Cli::parse()) as u8)
}
