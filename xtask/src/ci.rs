//! `cargo xtask ci`: everything a change must pass.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::{licences, tidy};

/// Runs every check and stops at the first that fails.
///
/// # Errors
/// If a check fails or cannot be run.
pub(crate) fn run(root: &Path) -> Result<()> {
    cargo(root, &["fmt", "--all", "--check"])?;
    tidy::run(root, tidy::Ratchets::Hold)?;
    licences::run(root)?;
    // Without those of documentation, of which there are none: rustdoc reads each crate for them.
    let tests = ["test", "--workspace", "--all-targets", "--locked"];
    cargo(root, &[&tests[..], &["--no-run"]].concat())?;
    cargo(root, &[&tests[..], &["--no-fail-fast"]].concat())
}

/// Has clippy compile our crates, so that no crate need be read once more to be checked. Any
/// warning is an error.
const CLIPPY: [(&str, &str); 2] =
    [("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"), ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings")];

/// Tests mount and make network namespaces, so they run as root; cargo itself need not. Answers
/// cargo's variable that puts a program before each test binary, where it is needed.
fn privileged_runner() -> Result<Option<(String, &'static str)>> {
    if std::fs::metadata("/proc/self").context("/proc is not mounted")?.uid() == 0 {
        return Ok(None);
    }
    let host = licences::host()?.to_uppercase().replace('-', "_");
    Ok(Some((format!("CARGO_TARGET_{host}_RUNNER"), "sudo --preserve-env")))
}

/// Many tests wait more than they compute: for servers, syncs and times of protocols. So two of
/// them run on each processor, if `RUST_TEST_THREADS` does not say otherwise. Answers that
/// variable.
fn test_threads() -> Option<(&'static str, String)> {
    const VARIABLE: &str = "RUST_TEST_THREADS";
    let processors = std::thread::available_parallelism().map_or(1, Into::into);
    std::env::var_os(VARIABLE).is_none().then(|| (VARIABLE, (2 * processors).to_string()))
}

fn cargo(root: &Path, args: &[&str]) -> Result<()> {
    let shown = args.join(" ");
    eprintln!("== cargo {shown}");
    let begin = Instant::now();
    let status = Command::new(env!("CARGO"))
        .args(args)
        .envs(privileged_runner()?)
        .envs(test_threads())
        .envs(CLIPPY)
        // The last lines of a log should show what failed: for more, run that test by itself.
        .env("RUST_BACKTRACE", "0")
        .current_dir(root)
        .status()
        .with_context(|| format!("cannot run cargo {shown}"))?;
    ensure!(status.success(), "cargo {shown}: {status}");
    eprintln!("== cargo {shown}: {:.0} s", begin.elapsed().as_secs_f64());
    Ok(())
}
