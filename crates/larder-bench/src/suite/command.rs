//! Programs of the system that tests run.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs a program that must succeed; returns its output.
///
/// # Errors
/// If it is missing or fails, with the first line of its output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().with_context(|| format!("cannot run {name}: is it installed?"))?;
    let error = String::from_utf8_lossy(&done.stderr);
    let said = error.lines().next().unwrap_or("no message");
    ensure!(done.status.success(), "{name} failed: {said}");
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
