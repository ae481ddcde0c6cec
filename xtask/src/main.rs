//! The repository's own chores, run as `cargo xtask CHORE`.
//!
//! `tidy` is a test of the repository itself: it enforces what the compiler cannot (which crate may
//! use which, how long a function may get, whether a promise has its test). `lines` prints what it
//! counts. `licences` checks what is linked. `ci` is everything a change must pass, in the order
//! that fails fastest.
//!
//! Left out on purpose: building, installing and measuring; the `Makefile` is the menu for those.

#![allow(clippy::disallowed_methods, reason = "it tells how long checks took")]

mod ci;
mod licences;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

const USAGE: &str = "\
usage: cargo xtask CHORE

  tidy [--bless]   check the rules of the repository; --bless tightens xtask/ratchet.toml
  lines            lines of code and of tests of each crate, as tidy counts them
  circles          the files of each crate that need each other, and whom each one needs
  licences         what is linked: under which licences, and from where
  ci               format, tidy, licences, clippy and all tests
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["tidy"] => root().and_then(|root| tidy::run(root, tidy::Ratchets::Hold)),
        ["tidy", "--bless"] => root().and_then(|root| tidy::run(root, tidy::Ratchets::Tighten)),
        ["lines"] => root().and_then(tidy::print_lines),
        ["circles"] => root().and_then(tidy::print_circles),
        ["licences"] => root().and_then(licences::run),
        ["ci"] => root().and_then(ci::run),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The top of the repository: the folder above this crate.
fn root() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in no folder")
}
